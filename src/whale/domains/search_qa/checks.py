"""Answers that must score 1 and answers that must not, for ``whale domain check`` and the tests."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from whale.domains.search_qa.verifier import TagRule, extract
from whale.domains.search_qa.wording import INSTRUCTIONS
from whale.types import Task


def gold_answer(task: Task) -> str:
    """The first reference between tags."""
    return f"<answer>{task.reference[0]}</answer>"


def junk_answers(task: Task, tag: TagRule, partial_credit: bool) -> list[str]:
    """Answers to ``task`` that must score 0: empty, untagged, unclosed, the question, many candidates at once, the
    prompt's own words, a right one taken back.

    tag: as the verifier has it; untagged answers are junk only where tags are required. partial_credit: leave out
    what shares a word with a reference. An answer that happens to equal a reference is left out.
    """
    first = str(task.reference[0])
    candidates = [
        "",
        "<answer></answer>",
        "<answer> </answer>",
        "<answer>yes or no</answer>",
        "<answer>your answer</answer>",
        INSTRUCTIONS[""],
        f"<answer>{task.inputs['question']}</answer>",
        f"<answer>{' or '.join(map(str, task.reference))} or something else</answer>",
        f"<answer>{first} or {_other(first)}</answer>",
        f"<answer>not {first}</answer>",
        f"<answer>{first}</answer> No, wait: <answer>{_other(first)}</answer>",
        f"<answer>{first}9</answer>",
    ]
    if tag == "required":
        candidates += [first, f"The answer is {first}.", f"<answer>{first}", f"{first}</answer>"]
    return [answer for answer in candidates if _is_junk(answer, task.reference, tag, partial_credit)]


def _other(answer: str) -> str:
    return "none of these" if _letters(answer) != "noneofthese" else "all of them"


def _is_junk(answer: str, references: Sequence[str], tag: TagRule, partial_credit: bool) -> bool:
    """Independent of how the verifier compares, and coarser: what this calls different must score 0."""
    text = extract(answer, tag).text
    if not text:
        return True
    if _letters(text) in {_letters(reference) for reference in references}:
        return False
    return not partial_credit or not any(_words(text) & _words(reference) for reference in references)


def _letters(text: str) -> str:
    return "".join(char for char in unicodedata.normalize("NFKC", text).casefold() if char.isalnum()) or text


def _words(text: str) -> set[str]:
    return {_letters(word) for word in re.split(r"[\W_]+", text)}
