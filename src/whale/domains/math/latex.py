"""Boxed LaTeX made uniform, and taken apart at the top level: the reading half of the verifier of real answers.

``tidy`` leaves one spelling of everything that has several. Private-use characters stand for what must stay apart from
ordinary signs: ``TEXT_OPEN`` and ``TEXT_CLOSE`` around words, ``SET_OPEN`` and ``SET_CLOSE`` for the braces of a set,
``ROW`` for the end of a matrix row.
"""

from __future__ import annotations

import re
import unicodedata

TEXT_OPEN, TEXT_CLOSE = "\ue000", "\ue001"
SET_OPEN, SET_CLOSE = "\ue002", "\ue003"
ROW = "\ue004"

OPENING = "([{" + SET_OPEN + TEXT_OPEN
CLOSING = ")]}" + SET_CLOSE + TEXT_CLOSE

_SIGNS = {
    "\u2212": "-", "\u2013": "-", "\u00d7": "\\times ", "\u00b7": "\\cdot ", "\u22c5": "\\cdot ", "\u00f7": "/",
    "\u03c0": "\\pi ", "\u221e": "\\infty ", "\u222a": "\\cup ", "\u2264": "\\le ", "\u2265": "\\ge ",
    "\u2208": "\\in ", "\u00b0": "^\\circ ", "\u00b1": "\\pm ", "\u2213": "\\mp ", "\u2248": "\\approx ",
    "\u221a": "\\sqrt ", "\u2260": "\\ne ", "\u2044": "/", "\u00b2": "^2", "\u00b3": "^3", "\u2074": "^4",
    "\u00a3": "", "\u20ac": "", "\uff0c": ",", "\u3001": ",",
}  # fmt: skip
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "leq": "le", "geq": "ge",
    "leqslant": "le", "geqslant": "ge", "neq": "ne", "lbrace": "{", "rbrace": "}", "lbrack": "[", "rbrack": "]",
    "bmatrix": "pmatrix", "ast": "cdot", "degree": "circ", "thickapprox": "approx", "simeq": "approx", "vert": "mid",
    "varnothing": "emptyset", "imath": "i",
}  # fmt: skip
_PLAIN = {"{": SET_OPEN, "}": SET_CLOSE, "[": "[", "]": "]", "i": "i", "lt": "<", "gt": ">"}
_COMMAND = re.compile(r"\\([A-Za-z]+)\s*")
_DROPPED = frozenset(
    "left right big Big bigg Bigg bigl bigr Bigl Bigr displaystyle textstyle limits rm bf it nolimits".split()  # noqa: SIM905
)
_SPACES = frozenset(["quad", "qquad", "space", "thinspace", "enspace"])
_TEXT = re.compile(
    r"\\(?:text|textbf|textrm|textit|textnormal|textsf|mathrm|mathbf|mathit|mathsf|mbox|hbox|operatorname|boldsymbol)"
    r"\s*\{([^{}]*)\}"
)
_FUNCTIONS = re.compile(r"\s*(sin|cos|tan|cot|sec|csc|log|ln|arcsin|arccos|arctan|gcd|lcm|min|max|i|e|d)\s*")
_GROUPING = re.compile(r"(?<=[0-9])(?:\{,\}|,\s*\\!|\\,|\s*,\\,|\\ |~)\s*(?:\\!\s*)?(?=[0-9]{3}(?![0-9]))")
_SPACED = re.compile(r"(?<=[0-9]) (?=[0-9]{3}(?![0-9]))")
_TOKEN = re.compile(r"(\s*)(\\[A-Za-z]+|\S)")
_BRACED = (
    (re.compile(r"\\frac ?([0-9])(?=[0-9{])"), r"\\frac{\1}"),
    (re.compile(r"(\\frac\{[^{}]*\})([0-9])"), r"\1{\2}"),
    (re.compile(r"\\sqrt ?([0-9a-zA-Z])"), r"\\sqrt{\1}"),
    (re.compile(r"([\^_])\{([0-9A-Za-z])\}"), r"\1\2"),
)
_ENDS_IN_COMMAND = re.compile(r"\\[A-Za-z]+$")
_AND = re.compile(rf"(?:,\s*)?{TEXT_OPEN}\s*,?\s*(?:and|or)\s*{TEXT_CLOSE}|(?:,\s*)?(?<![a-z\\])(?:and|or)(?![a-z])")


