"""Which harness files are accepted, and by what they are told apart."""

from __future__ import annotations

import pytest

from whale.errors import HarnessError
from whale.harness.validate import MAX_SOURCE_BYTES, check_source, code_hash, source_hash

GOOD = '''"""A harness."""
import re
from collections import Counter
from whale.harness import LimitReached, Session, Task


class Harness:
    """Asks once."""

    async def run(self, task: Task, session: Session) -> str:
        # one call
        reply = await session.chat([{"role": "user", "content": task.problem}])
        return reply.text
'''


def test_a_good_file_passes() -> None:
    check_source(GOOD)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("import os", "line 3: import of os"),
        ("import numpy", "line 3: import of numpy"),
        ("import whale", "line 3: import of whale"),
        ("from whale.types import Task as T", "line 3: import of whale.types"),
        ("import whale.harness.runtime", "line 3: import of whale.harness.runtime"),
        ("import importlib", "line 3: import of importlib"),
        ("from . import x", "line 3: relative import"),
        ("m = __import__('os')", "line 3: __import__"),
        ("eval('1')", "line 3: eval"),
        ("exec('1')", "line 3: exec"),
        ("f = compile", "line 3: compile"),
        ("open('x')", "line 3: open"),
        ("x = ().__class__", "line 3: attribute __class__"),
        ("x = getattr((), '__class__')", "line 3: getattr"),
        ("x = getattr((), 'a' + 'b')", "line 3: getattr"),
        ("x = __builtins__", "line 3: __builtins__"),
        ("def f(:", "line 3: invalid syntax"),
        ("return 1", "line 3: 'return' outside function"),
    ],
)
def test_a_bad_line_is_named(line: str, complaint: str) -> None:
    text = GOOD.replace("from collections import Counter", line)
    with pytest.raises(HarnessError, match="^" + complaint.replace("(", r"\(")):
        check_source(text)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("class Harness", "class Other", "no class Harness"),
        ("async def run", "def run", "must be `async def run"),
        ("async def run", "async def go", "no `async def run"),
        ("(self, task: Task, session: Session)", "(self, task)", r"must take \(self, task, session\)"),
        ("(self, task: Task, session: Session)", "(self, a, b, c)", r"must take \(self, task, session\)"),
    ],
)
def test_the_contract_is_checked(old: str, new: str, complaint: str) -> None:
    with pytest.raises(HarnessError, match=complaint):
        check_source(GOOD.replace(old, new))


def test_a_domain_may_allow_more_imports() -> None:
    text = GOOD.replace("import re", "import chess")
    with pytest.raises(HarnessError, match="chess"):
        check_source(text)
    check_source(text, {"chess"})


def test_tools_may_be_picked_by_name() -> None:
    check_source(GOOD.replace("reply =", "await getattr(session.tools, task.tool)(x=1)\n        reply ="))


def test_size_is_limited() -> None:
    with pytest.raises(HarnessError, match="at most 65536"):
        check_source(GOOD + "#" * MAX_SOURCE_BYTES)


@pytest.mark.parametrize("text", ["\0", "(" * 1000, "-" * 60000 + "1"])
def test_hostile_text_is_an_error_and_not_a_crash(text: str) -> None:
    with pytest.raises(HarnessError):
        check_source(text)


def test_hashes() -> None:
    same = GOOD.replace("# one call", "# another comment\n").replace('"""Asks once."""', '"""Asks."""')
    assert source_hash(same) != source_hash(GOOD)
    assert code_hash(same) == code_hash(GOOD)
    assert code_hash(GOOD.replace("user", "system")) != code_hash(GOOD)
    assert len(code_hash(GOOD)) == len(source_hash(GOOD)) == 16
