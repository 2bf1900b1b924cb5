"""The board on the host: how moves are read, what is right, and how a puzzle ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from whale.domains.base import ToolInputError
from whale.domains.chess import ChessDomain
from whale.errors import ConfigError, DomainError
from whale.types import Task, Verdict

TWO_MATES = Task("two", {"fen": "7k/6pp/8/8/8/8/8/RQ4K1 w - - 0 1", "last_move": "g8h8"}, ["a1a8"])
CASTLES = Task("castles", {"fen": "4k3/8/8/8/8/8/8/4K2R w K - 0 1", "last_move": "d8e8"}, ["e1g1"])
LONG = Task("long", {"fen": "5k2/8/8/8/8/7K/R7/1R6 w - - 0 1", "last_move": "e7f8"}, ["a2a7", "f8g8", "b1b8"])
PROMOTES = Task("promotes", {"fen": "8/4P1k1/8/8/8/8/8/4K3 w - - 0 1", "last_move": "g8g7"}, ["e7e8q"])


def play(task: Task, *moves: str, **options: Any) -> tuple[Verdict, list[str]]:
    """The verdict after ``moves``, and what each of them was answered: a status or the start of an error."""

    async def run() -> tuple[Verdict, list[str]]:
        episode = ChessDomain(**options).open(task)
        answers = []
        for uci in moves:
            try:
                answers.append(json.loads(await episode.move(uci=uci))["status"])
            except ToolInputError as error:
                answers.append(str(error).partition(":")[0])
        return await episode.score("any text"), answers

    return asyncio.run(run())


def observed(task: Task, **options: Any) -> dict[str, Any]:
    return json.loads(asyncio.run(ChessDomain(**options).open(task).observe()))


@pytest.mark.parametrize(
    ("move", "reward", "reason"),
    [("a1a8", 1, "right"), ("b1b8", 1, "right"), ("b1b7", 0, "wrong_move"), (" A1A8 ", 1, "right")],
)
def test_any_mate_on_the_spot_is_right(move: str, reward: float, reason: str) -> None:
    verdict, _ = play(TWO_MATES, move)
    assert (verdict.reward, verdict.reason) == (reward, reason)


@pytest.mark.parametrize(("move", "reward"), [("a1a8", 1), ("b1b8", 0)])
def test_strict_takes_the_listed_move_only(move: str, reward: float) -> None:
    assert play(TWO_MATES, move, strict=True)[0].reward == reward


def test_a_mate_in_the_middle_of_a_line_solves_it() -> None:
    fen = "7k/6pp/8/8/8/8/8/RQ4K1 w - - 0 1"
    slow = Task("slow", {"fen": fen, "last_move": "g8h8"}, ["b1b7", "h7h6", "a1a8"])
    assert play(slow, "a1a8")[0].reward == 1
    assert play(slow, "a1a8", strict=True)[0].reason == "wrong_move"


@pytest.mark.parametrize(
    ("move", "san", "reward", "reason"),
    [
        ("e1g1", False, 1, "right"),
        ("e1h1", False, 1, "right"),
        ("O-O", False, 0, "bad_format"),
        ("O-O", True, 1, "right"),
        ("0-0", True, 1, "right"),
        ("O-O-O", True, 0, "illegal_move"),
        ("castle", True, 0, "bad_format"),
        ("--", True, 0, "illegal_move"),
    ],
)
def test_castling_and_san(move: str, san: bool, reward: float, reason: str) -> None:
    verdict, answers = play(CASTLES, move, san=san)
    assert (verdict.reward, verdict.reason) == (reward, reason)
    if reason == "bad_format":
        assert answers == ["not_uci"]


def test_a_line_listed_as_king_takes_rook_is_the_same_move() -> None:
    listed = Task("castles", CASTLES.inputs, ["e1h1"])
    assert play(listed, "e1g1")[0].reward == 1


@pytest.mark.parametrize(
    ("move", "answer"), [("e7e8q", "solved"), ("e7e8Q", "solved"), ("e7e8r", "failed"), ("e7e8", "illegal")]
)
def test_a_promotion_needs_its_letter(move: str, answer: str) -> None:
    assert play(PROMOTES, move)[1] == [answer]


def test_the_error_of_a_promotion_says_what_is_missing() -> None:
    async def run() -> None:
        with pytest.raises(ToolInputError, match="say what the pawn becomes, such as e7e8q"):
            await ChessDomain().open(PROMOTES).move(uci="e7e8")

    asyncio.run(run())


def test_a_line_is_played_with_its_scripted_replies() -> None:
    verdict, answers = play(LONG, "a2a7", "b1b8")
    assert answers == ["playing", "solved"]
    assert (verdict.reward, verdict.reason) == (1, "right")

    async def seen() -> dict[str, Any]:
        return json.loads(await ChessDomain().open(LONG).move(uci="a2a7"))

    after = asyncio.run(seen())
    assert after["last_move"] == "f8g8"
    assert after["own_moves"] == [{"uci": "a2a7", "san": "Ra7"}]
    assert after["fen"].startswith("6k1/R7/")
    assert after["turn"] == "white"


def test_a_wrong_move_ends_the_puzzle_for_good() -> None:
    verdict, answers = play(LONG, "h3g3", "a2a7", "b1b8")
    assert answers == ["failed", "over", "over"]
    assert (verdict.reward, verdict.reason) == (0, "wrong_move")
    verdict, answers = play(LONG, "a2a7", "h3g3", "b1b8")
    assert (answers, verdict.reason) == (["playing", "failed", "over"], "wrong_move")


def test_moves_after_the_solution_change_nothing() -> None:
    verdict, answers = play(TWO_MATES, "a1a8", "g1g2")
    assert (verdict.reward, answers) == (1, ["solved", "over"])


@pytest.mark.parametrize(
    ("moves", "answers", "reason"),
    [
        ((), [], "no_move"),
        (("a2a7",), ["playing"], "unfinished"),
        (("a2b7",), ["illegal"], "illegal_move"),
        (("Ra7",), ["not_uci"], "bad_format"),
        (("a2a7", "zz"), ["playing", "not_uci"], "bad_format"),
        (("a2b7", "a2b7", "a2a7"), ["illegal", "illegal", "over"], "illegal_move"),
        (("", "x" * 900, "a2a7"), ["not_uci", "not_uci", "over"], "bad_format"),
        (("a2b7", "Ra7", "a2a7", "b1c8", "Rb8", "b1b8"), ["illegal", "not_uci", "playing"] * 2, "right"),
        (("0000",), ["not_uci"], "bad_format"),
        (("a2a9",), ["not_uci"], "bad_format"),
        (("P@e4",), ["not_uci"], "bad_format"),
        (("f8g8",), ["illegal"], "illegal_move"),
    ],
)
def test_endings(moves: tuple[str, ...], answers: list[str], reason: str) -> None:
    verdict, said = play(LONG, *moves)
    assert verdict.reason == reason
    assert verdict.reward == (reason == "right")
    assert said[:-1] == answers[:-1]
    assert said[-1:] == (["solved"] if reason == "right" else answers[-1:])


def test_retries_is_how_many_slips_of_a_kind_a_position_forgives() -> None:
    assert play(LONG, "a2b7", retries=0)[0].reason == "illegal_move"
    assert play(LONG, "a2b7", "a2a7", retries=0)[1] == ["illegal", "over"]
    assert play(LONG, *["a2b7"] * 3, "a2a7", "b1b8", retries=3)[0].reward == 1


def test_the_last_slip_says_that_the_puzzle_is_lost() -> None:
    async def run() -> None:
        episode = ChessDomain(retries=0).open(LONG)
        with pytest.raises(ToolInputError, match=r"not_uci: 'e'.* The puzzle is lost"):
            await episode.move(uci="e")
        assert json.loads(await episode.observe())["status"] == "failed"

    asyncio.run(run())


def test_no_move_counts_after_the_verdict() -> None:
    async def run() -> None:
        episode = ChessDomain().open(TWO_MATES)
        assert (await episode.score("")).reason == "no_move"
        with pytest.raises(ToolInputError, match="over"):
            await episode.move(uci="a1a8")
        assert (await episode.score("a1a8")).reward == 0

    asyncio.run(run())


def test_bad_arguments_of_the_tools_cost_nothing() -> None:
    async def run() -> None:
        episode = ChessDomain(retries=0).open(TWO_MATES)
        for arguments in ({}, {"uci": 3}, {"uci": "a1a8", "force": True}, {"move": "a1a8"}):
            with pytest.raises(ToolInputError, match="one argument"):
                await episode.move(**arguments)
        with pytest.raises(ToolInputError):
            await episode.observe(depth=3)
        assert (await episode.score("")).reason == "no_move"

    asyncio.run(run())


def test_what_is_seen() -> None:
    seen = observed(TWO_MATES)
    assert set(seen) == {"fen", "turn", "board", "last_move", "own_moves", "legal", "status"}
    assert seen["fen"] == TWO_MATES.inputs["fen"]
    assert (seen["turn"], seen["last_move"], seen["own_moves"], seen["status"]) == ("white", "g8h8", [], "playing")
    assert seen["board"].splitlines()[0] == "8 . . . . . . . k"
    assert seen["board"].splitlines()[-2:] == ["1 R Q . . . . K .", "  a b c d e f g h"]
    ucis = [move["uci"] for move in seen["legal"]]
    assert ucis == sorted(ucis)
    assert {"uci": "a1a8", "san": "Ra8#"} in seen["legal"]


def test_suffixes_may_be_left_out_everywhere() -> None:
    legal = observed(TWO_MATES, suffixes=False)["legal"]
    assert {"uci": "a1a8", "san": "Ra8"} in legal
    assert not any(sign in move["san"] for move in legal for sign in "+#")

    async def own() -> str:
        return await ChessDomain(suffixes=False).open(TWO_MATES).move(uci="a1a8")

    last = json.loads(asyncio.run(own()))
    assert (last["own_moves"], last["legal"]) == ([{"uci": "a1a8", "san": "Ra8"}], [])


@pytest.mark.parametrize(
    ("inputs", "line"),
    [
        ({"fen": "7k/8", "last_move": "a1a2"}, ["a1a8"]),
        ({"last_move": "a1a2"}, ["a1a8"]),
        (TWO_MATES.inputs, ["a1b3"]),
        (TWO_MATES.inputs, ["a1a8", "h8g8"]),
        (TWO_MATES.inputs, []),
        (TWO_MATES.inputs, "a1a8"),
        (TWO_MATES.inputs, None),
        (LONG.inputs, ["a2a7", "f8f7", "b1b8"]),
    ],
)
def test_a_task_that_cannot_be_played_is_refused_with_its_id(inputs: dict[str, str], line: Any) -> None:
    with pytest.raises(DomainError, match="puzzle odd"):
        ChessDomain().open(Task("odd", inputs, line))


@pytest.mark.parametrize(
    "options", [{"strict": "yes"}, {"san": 1}, {"suffixes": None}, {"retries": -1}, {"retries": True}]
)
def test_bad_rules_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"option {name}"):
        ChessDomain(**options)


def test_the_version_names_the_rules() -> None:
    versions = [
        ChessDomain(**options).version
        for options in ({}, {"strict": True}, {"san": True}, {"suffixes": False}, {"retries": 2})
    ]
    assert versions[0] == "chess-1-mates-uci-suffixes-1"
    assert len(set(versions)) == len(versions)


def test_gold_is_right_and_junk_is_not() -> None:
    for options in ({}, {"strict": True}, {"san": True}):
        domain = ChessDomain(**options)
        for task in (TWO_MATES, CASTLES, LONG, PROMOTES, *domain.smoke()[0]):

            async def reward(answer: str, domain: ChessDomain = domain, task: Task = task) -> float | None:
                return (await domain.submit(domain.open(task), answer)).reward

            assert asyncio.run(reward(domain.gold(task))) == 1
            junk = domain.junk(task)
            assert len(junk) >= 5
            for answer in junk:
                assert asyncio.run(reward(answer)) == 0, (task.id, answer)
