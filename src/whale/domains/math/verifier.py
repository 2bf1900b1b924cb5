"""The strict judge: the last ``\\boxed{}`` of the answer against the reference, exact before any tolerance.

No ``eval``, no signals, no computer algebra: contents are read by a small parser of numbers, so that no reply
can make the judge slow. A formula that would first have to be evaluated is ``not_a_number``.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from whale.types import Outcome, Verdict

RELATIVE_TOLERANCE = Fraction(1, 10**9)
"""Only between decimals: what binary floating point may add to a result that is right."""

_LONGEST = 200  # characters of a box; no number of ours is longer
_BOX = re.compile(r"\\f?boxed\s*(?=\{)")
_SPACING = re.compile(
    r"\\[,;:!> ]|\\q?quad(?![a-zA-Z])|~|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|\\displaystyle(?![a-zA-Z])"
)
_TEXT = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"(?<=[0-9})])\s*(?:\^?\{?\\?(?:circ|degree)\}?|°|\\?%)$")
_ORDINAL = re.compile(r"(?<=[0-9])\s*\^?\{?\s*(?:st|nd|rd|th)\s*\}?$", re.IGNORECASE)
# A lone letter may be a variable: only the common unit letters count, and only after a space.
_WORD_UNIT = re.compile(r"(?<=[0-9})])(?:\s*[a-z]{2,}(?: [a-z]+)*| [cghlms])\.?(?:\^\{?[23]\}?)?$")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")
_NUMBER = re.compile(r"(?:(?<![\w)])-)?[0-9][0-9,]*(?:\.[0-9]+)?")  # a minus after a term subtracts
_SCIENTIFIC = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:e|\\times10\^|\*10\^|\*10\*\*)\{?([+-]?[0-9]{1,3})\}?", re.IGNORECASE
)
_SPACE_BY_SIGN = re.compile(r"(?<=[-+/*^}])\s+|\s+(?=[/*\\{^])")
_FRAC = re.compile(r"([+-]?)([0-9]*)\\[dt]?frac(?:\{([^{}]+)\}|([0-9]))(?:\{([^{}]+)\}|([0-9]))")


def judge(answer: str, reference: object) -> Verdict:
    """Reward 1 or 0 with a reason: ``right``, ``wrong``, ``no_box``, ``unclosed_box``, ``empty_box``, ``not_a_number``,
    ``code_failed`` (the answer holds a Python error: what the harness had run did not).

    answer: what the harness returned. reference: the right answer as text; an empty or missing one makes the
    task ``unscorable`` (reward ``None``). Raises nothing for any text.
    """
    verdict = _judge(answer, reference)
    return Verdict(0.0, "code_failed") if verdict.reward == 0 and TRACEBACK in answer else verdict


def _judge(answer: str, reference: object) -> Verdict:
    gold = "" if reference is None else str(reference).strip()
    if not gold:
        return Verdict(None, "empty_reference", Outcome.UNSCORABLE)
    content = last_box(answer)
    if content is None:
        return Verdict(0.0, "no_box")
    if content is UNCLOSED:
        return Verdict(0.0, "unclosed_box")
    if not content.strip():
        return Verdict(0.0, "empty_box")
    if equal(content, gold):
        return Verdict(1.0, "right")
    if _is_numeric(gold) and not _is_numeric(content):
        return Verdict(0.0, "not_a_number")
    return Verdict(0.0, "wrong")


def judge_flexible(answer: str, reference: object) -> Verdict:
    """Like ``judge``, but a reply without any box is read by its last number, as common evaluation harnesses do.

    For policies too small to follow the boxed-answer instruction, from which strict judging would leave nothing to
    learn. Reasons are those of ``judge``; ``no_box`` then means: neither a box nor a number.
    """
    verdict = judge(answer, reference)
    if verdict.reason != "no_box":
        return verdict
    number = last_number(answer)
    return verdict if number is None else judge(f"\\boxed{{{number}}}", reference)


def last_number(text: str) -> str | None:
    """The last number as it is written, thousands separators included; ``None`` without any."""
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


TRACEBACK = "Traceback (most recent call last)"

UNCLOSED = "\0unclosed"
"""What ``last_box`` returns for a box whose brace is never closed."""


def last_box(text: str) -> str | None:
    r"""Contents of the last ``\boxed{...}`` with counted braces; ``UNCLOSED``; ``None`` if there is no box."""
    matches = list(_BOX.finditer(text))
    if not matches:
        return None
    start = matches[-1].end()
    depth = 0
    for index in range(start, len(text)):
        # A backslash before a brace makes it a set's own sign, not a delimiter.
        if text[index] not in "{}" or text[index - 1] == "\\":
            continue
        depth += 1 if text[index] == "{" else -1
        if depth == 0:
            return text[start + 1 : index]
    return UNCLOSED


def equal(given: str, gold: str) -> bool:
    """True if both mean the same: numbers by value, lists without order, tuples and intervals with it, else words."""
    if len(given) > _LONGEST:
        return False
    left, right = _clean(given), _clean(gold)
    if left == right:
        return True
    brackets = _brackets(right)
    if brackets != _brackets(left):
        return False
    if brackets:
        left, right = left[1:-1], right[1:-1]
    return _same_parts(_parts(left), _parts(right), ordered=bool(brackets) and brackets != "{}")


def _clean(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).replace("\u2212", "-").strip().strip("$").strip()
    text = _SPACING.sub("", text.replace("\\{", "{").replace("\\}", "}") if "\\{" in text else text)
    while (plain := _TEXT.sub(r" \1", text)) != text:
        text = plain
    text = re.sub(r"(?<=[0-9])[ _](?=[0-9]{3}(?![0-9]))", "", text)
    return " ".join(text.casefold().split()).rstrip(".").strip()


def _brackets(text: str) -> str:
    """The pair of brackets around the whole text, ``""`` if there is none or they only hold a single number."""
    if len(text) > 1 and text[0] + text[-1] in ("()", "[]", "(]", "[)", "{}") and "," in text:
        return text[0] + text[-1]
    return ""


def _parts(text: str) -> list[str]:
    """Members of a list; a grouped number such as 58,500 is one member."""
    compact = text.replace(" ", "")
    if _GROUPED.fullmatch(_strip_units(compact)) and ", " not in text:
        return [compact]
    depth, part, parts = 0, "", []
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        if character == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    return [*parts, part]


def _same_parts(given: list[str], gold: list[str], ordered: bool) -> bool:
    if len(given) != len(gold):
        return False
    if ordered or len(gold) == 1:
        return all(_same(a, b) for a, b in zip(given, gold, strict=True))
    rest = list(gold)
    for part in given:
        match = next((other for other in rest if _same(part, other)), None)
        if match is None:
            return False
        rest.remove(match)
    return True


def _same(given: str, gold: str) -> bool:
    left, right = number(given), number(gold)
    if right is None:
        return given.replace(" ", "") == gold.replace(" ", "")
    if left is None:
        return False
    if left == right:
        return True
    inexact = "." in gold or "." in given or "e" in given
    return inexact and abs(left - right) <= RELATIVE_TOLERANCE * abs(right)


def _is_numeric(text: str) -> bool:
    return len(text) <= _LONGEST and number(_clean(text)) is not None


def number(text: str) -> Fraction | None:
    """The exact value of a plain number, fraction or number with a unit; ``None`` for anything else."""
    compact = _SPACE_BY_SIGN.sub("", _strip_units(_unwrap(text)))
    if _GROUPED.fullmatch(compact):
        compact = compact.replace(",", "")
    if _DECIMAL.fullmatch(compact):
        return Fraction(compact.rstrip("."))
    if match := _SCIENTIFIC.fullmatch(compact):
        return Fraction(match[1].rstrip(".")) * Fraction(10) ** int(match[2])
    return _ratio(compact)


def _unwrap(text: str) -> str:
    """Without brackets that hold the whole text."""
    text = text.strip()
    while len(text) > 1 and text[0] + text[-1] in ("()", "{}") and not set("(){}") & set(text[1:-1]):
        text = text[1:-1].strip()
    return text


def _strip_units(text: str) -> str:
    """Without degree signs, ordinals and words of unit behind a number. A letter alone stays: it is no unit."""
    for pattern in (_UNIT, _ORDINAL, _WORD_UNIT):
        text = pattern.sub("", text).strip()
    return text


def _ratio(compact: str) -> Fraction | None:
    if match := _FRAC.fullmatch(compact):
        sign, whole = match[1], match[2]
        top, bottom = match[3] or match[4], match[5] or match[6]
        value = _divide(top, bottom)
        if value is None:
            return None
        value = value + int(whole) if whole else value
        return -value if sign == "-" else value
    if compact.count("/") == 1:
        top, bottom = compact.split("/")
        return _divide(top, bottom)
    return None


def _divide(top: str, bottom: str) -> Fraction | None:
    if not (_DECIMAL.fullmatch(top) and _DECIMAL.fullmatch(bottom)):
        return None
    denominator = Fraction(bottom.rstrip("."))
    return Fraction(top.rstrip(".")) / denominator if denominator else None
