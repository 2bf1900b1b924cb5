"""What may stand behind a number and does not change it: units, ordinals, degrees, percent."""

from __future__ import annotations

import re

from whale.domains.math.latex import TEXT_CLOSE, TEXT_OPEN, words

_KINDS = {
    "inch": "in inch inches", "foot": "ft foot feet", "yard": "yd yard yards", "mile": "mi mile miles",
    "centimetre": "cm centimeter centimeters centimetre centimetres", "metre": "m meter meters metre metres",
    "millimetre": "mm millimeter millimeters", "kilometre": "km kilometer kilometers kilometre kilometres",
    "second": "s sec second seconds", "minute": "min minute minutes", "hour": "h hr hour hours", "day": "day days",
    "week": "week weeks", "month": "month months", "year": "year years",
    "dollar": "dollar dollars", "cent": "cent cents", "gram": "g gram grams", "kilogram": "kg kilogram kilograms",
    "pound": "lb lbs pound pounds", "ounce": "oz ounce ounces", "litre": "l liter liters litre litres",
    "mph": "mph", "radian": "rad radian radians", "degree": "degree degrees",
}  # fmt: skip
_CANON = {word: kind for kind, listed in _KINDS.items() for word in listed.split()}
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}

_MARKED = re.compile(
    rf"(.*[^\s+\-*/^_=(,])\s*{TEXT_OPEN}([^{TEXT_OPEN}{TEXT_CLOSE}]+){TEXT_CLOSE}(?:\^\{{?([23])\}}?)?"
)
_BARE = re.compile(
    r"(.*[0-9})])((?:\s+[a-z]{2,}\.?)+|\s*(?:cm|mm|km|ft|kg|mph|min|sec|hrs?|lbs?|oz)\.?)(?:\^\{?([23])\}?)?"
)
_LETTER = re.compile(r"([+-]?[0-9][0-9.,]*)\s([mscghl])(?:\^\{?([23])\}?)?")
_ORDINAL = re.compile(rf"(.*[0-9])\s*(?:\^\s*)?\{{?\s*{TEXT_OPEN}?\s*(?:st|nd|rd|th)\s*{TEXT_CLOSE}?\s*\}}?")
_FUNCTION = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")  # whose argument the degrees belong to
_DEGREE = re.compile(r"(.*\S)\s*\\circ")
_PERCENT = re.compile(rf"(.*\S)\s*(?:%|{TEXT_OPEN}\s*(?:percent|%)\s*{TEXT_CLOSE}|\spercent)")


def strip(text: str) -> tuple[str, str, bool]:
    """The bare value, what is known of its unit (``""`` if nothing), and whether it is a percentage."""
    text, unit, percent = text.strip(), "", False
    if match := _PERCENT.fullmatch(text):
        text, percent = match[1], True
    if match := _ORDINAL.fullmatch(text):
        return match[1], "", percent
    if match := _MARKED.fullmatch(text) or _BARE.fullmatch(text) or _LETTER.fullmatch(text):
        text, unit = match[1].strip(), _canon(match[2], match[3] or "")
    if (match := _DEGREE.fullmatch(text)) and not _FUNCTION.search(text):
        text, unit = match[1].strip(), unit or "degree"
    return text, unit, percent


def clash(one: str, other: str) -> bool:
    """True if both units are known and differ: 5 cents are not 5 dollars, while 5 is read as either."""
    return bool(one) and bool(other) and one != other


def _canon(text: str, power: str) -> str:
    listed = [word.strip(".") for word in words_of(text)]
    for word in listed:
        power = _POWERS.get(word, power)
    kinds = [_CANON[word] for word in listed if word in _CANON]
    if len(kinds) != 1 or any(word in ("per", "a", "of") for word in listed):
        return ""
    return kinds[0] + power


def words_of(text: str) -> list[str]:
    """Lower-case words of a text."""
    return [words(word) for word in text.split()]