def tidy(text: str) -> str:
    """One spelling: signs, spacing, fractions, brackets, words. Raises nothing for any text."""
    if not text.isascii():
        text = _ascii(text)
    text = text.replace("\\\\", ROW).replace("\\$", "").replace("$", "")
    text = re.sub(r",\s+\\!\s*(?=[0-9]{3}(?![0-9]))", ",", text)
    text = _GROUPING.sub(",", text)
    text = re.sub(r"\\[(\[]|\\[)\]]", "", text) if re.match(r"\s*\\[(\[]", text) else text
    text = text.replace("\\{", SET_OPEN).replace("\\}", SET_CLOSE).replace("\\%", "%").replace("\\|", "\\mid ")
    text = re.sub(r"\\[!]", "", re.sub(r"\\[,;:> ]|~", " ", text))
    while (plain := _TEXT.sub(_word, text)) != text:
        text = plain
    text = _COMMAND.sub(_command, text)
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?", "\\\\circ ", text)
    text = _SPACED.sub(",", " ".join(text.split()))
    return text.strip().rstrip(".,;").strip()


def _ascii(text: str) -> str:
    """Signs of their own as LaTeX, and every letter and digit in its plain form."""
    for sign, latex in _SIGNS.items():
        text = text.replace(sign, latex)
    return unicodedata.normalize("NFKC", "".join(_vulgar(character) for character in text))


def _vulgar(character: str) -> str:
    """A fraction that is one sign as LaTeX, so that what stands before it is not taken for its numerator."""
    if not unicodedata.decomposition(character).startswith("<fraction>"):
        return character
    top, _, bottom = unicodedata.normalize("NFKC", character).partition("\u2044")
    return f"\\frac{{{top}}}{{{bottom}}}"


def _word(match: re.Match[str]) -> str:
    inner = match[1]
    if _FUNCTIONS.fullmatch(inner):
        name = inner.strip()
        return name if len(name) == 1 else f"\\{name} "
    return f" {inner} " if TEXT_OPEN in inner else TEXT_OPEN + inner + TEXT_CLOSE


def _command(match: re.Match[str]) -> str:
    name = match[1]
    if name in _DROPPED:
        return ""
    if name in _SPACES:
        return " "
    name = _SAME.get(name, name)
    return _PLAIN.get(name, f"\\{name} ")


def compact(text: str) -> str:
    """Without spaces that mean nothing, and with braces where LaTeX takes one sign without them.

    A space stays between a command and a letter, and between two numbers: ``5 6`` is not 56."""
    out = ""
    for gap, token in _TOKEN.findall(text):
        letter = token[0].isalpha() and _ENDS_IN_COMMAND.search(out)
        number = gap and token[0].isdigit() and out[-1:].isdigit()
        out += f" {token}" if letter or number else token
    for pattern, braced in _BRACED:
        out = pattern.sub(braced, out)
    return out


def words(text: str) -> str:
    """A text answer for comparison: case, points, brackets around it and all spacing folded."""
    for mark in (TEXT_OPEN, TEXT_CLOSE):
        text = text.replace(mark, " ")
    text = " ".join(re.sub(r"[.\"'`]", "", text).casefold().split())
    while len(text) > 2 and text[0] == "(" and text[-1] == ")":
        text = text[1:-1].strip()
    return text.replace(" ", "")


def split(text: str, *separators: str) -> list[str]:
    """Cut at separators that stand outside all brackets; at least one part."""
    parts, start, depth, index = [], 0, 0, 0
    while index < len(text):
        character = text[index]
        depth += (character in OPENING) - (character in CLOSING)
        found = next((mark for mark in separators if text.startswith(mark, index)), None) if depth == 0 else None
        if found:
            parts.append(text[start:index])
            index += len(found)
            start = index
        else:
            index += 1
    return [part.strip() for part in [*parts, text[start:]]]


def members(text: str) -> list[str]:
    """Parts of a list, divided by commas, semicolons, *and*, *or*; ``a \\pm b`` counts as two."""
    text = _AND.sub(",", text)
    return [single for part in split(text, ",", ";") for single in _signs(part)]


def _signs(part: str) -> list[str]:
    if "\\pm" not in part and "\\mp" not in part:
        return [part]
    upper = part.replace("\\pm", "+").replace("\\mp", "-")
    lower = part.replace("\\pm", "-").replace("\\mp", "+")
    return [upper.removeprefix("+").strip(), lower.strip()]


def brackets(text: str) -> str:
    """The pair of brackets that encloses the whole text, else ``""``. Ends of an interval may be of two kinds."""
    if len(text) < 2 or text[0] not in OPENING or text[-1] not in CLOSING:
        return ""
    depth = 0
    for index, character in enumerate(text):
        depth += (character in OPENING) - (character in CLOSING)
        if depth == 0:
            return text[0] + text[-1] if index == len(text) - 1 else ""
    return ""


def matrix(text: str) -> list[list[str]] | None:
    """Cells by row of a matrix that is the whole text, else ``None``."""
    match = re.fullmatch(r"\\begin ?\{pmatrix\}(.*)\\end ?\{pmatrix\}", text.replace("bmatrix", "pmatrix"), re.DOTALL)
    if match is None or "\\begin" in match[1]:
        return None
    rows = [row for row in match[1].split(ROW) if row.strip()]
    return [[cell.strip() for cell in row.split("&")] for row in rows]
