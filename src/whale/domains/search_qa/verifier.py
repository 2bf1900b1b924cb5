"""Reads the answer out of its tags and compares it with the references: exact match and token F1, no key needed.

Only the text that the harness returns is judged, never the prompt or a tool's output. Both sides are normalised alike;
a task without a reference is ``unscorable``, never right.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from whale.types import Outcome, Verdict

TagRule = Literal["required", "optional"]

MAX_WORDS = 50
"""Words of an answer at most; a longer one is only right where it equals a reference. The longest reference known in
the public sets has 29."""

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE | re.ASCII)
_ARTICLES = frozenset({"a", "an", "the"})
_YES_NO = frozenset({"yes", "no"})
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_BETWEEN_DIGITS = re.compile(r"(?<=\d)[.,:](?=\d)")
_MINUS = re.compile(r"(?<!\S)[-\u2212](?=[.]?\d)")
_SHARP = re.compile(r"(?<=[^\W\d_])#")
_SPACE_BETWEEN = re.compile(r"[-/_\u2010-\u2015\u2212]|(?<=\d)[^\w\s](?=\d)")


@dataclass(frozen=True)
class Extracted:
    """The answer found in a returned text, or why there is none (``no_answer_tag``, ``empty_answer``)."""

    text: str
    fault: str = ""


def extract(returned: str, tag: TagRule = "required") -> Extracted:
    """The text inside the last complete ``<answer>...</answer>``; with ``tag="optional"`` a text without any complete
    pair is read whole."""
    found, start = None, None
    for match in _TAG.finditer(returned):
        if not match[1]:
            start = match.end()
        elif start is not None:
            found, start = returned[start : match.start()], None
    if found is None:
        if tag == "required":
            return Extracted("", "no_answer_tag")
        found = returned
    text = found.strip()
    return Extracted(text) if text else Extracted("", "empty_answer")


@lru_cache(maxsize=4096)  # the references of a task are met once per rollout
def normalise(text: str) -> str:
    """Compatibility forms, case, punctuation, articles and spacing folded; empty only for blank text.

    Signs between digits stay (8.54 is not 854), thousands separators go, a minus stays. An article counts as one only
    before a different word, so that ``Vitamin A`` keeps its letter and ``The The`` its name. A text of nothing but
    punctuation stays as it is.
    """
    folded = text.casefold()
    if not folded.isascii():
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        folded = "".join(char for char in folded if unicodedata.category(char) != "Cf")
    words = _without_punctuation(folded).split()
    kept = [word for word, following in itertools.pairwise([*words, ""]) if not _is_article(word, following)]
    return " ".join(kept) or " ".join(folded.split())


def _is_article(word: str, following: str) -> bool:
    return word in _ARTICLES and following not in ("", word)


def _without_punctuation(text: str) -> str:
    text = _THOUSANDS.sub("", text.replace("&", " and "))
    kept = {match.start() for pattern in (_BETWEEN_DIGITS, _MINUS, _SHARP) for match in pattern.finditer(text)}
    spaces = {match.start() for match in _SPACE_BETWEEN.finditer(text)}
    characters = []
    for place, char in enumerate(text):
        if char.isalnum():
            characters.append(char)
        elif place in kept:
            characters.append("-" if char == "\u2212" else char)
        elif place in spaces:
            characters.append(" ")
        elif not _is_punctuation(char):
            characters.append(char)
    return "".join(characters)


def _is_punctuation(char: str) -> bool:
    category = unicodedata.category(char)
    return category.startswith("P") or category in ("Sc", "Sk") or char in "|~<>="


def is_right(answer: str, references: Sequence[str]) -> bool:
    """True if ``answer`` equals one of ``references`` after normalisation."""
    folded = normalise(answer)
    return folded != "" and any(folded == normalise(reference) for reference in references)


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Largest F1 of shared words over the references, in [0, 1]. ``yes`` and ``no`` only match themselves."""
    return max((_f1(normalise(answer), normalise(reference)) for reference in references), default=0.0)


def _f1(answer: str, reference: str) -> float:
    if answer == reference:
        return 1.0 if answer else 0.0
    if answer in _YES_NO or reference in _YES_NO:
        return 0.0
    said, wanted = answer.split(), reference.split()
    shared = sum((Counter(said) & Counter(wanted)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(said), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def screen(returned: str, references: Sequence[str], tag: TagRule) -> tuple[Extracted, Verdict | None]:
    """What every verifier decides alike: the answer, and its verdict where no further look is needed (no reference, no
    answer, an exact match, too long)."""
    answer = extract(returned, tag)
    if not any(reference.strip() for reference in references):
        return answer, Verdict(None, "no_reference", Outcome.UNSCORABLE)
    if answer.fault:
        return answer, Verdict(0.0, answer.fault)
    if is_right(answer.text, references):
        return answer, Verdict(1.0, "right")
    if len(answer.text.split()) > MAX_WORDS:
        return answer, Verdict(0.0, "too_long")
    return answer, None


def exact(returned: str, references: Sequence[str], tag: TagRule = "required") -> Verdict:
    """Reward 1 for an exact match, else 0. Reasons: ``right``, ``wrong``, ``no_answer_tag``, ``empty_answer``,
    ``too_long``; without a reference the outcome is ``unscorable`` and the reward ``None``."""
    _, verdict = screen(returned, references, tag)
    return verdict or Verdict(0.0, "wrong")


def f1(returned: str, references: Sequence[str], tag: TagRule = "required") -> Verdict:
    """Reward is the token F1 in [0, 1]; reasons as ``exact``, and ``partly_right`` between 0 and 1."""
    answer, verdict = screen(returned, references, tag)
    if verdict is not None:
        return verdict
    value = token_f1(answer.text, references)
    return Verdict(value, "partly_right" if value else "wrong")
