"""The catalogue of the chess domain: what it renders, what it refuses, what it may never do."""

from __future__ import annotations

import ast
import asyncio
import csv
import functools
import json
import os
import random
from pathlib import Path
from typing import Any

import chess
import pytest

from whale.domains.chess import ChessDomain
from whale.domains.chess.catalogue import ChessCatalogue
from whale.domains.chess.rows import position
from whale.domains.chess.wording import DEMOS, INSTRUCTIONS, SYSTEM
from whale.errors import DomainError
from whale.testing.catalogues import compatible_specs
from whale.types import Task

CATALOGUE = ChessCatalogue()
DATA = os.environ.get("WHALE_TEST_DATA")
MATE = Task("mate", {"fen": "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1", "last_move": "h8g8"}, ["a1a8"])


@functools.cache
def rendered() -> list[tuple[dict[str, str], str]]:
    """Every piece and every pair of pieces that go together, with the source."""
    return [(spec, CATALOGUE.render(spec)) for spec in compatible_specs(CATALOGUE)]


def opening(spec: dict[str, Any], task: Task = MATE, suffixes: bool = True) -> list[dict[str, str]]:
    """The first messages of a rendered harness."""
    space: dict[str, Any] = {}
    exec(ChessCatalogue(suffixes).render(spec), space)
    seen = json.loads(asyncio.run(ChessDomain(suffixes=suffixes).open(task).observe()))
    random.seed(1)
    messages: list[dict[str, str]] = space["Harness"]().opening(space.get("arrange", dict)(seen))
    return messages


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"form": "poem"}, "axis 'form' has no piece 'poem'"),
        ({"depth": "two"}, "axis 'depth' has no piece"),
        ({"form": "san", "moves": "hidden"}, "requires form to be one of '', 'uci'"),
        ({"form": "uci", "moves": "hidden", "view": "list_only"}, "conflicts with moves/hidden"),
        ({"parse": "first_word"}, "requires form to be one of 'san'"),
        ({"calls": {"piece": "vote", "voters": 3}}, "no parameter 'voters'"),
    ],
)
def test_bad_specs_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainError, match=message):
        CATALOGUE.render(spec)


def test_parameters_reach_the_file() -> None:
    assert "range(5)" in CATALOGUE.render({"calls": {"piece": "vote", "attempts": 5}})
    assert "range(16)" in CATALOGUE.render({"stop": {"piece": "more_turns", "turns": 16}})
    assert "max_tokens=8" in CATALOGUE.render({"form": "san", "stop": {"piece": "short", "max_tokens": 8}})
    assert "range(2)" in CATALOGUE.render({"retry": {"piece": "patient", "times": 2}})


def test_the_short_form_can_be_reached_one_piece_at_a_time() -> None:
    """Each step from h0 to the short harness for very small policies is itself a spec that fits."""
    spec: dict[str, str] = {}
    for axis, name in [
        ("form", "san"), ("demos", "turns"), ("view", "list_only"), ("stop", "one_line"), ("memory", "fresh"),
        ("retry", "patient"),
    ]:  # fmt: skip
        spec = {**spec, axis: name}
        assert not CATALOGUE.problem(spec), spec
    messages = opening(spec)
    assert [message["role"] for message in messages] == ["system", *["user", "assistant"] * len(DEMOS), "user"]
    assert messages[-1]["content"].startswith("Moves: Ra2 Ra3")
    assert "Ra8#" in messages[-1]["content"].split()
    assert messages[2]["content"] == "Rd8#"
    assert "FEN" not in str(messages)


# ---- what is shown --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "shown", "hidden"),
    [
        ({"view": "fen"}, "FEN: 6k1/5ppp", "Side to move"),
        ({"view": "drawing"}, "8 . . . . . . k .", "FEN"),
        ({"view": "squares"}, "White: Pf2 Pg2 Ph2 Ra1 Kg1\nBlack: Kg8 Pf7 Pg7 Ph7", "FEN"),
        ({"moves": "hidden"}, "FEN", "a1a8"),
        ({"moves": "one_notation"}, "a1a7 a1a8 a1b1", "Ra8"),
        ({"moves": "by_piece"}, "Rook a1: a1a2 (Ra2), a1a3 (Ra3)", "Queen"),
        ({"moves": "lines"}, "a1a7 (Ra7)\na1a8 (Ra8#)\n", "1."),
        ({"form": "number"}, "1. a1a2 (Ra2), 2. a1a3 (Ra3)", "0. a1a2"),
        ({"form": "san"}, "Ra7 Ra8# Rb1", "a1a8"),
        ({"moves": "alphabetical", "form": "san"}, "Kf1 Kh1 Ra2", "a1a8"),
        ({"system": "none"}, INSTRUCTIONS[""], "You solve"),
        ({"demos": "block", "view": "list_only", "form": "san"}, "Move: Rd8#\n\nMoves: ", "FEN"),
    ],
)
def test_views_and_lists(spec: dict[str, str], shown: str, hidden: str) -> None:
    content = opening(spec)[-1]["content"]
    assert shown in content
    assert hidden not in content


