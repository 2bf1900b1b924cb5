"""Parts that go on after a kill at any byte, a network that fails, which file belongs to which source."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from whale.domains.data.files import Row
from whale.domains.data.hub import Retry, with_retries
from whale.domains.data.inputs import Input, hub_inputs, local_inputs
from whale.domains.data.parts import Watch, fill
from whale.domains.data.prepare import Request, prepare
from whale.domains.data.prepared import read_prepared
from whale.domains.data.source import HubFile, RowError, Source
from whale.errors import ConfigError, DomainError
from whale.types import Split, Task

POOL = Source("pool", ("weights", "search", "test"), rows=40)
EXAM = Source("exam", ("test",))
EXAM_2024 = Source("exam_2024", ("test",))


class Sums:
    domain = "sums"
    version = "sums-1"
    sources = (POOL, EXAM, EXAM_2024)
    sizes: ClassVar[dict[Split, int | None]] = {"search": 6, "test": 8}

    def task(self, source: Source, number: int, row: Mapping[str, Any]) -> Task:
        if not row["q"]:
            raise RowError("no question")
        return Task(f"{source.name}-{number}", {"problem": row["q"]}, row["a"], row.get("kind", source.name))


class Notes(Watch):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.read: list[tuple[str, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def rows(self, source: str, read: int, total: int | None, per_second: float) -> None:
        self.read.append((source, read))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sums(numbers: range) -> list[dict[str, Any]]:
    return [{"q": f"{i} + {i}", "a": str(2 * i), "kind": "odd" if i % 2 else "even"} for i in numbers]


def request(folder: Path, *paths: Path, **changes: Any) -> Request:
    inputs = local_inputs(Sums.sources, [str(path) for path in paths], lambda text: None)
    return Request(Sums(), inputs, folder / "out", **changes)


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write(tmp_path / "pool.jsonl", sums(range(40)))


# ---- the whole --------------------------------------------------------------------------------------------------


def test_a_folder_that_a_domain_can_read(tmp_path: Path, pool: Path) -> None:
    exam = write(tmp_path / "exam.jsonl", [*sums(range(3, 5)), {"q": "", "a": "1"}, *sums(range(100, 103))])
    manifest = prepare(request(tmp_path, pool, exam))
    tasks = read_prepared(tmp_path / "out", "sums")
    assert {split: len(items) for split, items in tasks.items()} == {
        "weights": 29, "search": 6, "test": 8, "unseen": 0
    }  # fmt: skip
    first = tasks["weights"][0]
    assert first.id.startswith("pool-")
    assert first.reference == str(2 * int(first.inputs["problem"].split()[0]))
    assert manifest["splits"]["test"]["rows"] == 8
    assert sum(manifest["splits"]["test"]["families"].values()) == 8
    assert manifest["sources"]["exam"]["dropped"] == {"no question": 1}
    assert manifest["sources"]["pool"]["dropped"] == {"same question in test": 2}
    assert manifest["sources"]["pool"]["read"] == 40
    assert (manifest["seed"], manifest["preparer"], manifest["domain"]) == (0, "sums-1", "sums")
    dropped = [json.loads(line) for line in (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()]
    assert dropped[0] == {"source": "exam", "row": 2, "id": None, "reason": "no question"}
    assert {(line["id"], line["same_as"]) for line in dropped[1:]} == {("pool-3", "exam-0"), ("pool-4", "exam-1")}
    assert json.loads((tmp_path / "out" / "manifest.json").read_text()) == manifest


def test_the_same_command_leaves_a_finished_folder_alone(tmp_path: Path, pool: Path) -> None:
    prepare(request(tmp_path, pool))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir() if path.name != ".lock"}
    watch = Notes()
    prepare(request(tmp_path, pool), watch)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "finished already" in watch.notes[0]
    assert watch.read == []


def test_another_request_is_refused_with_the_differences(tmp_path: Path, pool: Path) -> None:
    prepare(request(tmp_path, pool))
    with pytest.raises(ConfigError, match="seed: 0 -> 1") as error:
        prepare(request(tmp_path, pool, seed=1, sizes={"search": 5}))
    assert "'search': 6" in str(error.value)
    assert "--force" in str(error.value)
    exam = write(tmp_path / "exam.jsonl", sums(range(50, 53)))
    with pytest.raises(ConfigError, match="source exam: added"):
        prepare(request(tmp_path, pool, exam))
    write(pool, sums(range(1, 41)))
    with pytest.raises(ConfigError, match="source pool, files: "):
        prepare(request(tmp_path, pool))
    assert len(read_prepared(tmp_path / "out", "sums")["search"]) == 6


def test_force_replaces_and_reads_again_only_what_changed(tmp_path: Path, pool: Path) -> None:
    exam = write(tmp_path / "exam.jsonl", sums(range(50, 53)))
    prepare(request(tmp_path, pool, exam))
    watch = Notes()
    prepare(request(tmp_path, pool, exam, seed=1, force=True), watch)
    assert watch.read == []
    write(exam, sums(range(60, 65)))
    prepare(request(tmp_path, pool, exam, seed=1, force=True), watch)
    assert watch.read == [("exam", 5)]
    assert {task.id for task in read_prepared(tmp_path / "out", "sums")["test"]} >= {f"exam-{i}" for i in range(5)}


def test_an_unfinished_folder_of_another_source_is_refused(tmp_path: Path, pool: Path) -> None:
    prepare(request(tmp_path, pool))
    (tmp_path / "out" / "manifest.json").unlink()
    write(pool, sums(range(1, 41)))
    with pytest.raises(DomainError, match=r"holds rows of pool from another source.*--force"):
        prepare(request(tmp_path, pool))
    prepare(request(tmp_path, pool, force=True))
    texts = {task.inputs["problem"] for items in read_prepared(tmp_path / "out", "sums").values() for task in items}
    assert texts == {f"{i} + {i}" for i in range(1, 41)}


def test_another_row_count_is_a_note_for_files_and_an_error_for_the_hub(tmp_path: Path) -> None:
    watch = Notes()
    prepare(request(tmp_path, write(tmp_path / "pool.jsonl", sums(range(39)))), watch)
    assert "source pool: 39 rows read, the public set has 40" in watch.notes
    source = Source("pool", POOL.splits, HubFile("json", files=(str(tmp_path / "pool.jsonl"),)), rows=40)
    hub = FromHub(source, tuple(sums(range(39))))
    with pytest.raises(DomainError, match="39 rows read, the public set has 40"):
        prepare(Request(Sums(), [hub], tmp_path / "hub"))
    assert not (tmp_path / "hub" / "manifest.json").exists()
    # What was cut short is asked for again, from where it ended.
    object.__setattr__(hub, "given", tuple(sums(range(40))))
    assert prepare(Request(Sums(), [hub], tmp_path / "hub"))["sources"]["pool"]["read"] == 40


class FromHub(Input):
    """A hub source whose rows are at hand."""

    def __init__(self, source: Source, given: tuple[Any, ...]) -> None:
        super().__init__(source)
        object.__setattr__(self, "given", given)

    def rows(self, start: int) -> Iterator[Row]:
        return iter(self.given[start:])  # type: ignore[attr-defined]


def test_only_one_process_prepares_a_folder(tmp_path: Path, pool: Path) -> None:
    class Again(Notes):
        def note(self, text: str) -> None:
            with pytest.raises(DomainError, match="by another process"):
                prepare(request(tmp_path, pool))
            super().note(text)

    watch = Again()
    prepare(request(tmp_path, pool, sizes={"search": 50, "test": 1, "weights": 0}), watch)
    assert watch.notes


# ---- going on ---------------------------------------------------------------------------------------------------


class Stop(BaseException):
    """Stands for a kill."""


class Killed(Input):
    """Local rows that end in a kill after so many."""

    def __init__(self, given: Input, after: int) -> None:
        super().__init__(given.source, given.files)
        object.__setattr__(self, "after", after)

    def rows(self, start: int) -> Iterator[Row]:
        for number, row in enumerate(super().rows(start), start=start):
            if number == self.after:  # type: ignore[attr-defined]
                raise Stop
            yield row


def test_a_preparation_goes_on_after_a_stop(tmp_path: Path, pool: Path) -> None:
    asked = request(tmp_path, pool)
    for after in (0, 7, 7, 39):
        with pytest.raises(Stop):
            prepare(Request(asked.preparer, [Killed(asked.inputs[0], after)], asked.out))
        assert not (asked.out / "manifest.json").exists()
    watch = Notes()
    resumed = prepare(asked, watch)
    assert watch.notes[0] == "pool: going on after 39 rows"
    whole = prepare(Request(asked.preparer, asked.inputs, tmp_path / "whole"))
    assert resumed == whole


def test_a_part_that_was_cut_at_any_byte_comes_out_whole(tmp_path: Path, pool: Path) -> None:
    given = local_inputs([POOL], [str(pool)], lambda text: None)[0]

    def filled(folder: Path) -> bytes:
        fill(folder, Sums(), given, {}, Watch(), Retry())
        return (folder / "pool.jsonl").read_bytes()

    (tmp_path / "parts").mkdir()
    whole = filled(tmp_path / "parts")
    for size in [*range(0, 400, 7), len(whole) // 2, len(whole) - 1]:
        folder = tmp_path / f"cut{size}"
        shutil.copytree(tmp_path / "parts", folder)
        (folder / "pool.done.json").unlink()
        (folder / "pool.jsonl").write_bytes(whole[:size])
        assert filled(folder) == whole, size


def test_a_whole_line_of_nonsense_at_the_end_is_cut_too(tmp_path: Path, pool: Path) -> None:
    given = local_inputs([POOL], [str(pool)], lambda text: None)[0]
    fill(tmp_path, Sums(), given, {}, Watch(), Retry())
    whole = (tmp_path / "pool.jsonl").read_bytes()
    (tmp_path / "pool.done.json").unlink()
    (tmp_path / "pool.jsonl").write_bytes(whole[:200].rpartition(b"\n")[0] + b"\n\0\0\0\0\n")
    fill(tmp_path, Sums(), given, {}, Watch(), Retry())
    assert (tmp_path / "pool.jsonl").read_bytes() == whole


def test_a_preparer_that_fails_names_row_and_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "pool.jsonl", [*sums(range(3)), {"question": "4 + 4", "id": 3}])
    with pytest.raises(DomainError, match=r"source pool, row 3: .*KeyError: 'q'; the row's columns are question, id"):
        prepare(request(tmp_path, path))


def test_broken_unicode_is_a_dropped_row(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    write(path, sums(range(39)))
    path.write_text(path.read_text() + '{"q": "\\ud800", "a": "1", "id": "x"}\n')
    manifest = prepare(request(tmp_path, path))
    assert manifest["sources"]["pool"]["dropped"] == {"broken Unicode": 1}


# ---- network ----------------------------------------------------------------------------------------------------


def failing(rows: list[int], failures: dict[int, list[Exception]]) -> Callable[[int], Iterator[Any]]:
    """Rows that raise the listed errors before a number, one a try."""

    def open_rows(start: int) -> Iterator[Any]:
        for number in range(start, len(rows) + 1):
            if failures.get(number):
                raise failures[number].pop(0)
            if number < len(rows):
                yield rows[number]

    return open_rows


def test_network_faults_are_tried_again_at_the_next_row() -> None:
    slept: list[float] = []
    notes: list[str] = []
    rows = failing(list(range(9)), {0: [ConnectionError("a")], 4: [TimeoutError()] * 3, 9: [OSError("late")]})
    retry = Retry(tries=4, sleep=slept.append)
    assert list(with_retries("pool", rows, 0, retry, notes.append)) == list(range(9))
    assert slept == [1, 1, 2, 4, 1]
    assert "pool: network fault at row 4" in notes[1]


def test_a_network_that_stays_away_says_how_to_go_on() -> None:
    slept: list[float] = []
    rows = failing(list(range(9)), {5: [ConnectionError("refused")] * 100})
    read = with_retries("pool", rows, 2, Retry(tries=8, sleep=slept.append), lambda text: None)
    assert [next(read) for _ in range(3)] == [2, 3, 4]
    with pytest.raises(DomainError, match=r"source pool: the network failed 8 times in a row at row 5.*same command"):
        next(read)
    assert slept == [1, 2, 4, 8, 16, 32, 60]


class Answered(Exception):
    def __init__(self, code: int) -> None:
        self.response = type("Response", (), {"status_code": code})()


@pytest.mark.parametrize("error", [FileNotFoundError("no such set"), Answered(404), Answered(401), ValueError("odd")])
def test_what_another_try_cannot_mend_is_said_at_once(error: Exception) -> None:
    slept: list[float] = []
    with pytest.raises(DomainError, match="source pool, row 0: cannot be read"):
        list(with_retries("pool", failing([1], {0: [error]}), 0, Retry(sleep=slept.append), lambda text: None))
    assert slept == []


def test_too_many_requests_and_errors_of_the_clients_are_tried_again() -> None:
    errors: list[Exception] = []
    httpx = pytest.importorskip("httpx")
    errors += [httpx.ReadTimeout("slow"), httpx.HTTPStatusError("x", request=None, response=httpx.Response(429))]
    errors += [httpx.HTTPStatusError("x", request=None, response=httpx.Response(503))]
    rows = failing([1], {0: errors})
    assert list(with_retries("pool", rows, 0, Retry(sleep=lambda seconds: None), lambda text: None)) == [1]


# ---- which file is whose ------------------------------------------------------------------------------------------


def names(inputs: list[Input]) -> dict[str, list[str]]:
    return {given.source.name: [path.name for path in given.files] for given in inputs}


def test_a_folder_is_sorted_by_the_names_of_its_files(tmp_path: Path) -> None:
    for name in ("pool-b.csv", "pool-a.csv", "Exam.jsonl", "exam_2024.parquet", "other.jsonl", "notes.txt"):
        (tmp_path / name).touch()
    notes: list[str] = []
    found = local_inputs(Sums.sources, [str(tmp_path)], notes.append)
    assert names(found) == {
        "pool": ["pool-a.csv", "pool-b.csv"], "exam": ["Exam.jsonl"], "exam_2024": ["exam_2024.parquet"]
    }  # fmt: skip
    assert len(notes) == 1
    assert "other.jsonl" in notes[0]


def test_a_name_before_the_path_says_the_source(tmp_path: Path) -> None:
    (tmp_path / "a=b.jsonl").touch()
    (tmp_path / "other.csv").touch()
    found = local_inputs(Sums.sources, [f"exam={tmp_path / 'other.csv'}", f"pool={tmp_path / 'a=b.jsonl'}"], print)
    assert names(found) == {"exam": ["other.csv"], "pool": ["a=b.jsonl"]}
    assert names(local_inputs(Sums.sources, [f"pool={tmp_path}"], print)) == {"pool": ["a=b.jsonl", "other.csv"]}


def test_paths_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.csv").touch()
    for argument, message in [
        (tmp_path / "none.csv", "does not exist"),
        (f"exams={tmp_path}", "no source is called 'exams'; known are pool, exam, exam_2024"),
        (tmp_path / "other.csv", "NAME="),
        (tmp_path, "no file of a known source in this folder"),
    ]:
        with pytest.raises(ConfigError, match=message):
            local_inputs(Sums.sources, [str(argument)], lambda text: None)
    twice = f"exam={tmp_path / 'other.csv'}"
    with pytest.raises(ConfigError, match="given twice"):
        local_inputs(Sums.sources, [twice, twice.replace("exam", "pool")], lambda text: None)
    with pytest.raises(ConfigError, match="no source of this domain is on the hub"):
        hub_inputs(Sums.sources, lambda text: None)


def test_local_rows_of_several_files_count_as_one(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"pool{i}.jsonl", sums(range(3 * i, 3 * i + 3))) for i in range(3)]
    given = Input(POOL, tuple(paths))
    assert [row["a"] for row in given.rows(4) if isinstance(row, Mapping)] == ["8", "10", "12", "14", "16"]
