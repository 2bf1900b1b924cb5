"""From rows of the puzzle database to tasks and splits."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chess
import pytest

from whale.domains.chess import ChessDomain, rows
from whale.domains.chess.prepare import ChessPreparer
from whale.domains.data.inputs import local_inputs
from whale.domains.data.prepare import Request, prepare
from whale.domains.data.source import RowError
from whale.errors import ConfigError, DomainError
from whale.types import SPLITS, Split, Task

ROW = {
    "PuzzleId": "first",
    "FEN": "6k1/5ppp/8/8/8/8/r4PPP/1R4K1 b - - 0 1",
    "Moves": "a2a3 b1b8",
    "Rating": "700",
    "Themes": "mate mateIn1 oneMove",
}
COLUMNS = ["PuzzleId", "FEN", "Moves", "Rating", "Themes"]


def puzzle(number: int, **changes: str) -> dict[str, str]:
    """``ROW`` with one black pawn more (number 0 to 23), which makes its position another one."""
    board = chess.Board(ROW["FEN"])
    board.set_piece_at(chess.square(2 + number % 6, 2 + number // 6), chess.Piece.from_symbol("p"))
    return {**ROW, "PuzzleId": f"p{number:03}", "FEN": board.fen(), **changes}


def write(path: Path, table: Sequence[dict[str, str]], columns: Sequence[str] = COLUMNS) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(table)
    return str(path)


def test_the_position_is_the_one_after_the_opponents_first_move() -> None:
    task = rows.task(ROW)
    assert task == Task(
        "first",
        {"fen": "6k1/5ppp/8/8/8/r7/5PPP/1R4K1 w - - 1 2", "last_move": "a2a3"},
        ["b1b8"],
        "mate_in_1",
    )


def test_the_solver_plays_the_line_from_there() -> None:
    domain = ChessDomain()

    async def reward(answer: str) -> tuple[float | None, str]:
        verdict = await domain.submit(domain.open(rows.task(ROW)), answer)
        return verdict.reward, verdict.reason

    assert asyncio.run(reward("b1b8")) == (1, "right")
    assert asyncio.run(reward("a2a3")) == (0, "illegal_move")


def test_nothing_of_the_solution_is_in_the_inputs() -> None:
    task = rows.task({**ROW, "FEN": "4k3/8/8/8/8/7K/R7/1R6 b - - 0 1", "Moves": "e8f8 a2a7 f8g8 b1b8"})
    assert set(task.inputs) == {"fen", "last_move"}
    assert task.family == "mate_in_2"
    assert task.reference == ["a2a7", "f8g8", "b1b8"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Moves": "a2a3"}, "does not end"),
        ({"Moves": "a2a3 b1b8 g8f8"}, "does not end"),
        ({"Moves": ""}, "does not end"),
        ({"Moves": None}, "Moves"),
        ({"Moves": "a2a3 b1b9"}, "not legal"),
        ({"Moves": "a2b3 b1b8"}, "not legal"),
        ({"Moves": "a2a3 Rb8"}, "not legal"),
        ({"Moves": "a2a3 b1b7 g8f9 b7b8"}, "not legal"),
        ({"Moves": "a2a3 0000"}, "not legal"),
        ({"FEN": "nonsense"}, "FEN"),
        ({"FEN": "8/8/8/8/8/8/r4PPP/1R4K1 b - - 0 1"}, "impossible"),
        ({"FEN": ""}, "field FEN"),
        ({"PuzzleId": None}, "field PuzzleId"),
    ],
)
def test_a_row_that_cannot_be_played_says_why(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        rows.task({**ROW, **changes})


def test_lines_that_are_too_long_are_left_out() -> None:
    long = {**ROW, "FEN": "4k3/8/8/8/8/7K/R7/1R6 b - - 0 1", "Moves": "e8f8 a2a7 f8g8 b1b8"}
    assert rows.task(long, 2)
    with pytest.raises(RowError, match="more than 1 moves"):
        rows.task(long, 1)


def test_the_preparer_takes_rows_of_the_file_and_of_the_hub() -> None:
    preparer = ChessPreparer()
    (source,) = preparer.sources
    assert source.hub is not None
    assert source.hub.path == "Lichess/chess-puzzles"
    assert source.splits == ("weights", "search", "test")
    assert preparer.sizes == {"weights": 16_384, "search": 256, "test": 1_024}
    hub = {**ROW, "Rating": 700, "Themes": ["mate", "mateIn1"], "Moves": ["a2a3", "b1b8"]}
    other = preparer.task(source, 3, {**ROW, "PuzzleId": "other", "FEN": ROW["FEN"].replace("0 1", "3 20")})
    assert other.inputs != rows.task(ROW).inputs
    assert preparer.content(other) == preparer.content(rows.task(ROW))
    assert preparer.task(source, 0, ROW) == preparer.task(source, 1, hub) == rows.task(ROW)
    with pytest.raises(RowError):
        preparer.task(source, 2, {**ROW, "Moves": "a2a3 a2a4"})
    assert ChessPreparer(5).version != preparer.version


def splits(path: str, **options: Any) -> dict[str, list[str]]:
    domain = ChessDomain(puzzles=path, **options)
    return {split: [task.id for task in domain.tasks(split)] for split in ("weights", "search", "test", "unseen")}  # type: ignore[arg-type]


SIZES = {"weights": 6, "search": 3, "test": 3}


def test_splits_depend_on_seed_and_ids_alone(tmp_path: Path) -> None:
    table = [puzzle(number) for number in range(24)]
    path = write(tmp_path / "puzzles.csv", table)
    found = splits(path, sizes=SIZES)
    assert {split: len(ids) for split, ids in found.items()} == {**SIZES, "unseen": 0}
    assert len({name for ids in found.values() for name in ids}) == 12
    turned = write(tmp_path / "turned.csv", table[::-1])
    assert splits(turned, sizes=SIZES) == found
    assert splits(path, sizes=SIZES, seed=1) != found
    larger = splits(path, sizes={**SIZES, "weights": 12})
    assert (larger["test"], larger["search"]) == (found["test"], found["search"])


def test_filters(tmp_path: Path) -> None:
    table = [puzzle(number, Rating=str(500 + 50 * number)) for number in range(12)]
    table += [puzzle(number, Themes="endgame short", Rating="1500") for number in range(12, 20)]
    path = write(tmp_path / "puzzles.csv", table)
    sizes = {"weights": 2, "search": 1, "test": 1}
    found = splits(path, sizes=sizes, themes=["endgame"])
    assert all(int(name[1:]) >= 12 for ids in found.values() for name in ids)
    found = splits(path, sizes=sizes, rating=[600, 750], themes=[])
    assert sorted(name for ids in found.values() for name in ids) == ["p002", "p003", "p004", "p005"]
    with pytest.raises(DomainError, match="holds only 2 different"):
        splits(path, sizes=sizes, rating=[600, 690], themes=["mateIn1", "fork"])
    with pytest.raises(DomainError, match="holds only 0 different"):
        splits(path, sizes=sizes, themes=["skewer"])


def test_a_file_that_is_too_small_names_the_sizes_that_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "puzzles.csv", [puzzle(number) for number in range(10)])
    with pytest.raises(
        DomainError, match=r"weights 6, search 3, test 3 .*sizes = { weights = 4, search = 3, test = 3 }"
    ):
        splits(path, sizes=SIZES)
    with pytest.raises(DomainError, match=r"weights = 6, search = 2, test = 2"):
        splits(path)
    assert splits(path, sizes={"weights": 6, "search": 2, "test": 2})


def test_equal_positions_are_taken_once(tmp_path: Path) -> None:
    table = [puzzle(number) for number in range(6)]
    again = [{**row, "PuzzleId": row["PuzzleId"] + "x", "FEN": row["FEN"].replace(" 0 ", " 7 ")} for row in table]
    path = write(tmp_path / "puzzles.csv", table + again)
    found = splits(path, sizes={"weights": 2, "search": 2, "test": 2})
    assert len({name[:4] for ids in found.values() for name in ids}) == 6
    with pytest.raises(DomainError, match="only 6 different"):
        splits(path, sizes={"weights": 3, "search": 2, "test": 2})


def test_broken_puzzles_are_named(tmp_path: Path) -> None:
    table = [*(puzzle(number) for number in range(6)), puzzle(7, PuzzleId="bad", Moves="a2a3 b1c3")]
    path = write(tmp_path / "puzzles.csv", table)
    with pytest.raises(DomainError, match=r"1 puzzles cannot be played: bad \(a move of the line is not legal\)"):
        splits(path, sizes={"weights": 5, "search": 1, "test": 1})


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="cannot be read"):
        splits(str(tmp_path / "missing.csv"))
    path = write(tmp_path / "thin.csv", [ROW], ["PuzzleId", "FEN", "Moves"])
    with pytest.raises(DomainError, match="column Rating is missing"):
        splits(path, rating=[1, 2])
    path = write(tmp_path / "odd.csv", [{**ROW, "Rating": "many"}])
    with pytest.raises(DomainError, match=r"puzzle 1 \(first\): column Rating.*'many'"):
        splits(path, rating=[1, 2])
    (tmp_path / "short.csv").write_text("PuzzleId,FEN,Moves\nfirst,8/8\n")
    with pytest.raises(DomainError, match="puzzle 1: fewer fields"):
        splits(str(tmp_path / "short.csv"))
    with pytest.raises(DomainError, match="unknown format"):
        splits(write(tmp_path / "puzzles.txt", [ROW]))
    (tmp_path / "damaged.csv.zst").write_bytes(b"no zstd")
    pytest.importorskip("zstandard")
    with pytest.raises(DomainError, match="cannot be read"):
        splits(str(tmp_path / "damaged.csv.zst"))


def test_compressed_files(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    table = [puzzle(number) for number in range(12)]
    plain = write(tmp_path / "puzzles.csv", table)
    packed = tmp_path / "puzzles.csv.zst"
    text = Path(plain).read_bytes()
    # Parallel compressors write several frames, one after the other.
    packed.write_bytes(b"".join(zstandard.ZstdCompressor().compress(part) for part in (text[:600], text[600:])))
    sizes = {"weights": 6, "search": 3, "test": 3}
    assert splits(str(packed), sizes=sizes) == splits(plain, sizes=sizes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "x", "puzzles": "y"}, "not both"),
        ({"data": "x", "themes": ["mate"]}, "belong to option puzzles"),
        ({"sizes": {"train": 3}}, "sizes: unknown split 'train'"),
        ({"sizes": {"test": -1}}, "sizes.test"),
        ({"themes": "mateIn1"}, "option themes"),
        ({"rating": [1500]}, "option rating"),
        ({"rating": [1500, 1000]}, "option rating"),
        ({"max_plies": 0}, "option max_plies"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChessDomain(**options)


def test_prepared_data(tmp_path: Path) -> None:
    preparer = ChessPreparer()
    table = [*(puzzle(number) for number in range(14)), puzzle(15, PuzzleId="bad", Moves="a2a3 b1c3")]
    path = write(tmp_path / "lichess.csv", table)
    given = local_inputs(preparer.sources, [path], print)
    sizes: dict[Split, int] = {"weights": 8, "search": 3, "test": 3}
    manifest = prepare(Request(preparer, given, tmp_path / "out", sizes=sizes))
    assert manifest["domain"] == "chess"
    (line,) = (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()
    assert json.loads(line)["row"] == 14
    assert json.loads(line)["reason"] == "a move of the line is not legal"
    domain = ChessDomain(data=str(tmp_path / "out"))
    found = {split: domain.tasks(split) for split in SPLITS}
    assert {split: len(tasks) for split, tasks in found.items()} == {**sizes, "unseen": 0}
    for task in found["test"]:
        assert task == rows.task(table[int(task.id[1:])])


def test_without_puzzles_there_are_no_tasks() -> None:
    with pytest.raises(DomainError, match="give option puzzles"):
        ChessDomain().tasks("weights")
