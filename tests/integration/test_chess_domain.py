"""The chess domain in the real sandbox: h0, the pieces of its catalogue, and every real puzzle on its board."""

from __future__ import annotations

import asyncio
import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from whale.domains.catalogue import Piece
from whale.domains.chess import ChessDomain, rows
from whale.domains.chess.pieces import PIECES
from whale.domains.data.source import RowError
from whale.harness.validate import source_hash
from whale.rollout import Attempt, Setting, run_rollouts
from whale.scripted import ScriptedEngine
from whale.smoke import smoke_run
from whale.testing.catalogues import compatible_specs, smoke_faults, with_requirements
from whale.types import Candidate, Limits, Outcome, Rollout, Sampling, Task

MATE = Task("mate", {"fen": "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1", "last_move": "h8g8"}, ["a1a8"])
LONG = Task("long", {"fen": "5k2/8/8/8/8/7K/R7/1R6 w - - 0 1", "last_move": "e7f8"}, ["a2a7", "f8g8", "b1b8"])
SHORT = {"form": "san", "demos": "turns", "view": "list_only", "stop": "one_line", "memory": "fresh"}
DATA = os.environ.get("WHALE_TEST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="WHALE_TEST_DATA is not set")


@pytest.fixture(scope="module")
def domain() -> ChessDomain:
    return ChessDomain()


def candidate(domain: ChessDomain, spec: dict[str, str]) -> Candidate:
    source = domain.catalogue().render(spec)
    return Candidate("h", source, source_hash(source), spec=spec)


def rollout(
    domain: ChessDomain, spec: dict[str, str], replies: Sequence[str], task: Task = MATE, limits: Limits | None = None
) -> Rollout:
    limits = limits or Limits(turns=18, context_tokens=8192)
    setting = Setting(ScriptedEngine(replies), domain, Sampling(), limits, isolation="contained", retries=0)
    return run_rollouts(setting, [Attempt(candidate(domain, spec), task, 0, 0)], 0)[0]


def tag(*moves: str) -> list[str]:
    return [f"<move>{move}</move>" for move in moves]


@pytest.mark.parametrize(
    ("task", "replies", "reason", "calls"),
    [
        (MATE, tag("a1a8"), "right", 1),
        (MATE, ["First <move>a1a7</move>, no: <move> a1a8 </move>."], "right", 1),
        (MATE, tag("g1f1"), "wrong_move", 1),
        (MATE, ["a1a8", *tag("a1a8")], "right", 2),
        (MATE, ["a1a8", "a1a8"], "bad_format", 2),
        (MATE, tag("a1b8", "a1a8"), "right", 2),
        (MATE, tag("a1b8", "a1b8", "a1a8"), "illegal_move", 2),
        (MATE, ["a1a8", *tag("a1b8", "a1a8")], "right", 3),
        (MATE, tag("Ra8#", "a1a8"), "right", 2),
        (LONG, tag("a2a7", "b1b8"), "right", 2),
        (LONG, ["?", *tag("a2a7", "a2a7", "b1b8")], "right", 4),
        (LONG, tag("a2a7", "h3g3"), "wrong_move", 2),
        (LONG, tag("h3g3", "a2a7", "b1b8"), "wrong_move", 1),
    ],
)
def test_the_seed_harness(domain: ChessDomain, task: Task, replies: list[str], reason: str, calls: int) -> None:
    result = rollout(domain, {}, replies, task)
    assert result.outcome is Outcome.SCORED, result.detail
    assert (result.reason, result.reward, result.turns) == (reason, float(reason == "right"), calls)


def test_what_the_seed_harness_shows(domain: ChessDomain) -> None:
    result = rollout(domain, {}, ["?", *tag("a2a7", "a1b8", "b1b8")], LONG)
    system, first, _, nudge, _, second, _, illegal = (str(m["content"]) for m in result.calls[-1].messages)
    assert "<move>uci</move>" in system
    for part in ("Side to move: white", "FEN: 5k2/8/8/8/8/7K/R7/1R6 w", "8 . . . . . k . .", "last move: e7f8"):
        assert part in first
    assert "moves so far: none" in first
    assert "a2a7 (Ra7)" in first
    assert nudge.startswith("No move could be read")
    assert "moves so far: a2a7" in second
    assert "last move: f8g8" in second
    assert illegal.startswith("That move is not legal")
    assert result.answer == "a2a7 b1b8"


def test_the_seed_harness_stops_after_nine_turns(domain: ChessDomain) -> None:
    moves = ["b1b2", "b2b1"] * 10
    replies = ["f8e8", "e8f8"] * 10
    line = [move for pair in zip(moves, replies, strict=True) for move in pair][:19]
    task = Task("endless", LONG.inputs, line)
    result = rollout(domain, {}, tag(*moves), task)
    assert (result.turns, result.reason, result.reward) == (9, "unfinished", 0)
    assert rollout(domain, {"stop": "more_turns"}, tag(*moves), task).reason == "right"


@pytest.mark.parametrize(
    ("spec", "task", "replies", "reason", "calls"),
    [
        (SHORT, MATE, ["Ra8#"], "right", 1),
        (SHORT, MATE, ["Ra8 because"], "bad_format", 2),
        (SHORT, LONG, ["Ra7", "Rb8#"], "right", 2),
        ({**SHORT, "retry": "patient"}, MATE, ["Qh7#", "Ke9", "Kg9", "Ra8"], "right", 4),
        ({**SHORT, "retry": "patient"}, MATE, ["Qh7#"] * 8, "bad_format", 8),
        ({**SHORT, "parse": "first_word"}, MATE, ["Ra8 because"], "right", 1),
        ({"form": "san", "parse": "last_word"}, MATE, ["Ra7? No: Ra8."], "right", 1),
        ({"form": "san", "retry": "again"}, MATE, ["Rook", "Ra8"], "right", 2),
        ({"form": "uci"}, MATE, ["a1a8"], "right", 1),
        ({"form": "uci", "moves": "hidden", "retry": "show_moves"}, MATE, ["a1b8", "a1a8"], "right", 2),
        ({"form": "uci", "view": "squares", "retry": "explain"}, MATE, ["a1b8", "a1a8"], "right", 2),
        ({"form": "number"}, MATE, ["7."], "right", 1),
        ({"form": "number", "moves": "by_piece"}, MATE, ["99", "7"], "right", 2),
        ({"parse": "untagged"}, MATE, ["I play a1a8."], "right", 1),
        ({"stop": "closing_tag"}, MATE, ["<move>a1a8</move> and so on"], "right", 1),
        ({"calls": "vote"}, MATE, tag("a1a7", "a1a8", "a1a8"), "right", 3),
        ({"calls": "vote", "form": "san"}, MATE, ["", "Ra8", ""], "right", 3),
        ({"calls": "plan"}, MATE, ["Attack the king.", *tag("a1a8")], "right", 2),
        ({"calls": "shortlist", "form": "san"}, LONG, ["Ra7", "Ra7", "Rb8", "Rb8#"], "right", 4),
        ({"calls": "confirm"}, MATE, [*tag("g1f1"), "No.", *tag("a1a8")], "right", 3),
        ({"calls": "confirm"}, MATE, [*tag("a1a8"), "Yes"], "right", 2),
        ({"memory": "notes"}, LONG, tag("a2a7", "b1b8"), "right", 2),
        ({"memory": "fresh", "demos": "single"}, LONG, tag("a2a7", "b1b8"), "right", 2),
    ],
)
def test_mechanisms(
    domain: ChessDomain, spec: dict[str, str], task: Task, replies: list[str], reason: str, calls: int
) -> None:
    result = rollout(domain, spec, replies, task)
    assert result.outcome is Outcome.SCORED, result.detail
    assert (result.reason, result.reward, result.turns) == (reason, float(reason == "right"), calls)


def test_what_mechanisms_show(domain: ChessDomain) -> None:
    def last(spec: dict[str, str], replies: list[str], task: Task = MATE) -> list[str]:
        return [str(m["content"]) for m in rollout(domain, spec, replies, task).calls[-1].messages]

    assert "Legal moves: a1a2 a1a3" not in last({"form": "uci", "moves": "hidden"}, ["a1b8", "a1a8"])[-1]
    assert "a1a8 (Ra8#)" in last({"form": "uci", "moves": "hidden", "retry": "show_moves"}, ["a1b8", "a1a8"])[-1]
    assert last({"retry": "explain"}, tag("a1b8", "a1a8"))[-1].startswith("illegal: a1b8 is not a legal move here.")
    assert len(last({"retry": "again"}, tag("a1b8", "a1a8"))) == 2
    assert len(last({"memory": "fresh"}, tag("a2a7", "b1b8"), LONG)) == 2
    notes = last({"memory": "notes"}, tag("a2a7", "b1b8"), LONG)
    assert notes[-1].startswith("So far: opponent e7f8, you a2a7, opponent f8g8\n\n")
    assert last({"calls": "plan"}, ["Attack.", *tag("a1a8")])[-1].startswith("Idea: Attack.\n\nSide to move")


def test_a_harness_cannot_try_moves_out(domain: ChessDomain) -> None:
    source = """
import json
class Harness:
    async def run(self, task, session) -> str:
        seen = json.loads(await session.tools.observe())
        for move in seen["legal"]:
            await session.tools.move(uci=move["uci"])
        return "a1a8"
"""
    setting = Setting(ScriptedEngine([""]), domain, Sampling(), Limits(), isolation="contained", retries=0)
    result = run_rollouts(setting, [Attempt(Candidate("h", source, source_hash(source)), MATE, 0, 0)], 0)[0]
    assert (result.outcome, result.reward, result.reason) == (Outcome.SCORED, 0, "wrong_move")
    assert result.tools[-1].error.startswith("over:")


def test_a_broken_puzzle_is_no_wrong_answer(domain: ChessDomain) -> None:
    result = rollout(domain, {}, tag("a1a8"), Task("broken", MATE.inputs, ["a1b8"]))
    assert (result.outcome, result.reward) == (Outcome.INFRA_ERROR, None)
    assert "puzzle broken" in result.detail


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: f"{piece.axis}-{piece.name}")
def test_every_piece_survives_the_smoke_run(domain: ChessDomain, piece: Piece) -> None:
    spec = with_requirements(domain.catalogue(), piece)
    assert spec is not None
    limits = Limits(turns=18, context_tokens=16_384, assistant_tokens=8192)
    assert smoke_run(domain, candidate(domain, spec), limits, "contained") is None


