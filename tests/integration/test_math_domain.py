"""The math domain with its real interpreter, and every harness of its catalogue in the real sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from whale.domains.base import ToolInputError
from whale.domains.catalogue import Piece
from whale.domains.math import MathDomain
from whale.domains.math.pieces import PIECES
from whale.errors import SandboxError
from whale.harness.validate import source_hash
from whale.rollout import Attempt, Setting, run_rollouts
from whale.rsft import shape
from whale.scripted import ScriptedEngine
from whale.smoke import smoke_run
from whale.testing.catalogues import compatible_specs, smoke_faults, with_requirements
from whale.types import Candidate, Limits, Outcome, Rollout, Sampling, Task

SUM = Task("sum", {"problem": "What is 2 + 3?"}, "5")
JUNK = [
    "",
    "5",
    "\\boxed{}",
    "\\boxed{five}",
    "\\boxed{6}",
    "\\boxed{5",
    "I do not know",
    "\\boxed{2 + 3}",
    "\\boxed{x}",
]


@pytest.fixture(scope="module")
def domain() -> MathDomain:
    return MathDomain()


def candidate(domain: MathDomain, spec: dict[str, str]) -> Candidate:
    source = domain.catalogue().render(spec)
    return Candidate("h", source, source_hash(source), spec=spec)


def rollout(domain: MathDomain, spec: dict[str, str], replies: Sequence[str], task: Task = SUM) -> Rollout:
    setting = Setting(ScriptedEngine(replies), domain, Sampling(), Limits(), isolation="contained", retries=0)
    return run_rollouts(setting, [Attempt(candidate(domain, spec), task, 0, 0)], 0)[0]


def test_gold_answers_score_one_and_junk_zero(domain: MathDomain) -> None:
    pytest.importorskip("reasoning_gym")

    async def score_all() -> None:
        for split in ("weights", "search", "test", "unseen"):
            for task in domain.tasks(split):
                episode = domain.open(task)
                assert (await episode.score(f"So it is \\boxed{{{task.reference}}}.")).reward == 1
                assert (await episode.score("\\boxed{123456789.5}")).reward == 0
        for junk in JUNK:
            assert (await domain.open(SUM).score(junk)).reward == 0

    asyncio.run(score_all())


def test_the_interpreter(domain: MathDomain) -> None:
    async def use() -> None:
        run = domain.open(SUM).tools["code_interpreter"]
        with pytest.raises(SandboxError, match="start"):
            await run(code="1")
        await domain.start()
        try:
            assert (await run(code="2 + 3")).strip() == "5"
            assert (await run(code="Here:\n```python\nprint(6)\n```\n```python\nprint(7)\n```")).strip() == "6"
            assert "ZeroDivisionError" in await run(code="1 / 0")
            for arguments in ({}, {"code": ""}, {"code": 3}, {"code": "1", "language": "R"}):
                with pytest.raises(ToolInputError):
                    await run(**arguments)
        finally:
            await domain.close()
            await domain.close()

    asyncio.run(use())


CALL = '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "2 + 3"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("spec", "replies", "reward", "calls"),
    [
        ({}, ["It is \\boxed{5}."], 1, 1),
        ({}, [CALL, "\\boxed{5}"], 1, 2),
        ({}, [CALL, CALL], 0, 2),
        ({}, ["five"], 0, 1),
        ({"form": "expression"}, ["2 + 3"], 1, 1),
        ({"form": "expression"}, ["2 + 3 = 6"], 0, 1),
        ({"form": "expression", "code": "normalise"}, ["2 + 3 = 6"], 1, 1),
        ({"form": "expression", "tool": "math_names"}, ["gcd(10, 25)"], 1, 1),
        ({"form": "expression", "retry": "show_error"}, ["2 +", "2 + 3"], 1, 2),
        ({"form": "expression", "calls": "vote"}, ["2 + 3", "2 + 4", "1 + 4"], 1, 3),
        ({"form": "program", "demos": "turns"}, ["```python\nprint(2 + 3)\n```"], 1, 1),
        ({"form": "equation"}, ["2 + 3 = 5"], 1, 1),
        ({"form": "answer_line", "parse": "first_line"}, ["5\nbecause"], 1, 1),
        ({"parse": "last_number"}, ["2 and 3 make 5."], 1, 1),
        ({"retry": "ask_for_box"}, ["five", "\\boxed{5}"], 1, 2),
        ({"retry": "again", "form": "direct_box"}, ["five", "\\boxed{5}"], 1, 2),
        ({"calls": "vote"}, ["\\boxed{4}", "\\boxed{5}", "\\boxed{5}"], 1, 3),
        ({"calls": "confirm"}, ["\\boxed{4}", "no", "\\boxed{5}"], 1, 3),
        ({"calls": "plan", "form": "expression"}, ["Add them.", "2 + 3"], 1, 2),
        ({"stop": "more_turns"}, [CALL, CALL, CALL, "\\boxed{5}"], 1, 4),
    ],
)
def test_mechanisms(domain: MathDomain, spec: dict[str, str], replies: list[str], reward: float, calls: int) -> None:
    result = rollout(domain, spec, replies)
    assert result.outcome in (Outcome.SCORED, Outcome.NO_ANSWER), result.detail
    assert (result.reward, result.turns) == (reward, calls)


def test_a_call_that_cannot_be_read_becomes_an_observation(domain: MathDomain) -> None:
    """A lost brace: the turn counts, the policy is told, what it sampled stays, and the step's figures show it."""
    broken = CALL.replace("}}", "}")
    found = rollout(domain, {}, [broken, "\\boxed{5}"])
    assert (found.reward, found.turns, found.tools) == (1, 2, ())
    first, second = found.calls
    assert first.tool_calls[0].error
    spliced = first.context + first.sampled
    assert second.context[: len(spliced)] == spliced
    assert first.tool_calls[0].error in bytes(second.context[len(spliced) :]).decode()
    assert shape([found])["tool_parse_errors"] == 1


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: f"{piece.axis}-{piece.name}")
def test_every_piece_survives_the_smoke_run(domain: MathDomain, piece: Piece) -> None:
    spec = with_requirements(domain.catalogue(), piece)
    assert spec is not None
    assert smoke_run(domain, candidate(domain, spec), Limits(), "contained") is None


@pytest.mark.slow
def test_every_compatible_pair_survives_the_smoke_run(domain: MathDomain) -> None:
    catalogue = domain.catalogue()
    specs = compatible_specs(catalogue)
    good = (Outcome.SCORED, Outcome.NO_ANSWER, Outcome.LIMIT)
    faults = smoke_faults(domain, [catalogue.render(spec) for spec in specs], Limits(), good)
    assert not [(specs[number], rollout.detail) for number, rollout in faults]