def test_a_shuffled_list_holds_the_same_moves() -> None:
    def moves(spec: dict[str, str]) -> list[str]:
        return opening({"form": "san", "view": "list_only", **spec})[-1]["content"].split()[1:]

    assert sorted(moves({"moves": "shuffled"})) == sorted(moves({}))
    assert moves({"moves": "shuffled"}) != moves({})


def test_suffixes_follow_the_domain() -> None:
    spec = {"form": "san", "demos": "turns"}
    assert "Rd8#" in str(opening(spec))
    shown = str(opening(spec, suffixes=False))
    assert "'Rd8'" in shown
    assert not any(sign in shown for sign in ("#", "+"))


# ---- demonstrations -------------------------------------------------------------------------------------------


def test_demonstrations_are_sound() -> None:
    for demo in DEMOS:
        board = chess.Board(demo.fen)
        assert board.is_valid()
        came = chess.Move.from_uci(demo.last_move)
        assert board.piece_at(came.to_square).color != board.turn  # type: ignore[union-attr]
        assert board.piece_at(came.from_square) is None
        assert not board.is_check()
        mates = []
        for move in board.legal_moves:
            board.push(move)
            mates += [move.uci()] * board.is_checkmate()
            board.pop()
        assert mates == [demo.move]


@pytest.mark.parametrize("spec", [{"form": form} if form else {} for form in INSTRUCTIONS])
def test_demonstrations_show_the_legal_moves_and_a_reply_that_is_read(spec: dict[str, str]) -> None:
    space: dict[str, Any] = {}
    exec(CATALOGUE.render({**spec, "demos": "turns"}), space)
    for demo, (seen, reply) in zip(DEMOS, space["DEMOS"], strict=True):
        board = chess.Board(demo.fen)
        unpacked = space["unpack"](seen)
        assert {move["uci"] for move in unpacked["legal"]} == {move.uci() for move in board.legal_moves}
        assert all(board.san(chess.Move.from_uci(move["uci"])) == move["san"] for move in unpacked["legal"])
        assert space["read"](reply, unpacked) == demo.move


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="WHALE_TEST_DATA is not set")
def test_no_demonstration_is_a_real_puzzle() -> None:
    shown = {position(demo.fen).split()[0] for demo in DEMOS}
    count = 0
    for path in sorted(Path(str(DATA), "chess").glob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                board = chess.Board(row["FEN"])
                for uci in row["Moves"].split():
                    assert board.board_fen() not in shown, row["PuzzleId"]
                    board.push(chess.Move.from_uci(uci))
                count += 1
                assert board.board_fen() not in shown, row["PuzzleId"]
    assert count > 1000


# ---- the policy makes the decision ----------------------------------------------------------------------------


@pytest.mark.slow
def test_no_harness_looks_for_checks_captures_or_mates() -> None:
    """Signs of a move's effect stand in no comparison, search or order; they are only stripped from both sides."""
    stripped = {'.rstrip("+#")', '.replace("x", "")'}
    for spec, source in rendered():
        for allowed in stripped:
            source = source.replace(allowed, "")
        code = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        for node in (inner for outer in code for inner in ast.walk(outer)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value not in {"#", "+", "x", "+#", "="}, spec
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"sorted", "min", "filter", "eval", "exec"}, spec
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"endswith", "choice", "sample"}, spec


def test_a_harness_plays_only_what_was_written() -> None:
    """The move that is played is what ``read`` makes of a reply: there is no other call of the tool."""
    for spec, source in rendered():
        assert source.count("session.tools.move(") == 1, spec
        assert "session.tools.move(uci=move)" in source, spec


def test_every_prompt_says_what_a_reply_must_be() -> None:
    for persona in SYSTEM:
        for form, instruction in INSTRUCTIONS.items():
            spec = {axis: name for axis, name in (("system", persona), ("form", form)) if name}
            if spec:
                assert instruction in opening(spec)[0]["content"]