@pytest.mark.slow
def test_every_compatible_pair_survives_the_smoke_run(domain: ChessDomain) -> None:
    catalogue = domain.catalogue()
    specs = compatible_specs(catalogue)
    limits = Limits(turns=18, context_tokens=32_768)
    faults = smoke_faults(domain, [catalogue.render(spec) for spec in specs], limits, (Outcome.SCORED, Outcome.LIMIT))
    assert not [(specs[number], rollout.detail) for number, rollout in faults]


# ---- real puzzles ---------------------------------------------------------------------------------------------


def real_rows() -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for path in sorted(Path(str(DATA), "chess").glob("*.csv")):
        with path.open(newline="") as file:
            found += csv.DictReader(file)
    return found


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_real_puzzles_are_solved_by_their_solutions(domain: ChessDomain) -> None:
    async def solve(task: Task) -> str:
        verdict = await domain.submit(domain.open(task), domain.gold(task))
        return verdict.reason if verdict.reward == 1 else f"{task.id}: {verdict.reason}"

    async def solve_all(tasks: Sequence[Task]) -> set[str]:
        return {await solve(task) for task in tasks}

    tasks, left_out = [], {}
    for row in real_rows():
        try:
            tasks.append(rows.task(row))
        except RowError as error:
            left_out[row["PuzzleId"]] = str(error)
    assert set(left_out.values()) <= {"more than 9 moves to find"}
    assert len(tasks) + len(left_out) == len(real_rows()) == 17_181
    assert len(left_out) == 5
    assert asyncio.run(solve_all(tasks[::8])) == {"right"}  # `whale domain check chess` plays them all


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"strict": True, "san": True}], ids=["default", "strict-san"])
def test_junk_scores_nothing_on_real_puzzles(options: dict[str, bool]) -> None:
    path = str(Path(str(DATA), "chess", "lichess_puzzles.csv"))
    domain = ChessDomain(puzzles=path, sizes={"weights": 200, "search": 20, "test": 20}, **options)

    async def rewards(task: Task) -> list[float | None]:
        answers = domain.junk(task)
        return [(await domain.submit(domain.open(task), answer)).reward for answer in answers]

    for split in ("weights", "search", "test"):
        for task in domain.tasks(split):  # type: ignore[arg-type]
            assert set(asyncio.run(rewards(task))) == {0}, task.id


