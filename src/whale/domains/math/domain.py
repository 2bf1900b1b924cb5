"""The math domain: calculation problems or public sets, a code interpreter, a judge of boxed answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from whale.domains.base import SplitTasks, StatelessEpisode, ToolInputError, check_sizes
from whale.domains.math import checks, source, tasks_file
from whale.domains.math.catalogue import MathCatalogue
from whale.domains.math.judging import MODES, Judge
from whale.domains.math.template import seed_source
from whale.domains.math.wording import DEMOS
from whale.errors import ConfigError, SandboxError
from whale.types import SPLITS, Split, Task, ToolSpec, Verdict

if TYPE_CHECKING:
    from whale.protocols import Episode

CODE_INTERPRETER = ToolSpec(
    name="code_interpreter",
    description="Runs Python code and returns what it prints. The value of the last line is printed.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "Python code"}},
        "required": ["code"],
    },
)

_OUTPUT_BYTES = 2000  # of one observation; more would only crowd out the context


class Interpreter(Protocol):
    """What runs the policy's code: a pool of processes here, or a client of a server."""

    async def start(self) -> None: ...

    async def run(self, code: str) -> str: ...

    async def close(self) -> None: ...


class MathDomain(SplitTasks):
    """Implements ``whale.protocols.Domain`` and ``Checkable``.

    seed: of the task generator. families: reasoning-gym dataset name -> its configuration (default
    ``source.FAMILIES``). unseen_family, unseen_config: the family that is only in split ``unseen``. sizes: tasks
    per split, missing splits keep their default. tasks_file: JSONL of your own tasks instead of the generator.
    data: folder that ``whale data prepare math`` wrote, instead of both. verifier: ``strict`` (the paper's: the last
    box counts), ``flexible`` (without a box the last number counts) or ``lenient`` (before that, what "the answer
    is" says). formulas: compare formulas and not only numbers and words (default: with ``data``). formula_seconds,
    formula_memory_mb: limits of one comparison by algebra. isolation: level of the interpreter's sandbox.
    interpreter: ``local``, or the address of a server that speaks the SandboxFusion protocol. interpreter_workers,
    interpreter_seconds, interpreter_memory_mb: runs at the same time, limit of one run in seconds, address space of
    one run in MiB (a server has its own).
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
        data: str | None = None,
        verifier: str = "strict",
        formulas: bool | None = None,
        formula_seconds: float = 5.0,
        formula_memory_mb: int = 2048,
        isolation: str = "sealed",
        interpreter: str = "local",
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
        self._data = Path(data) if data else None
        if self._data and self._tasks_file:
            raise ConfigError("domain math: options data and tasks_file exclude each other; give one of them")
        self._address = _address(interpreter)
        self._pool_options = {
            "workers": interpreter_workers,
            "isolation": isolation,
            "seconds": interpreter_seconds,
            "memory_mb": interpreter_memory_mb,
            "output_bytes": _OUTPUT_BYTES,
        }
        self._interpreter: Interpreter | None = None
        if verifier not in MODES:
            raise ConfigError(
                f"domain math, option verifier: one of {', '.join(MODES)} is expected, found {verifier!r}"
            )
        self._formulas = bool(data) if formulas is None else formulas
        _check_formula_limits(formula_seconds, formula_memory_mb)
        self._judge = Judge(verifier, self._formulas, formula_seconds, formula_memory_mb)
        self.version = f"math-2-{verifier}" + ("-formulas1" if self._formulas else "")
        _check_families(self._families, unseen_family)

    def _load(self) -> dict[Split, list[Task]]:
        if self._tasks_file is not None:
            return tasks_file.read(self._tasks_file)
        if self._data is not None:
            from whale.domains.data.prepared import read_prepared

            return read_prepared(self._data, "math")
        return source.generate(self._seed, self._families, self._unseen, self._sizes, [demo.problem for demo in DEMOS])

    def open(self, task: Task) -> StatelessEpisode:
        """A fresh episode: the interpreter, and the judge with the task's reference."""
        return StatelessEpisode(partial(self._judge, reference=task.reference), {"code_interpreter": self._run_code})

    async def _run_code(self, **arguments: Any) -> str:
        code = arguments.pop("code", None)
        if arguments or not isinstance(code, str) or not code.strip():
            raise ToolInputError("code_interpreter takes one argument, code: a text that is not empty")
        if self._interpreter is None:
            raise SandboxError("the code interpreter is not running: call start() before the first rollout")
        return await self._interpreter.run(extract_code(code))

    def gold(self, task: Task) -> str:
        """The reference in a box."""
        return f"\\boxed{{{task.reference}}}"

    def junk(self, task: Task) -> Sequence[str]:
        """Near misses and answers that only look like some."""
        return checks.junk(task)

    async def submit(self, episode: Episode, answer: str) -> Verdict:
        """What ``answer`` earns."""
        return await episode.score(answer)

    def seed_harness(self) -> str:
        """Source of h0."""
        return seed_source()

    def catalogue(self) -> MathCatalogue:
        """Pieces for the offline search."""
        return MathCatalogue()

    def smoke(self) -> tuple[Sequence[Task], Sequence[str]]:
        """Two toy tasks and replies that take a harness through a box, a tool call, code, an error and junk."""
        tasks = [
            Task("smoke-1", {"problem": "What is 2 + 3?"}, "5", "smoke"),
            Task("smoke-2", {"problem": "A box holds 4 rows of 6 eggs. How many eggs are there?"}, "24", "smoke"),
        ]
        return tasks, _SMOKE_REPLIES

    async def start(self) -> None:
        """Start the interpreter. Raises SandboxError."""
        if self._interpreter is None:
            interpreter = self._make_interpreter()
            await interpreter.start()
            self._interpreter = interpreter

    def _make_interpreter(self) -> Interpreter:
        options: dict[str, Any] = dict(self._pool_options)
        if self._address:
            from whale.harness.sandbox_fusion import SandboxFusion

            own = ("isolation", "memory_mb")  # of a local sandbox; a server has its own
            return SandboxFusion(self._address, **{name: options[name] for name in options if name not in own})
        from whale.harness.interpreter import PythonPool

        return PythonPool(**options)

    async def close(self) -> None:
        """Stop the interpreter and the algebra processes; safe to call twice."""
        interpreter, self._interpreter = self._interpreter, None
        self._judge.close()
        if interpreter is not None:
            await interpreter.close()


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
    check_sizes("math", given)
    return {split: given.get(split, source.SIZES[split]) for split in SPLITS}


def _address(interpreter: str) -> str:
    """The server's address, ``""`` for the local interpreter."""
    if interpreter == "local":
        return ""
    if not interpreter.startswith(("http://", "https://")):
        raise ConfigError(
            f"domain math, option interpreter: local or the address of a server (http://...) is expected, found "
            f"{interpreter!r}"
        )
    return interpreter


def _check_formula_limits(seconds: float, memory_mb: int) -> None:
    if seconds <= 0:
        raise ConfigError(f"domain math, option formula_seconds: a number above 0 is expected, found {seconds:g}")
    if memory_mb < 512:
        raise ConfigError(f"domain math, option formula_memory_mb: at least 512 is expected, found {memory_mb}")


def _check_families(families: Mapping[str, Any], unseen_family: str) -> None:
    if not families:
        raise ConfigError("domain math, option families: at least one family is needed")
    if unseen_family in families:
        raise ConfigError(f"domain math, option unseen_family: {unseen_family!r} is also one of families")
