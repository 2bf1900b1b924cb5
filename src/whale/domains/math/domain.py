"""The math domain: short calculation problems, a code interpreter, a strict boxed-answer judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whale.domains.base import StatelessEpisode, ToolInputError, check_disjoint
from whale.domains.math import source, tasks_file
from whale.domains.math.catalogue import MathCatalogue
from whale.domains.math.template import seed_source
from whale.domains.math.verifier import judge, judge_flexible
from whale.domains.math.wording import DEMOS
from whale.errors import ConfigError, SandboxError
from whale.types import SPLITS, Split, Task, ToolSpec

if TYPE_CHECKING:
    from whale.harness.interpreter import PythonPool

CODE_INTERPRETER = ToolSpec(
    name="code_interpreter",
    description="Runs Python code and returns what it prints. The value of the last line is printed.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "Python code"}},
        "required": ["code"],
    },
)

_JUDGES = {"strict": judge, "flexible": judge_flexible}
_OUTPUT_BYTES = 2000  # of one observation; more would only crowd out the context


class MathDomain:
    """Implements ``whale.protocols.Domain``.

    seed: of the task generator. families: reasoning-gym dataset name -> its configuration (default
    ``source.FAMILIES``). unseen_family, unseen_config: the family that is only in split ``unseen``. sizes: tasks
    per split, missing splits keep their default. tasks_file: JSONL of your own tasks instead of the generator.
    verifier: ``strict`` (the paper's: the last box counts) or ``flexible`` (without a box the last number
    counts). isolation: level of the interpreter's sandbox. interpreter_workers, interpreter_seconds,
    interpreter_memory_mb: processes, limit of one run in seconds, address space of one run in MiB.
    """

    name = "math"
    tool_specs: Mapping[str, ToolSpec] = {"code_interpreter": CODE_INTERPRETER}
    allowed_imports: frozenset[str] = frozenset()

    def __init__(
        self,
        seed: int = 0,
        families: Mapping[str, Mapping[str, Any]] | None = None,
        unseen_family: str = source.UNSEEN_FAMILY,
        unseen_config: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int] | None = None,
        tasks_file: str | None = None,
        verifier: str = "strict",
        isolation: str = "sealed",
        interpreter_workers: int = 2,
        interpreter_seconds: float = 5.0,
        interpreter_memory_mb: int = 512,
    ) -> None:
        self._seed = seed
        self._families = dict(source.FAMILIES if families is None else families)
        default = source.UNSEEN_CONFIG if unseen_family == source.UNSEEN_FAMILY else {}
        self._unseen = {unseen_family: dict(default if unseen_config is None else unseen_config)}
        self._sizes = _sizes(sizes or {})
        self._tasks_file = Path(tasks_file) if tasks_file else None
        self._pool_options = {
            "workers": interpreter_workers,
            "isolation": isolation,
            "seconds": interpreter_seconds,
            "memory_mb": interpreter_memory_mb,
            "output_bytes": _OUTPUT_BYTES,
        }
        self._pool: PythonPool | None = None
        self._splits: Mapping[Split, Sequence[Task]] | None = None
        if verifier not in _JUDGES:
            raise ConfigError(
                f"domain math, option verifier: one of {', '.join(_JUDGES)} is expected, found {verifier!r}"
            )
        self._judge = _JUDGES[verifier]
        self.version = f"math-2-{verifier}"
        _check_families(self._families, unseen_family)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Tasks of ``split``; made and checked once. Raises DomainError."""
        if self._splits is None:
            splits = self._load()
            check_disjoint(splits)
            self._splits = splits
        return self._splits[split]

    def _load(self) -> dict[Split, list[Task]]:
        if self._tasks_file is not None:
            return tasks_file.read(self._tasks_file)
        return source.generate(self._seed, self._families, self._unseen, self._sizes, [demo.problem for demo in DEMOS])

    def open(self, task: Task) -> StatelessEpisode:
        """A fresh episode: the interpreter, and the judge with the task's reference."""
        return StatelessEpisode(partial(self._judge, reference=task.reference), {"code_interpreter": self._run_code})

    async def _run_code(self, **arguments: Any) -> str:
        code = arguments.pop("code", None)
        if arguments or not isinstance(code, str) or not code.strip():
            raise ToolInputError("code_interpreter takes one argument, code: a text that is not empty")
        if self._pool is None:
            raise SandboxError("the code interpreter is not running: call start() before the first rollout")
        return await self._pool.run(extract_code(code))

    def seed_harness(self) -> str:
        """Source of h0."""
        return seed_source()

    def catalogue(self) -> MathCatalogue:
        """Pieces for the offline search."""
        return MathCatalogue()

    def skill(self) -> str:
        """The brief for agentic proposers."""
        return files("whale.domains.math").joinpath("SKILL.md").read_text(encoding="utf-8")

    def smoke(self) -> tuple[Sequence[Task], Sequence[str]]:
        """Two toy tasks and replies that take a harness through a box, a tool call, code, an error and junk."""
        tasks = [
            Task("smoke-1", {"problem": "What is 2 + 3?"}, "5", "smoke"),
            Task("smoke-2", {"problem": "A box holds 4 rows of 6 eggs. How many eggs are there?"}, "24", "smoke"),
        ]
        return tasks, _SMOKE_REPLIES

    async def start(self) -> None:
        """Start the interpreter pool. Raises SandboxError."""
        if self._pool is None:
            from whale.harness.interpreter import PythonPool

            pool = PythonPool(**self._pool_options)  # type: ignore[arg-type]
            await pool.start()
            self._pool = pool

    async def close(self) -> None:
        """Stop the pool; safe to call twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()


_SMOKE_REPLIES = (
    "The sum is \\boxed{5}.",
    '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "4 * 6"}}\n</tool_call>',
    "4 x 6 =",
    "```python\nprint(4 * 6)\n```",
    "",
    "(2 + ",
    "Yes",
    "I do not know\nAnswer: 24",
)


def extract_code(text: str) -> str:
    """The first fenced Python block if there is one, else the text."""
    opening = text.find("```")
    if opening < 0:
        return text
    first_line, newline, rest = text[opening + 3 :].partition("\n")
    if not newline or first_line.strip().lower() not in ("", "python", "py", "python3"):
        return text
    return rest.partition("```")[0]


def _sizes(given: Mapping[str, int]) -> dict[Split, int]:
    for split, size in given.items():
        if split not in SPLITS:
            raise ConfigError(f"domain math, option sizes: unknown split {split!r}, known are {', '.join(SPLITS)}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ConfigError(f"domain math, option sizes.{split}: a number of tasks >= 0 is expected, found {size!r}")
    return {split: given.get(split, source.SIZES[split]) for split in SPLITS}


def _check_families(families: Mapping[str, Any], unseen_family: str) -> None:
    if not families:
        raise ConfigError("domain math, option families: at least one family is needed")
    if unseen_family in families:
        raise ConfigError(f"domain math, option unseen_family: {unseen_family!r} is also one of families")