@needs_data
@pytest.mark.slow
def test_real_puzzles_in_rollouts(domain: ChessDomain) -> None:
    """A policy that knows the lines solves them through h0; the trace holds nothing but what was shown."""
    path = str(Path(str(DATA), "chess", "lichess_puzzles.csv"))
    found = ChessDomain(puzzles=path, sizes={"weights": 24, "search": 4, "test": 4}).tasks("weights")
    lines = {
        (task.inputs["fen"], i): task.reference[2 * i]
        for task in found
        for i in range(9)
        if 2 * i < len(task.reference)
    }

    def reply(context: str, seed: int) -> str:
        first = context.split("FEN: ")[1].split("\n")[0]
        return f"<move>{lines[first, context.count('assistant: ') - 1]}</move>"

    limits = Limits(turns=18, context_tokens=32_768)
    setting = Setting(ScriptedEngine(reply), domain, Sampling(), limits, isolation="contained", retries=0)
    results = run_rollouts(setting, [Attempt(candidate(domain, {}), task, 0, 0) for task in found], 0)
    assert {result.reason for result in results} == {"right"}
    assert [result.turns for result in results] == [len(task.reference[::2]) for task in found]
    assert all(json.dumps(task.reference) not in json.dumps(dict(task.inputs)) for task in found)
