"""The math domain's side of ``whale data prepare``: competition and school problems from their public sets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from whale.domains.data.source import HubFile, RowError, Source
from whale.domains.math.answers import LONGEST
from whale.domains.math.verifier import last_box
from whale.types import Split, Task

_AIME_2025 = tuple(f"hf://datasets/opencompass/AIME2025/aime2025-{part}.jsonl" for part in ("I", "II"))

DAPO = Source("dapo", ("weights", "search"), HubFile("koajoel/DAPO-Math-17k-dedup"), rows=17_917)
"""DAPO-Math-17k with each problem once; the original set, ``BytedTsinghua-SIA/DAPO-Math-17k``, repeats every row a
hundred times. Local files may have any of its layouts."""

AIME = (
    Source("aime_2024", ("test",), HubFile("HuggingFaceH4/aime_2024"), rows=30),
    Source("aime_2025", ("test",), HubFile("json", files=_AIME_2025), rows=30),
)
SCHOOL = (
    Source("gsm8k_train", ("weights", "search"), HubFile("openai/gsm8k", "main"), 7_473, default=False),
    Source("math_train", ("weights", "search"), HubFile("zwhe99/MATH"), 7_500, default=False),
    Source("gsm8k_test", ("test",), HubFile("openai/gsm8k", "main", "test"), 1_319, default=False),
    Source("math_500", ("test",), HubFile("HuggingFaceH4/MATH-500", split="test"), 500, default=False),
)

_HEAD = re.compile(
    r"\s*Solve the following math problem step by step\..{0,200}?is the answer to the problem\.\s*", re.DOTALL
)
_TAIL = re.compile(
    r"\s*(?:Remember to put your answer on its own line after \"Answer:\".{0,80}|"
    r"\u8ba9\u6211\u4eec\u4e00\u6b65\u4e00\u6b65\u5730\u601d\u8003\u3002\u8bf7\u4ee5.{0,5}Answer:.{0,200})\s*\Z",
    re.DOTALL,
)
_DAMAGED = {"\x0c": "\\f", "\x08": "\\b", "\x0b": "\\v", "\x07": "\\a"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x0c\x0e-\x1f]+")
_FINAL = re.compile(r"####\s*(\S[^\n]*?)\s*\Z")


class MathPreparer:
    """Implements ``whale.domains.data.source.Preparer``. Without a choice it takes the paper's sets from the hub:
    DAPO-Math-17k for weights and search, AIME 2024 and 2025 as test; GSM8K and MATH where they are named or given."""

    domain = "math"
    version = "math-1"
    sources: Sequence[Source] = (DAPO, *AIME, *SCHOOL)
    sizes: Mapping[Split, int | None] = {"weights": None, "search": 256, "test": None}

    def task(self, source: Source, number: int, row: Mapping[str, Any]) -> Task:
        """The problem of a row without what a wrapper asks about the form of the answer. Raises RowError."""
        problem, answer = _problem(row), _answer(row)
        return Task(_name(source, number, row), {"problem": problem}, answer, source.name)


def _name(source: Source, number: int, row: Mapping[str, Any]) -> str:
    info = row.get("extra_info")
    own = row.get("id", row.get("unique_id", info.get("index") if isinstance(info, Mapping) else None))
    name = str(number if own is None or not str(own).strip() else own)
    return name if name.startswith(source.name) else f"{source.name}-{name}"


def _problem(row: Mapping[str, Any]) -> str:
    """Columns ``problem`` or ``question``, or ``prompt``: a text, or a chat whose first message holds it."""
    given = next((row[name] for name in ("problem", "question", "prompt") if row.get(name)), None)
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = given[0].get("content") if len(given) == 1 and isinstance(given[0], Mapping) else None
    if not isinstance(given, str):
        raise RowError("no problem")
    text = _TAIL.sub("", _HEAD.sub("", given, count=1)).strip()
    for sign, escape in _DAMAGED.items():  # \frac read as an escape somewhere on the way
        text = re.sub(re.escape(sign) + r"(?=[a-z])", re.escape(escape), text)
    text = _CONTROL.sub(" ", text)
    if not text:
        raise RowError("empty problem")
    return text


def _answer(row: Mapping[str, Any]) -> str:
    answer = _find_answer(row)
    if answer is None or isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise RowError("no answer")
    text = str(answer).strip()
    if not text:
        raise RowError("empty answer")
    if len(text) > LONGEST:
        raise RowError(f"answer of more than {LONGEST} characters")
    if last_box(f"\\boxed{{{text}}}") != text:
        raise RowError("answer with an unmatched brace")
    return text


def _find_answer(row: Mapping[str, Any]) -> object:
    """The column of one of the known layouts; a worked solution's last line or last box where there is none."""
    judged = row.get("reward_model")
    if isinstance(judged, Mapping):
        return judged.get("ground_truth")
    for name in ("final_answer", "expected_answer", "answer", "solution"):
        value = row.get(name)
        if value is None:
            continue
        if name in ("answer", "solution") and isinstance(value, str):
            if final := _FINAL.search(value):
                return final[1].replace(",", "")
            if name == "solution" and "boxed" in value:
                return last_box(value)
        return value
    return None
