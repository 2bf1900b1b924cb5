"""``whale data prepare`` as a user types it: real files, a kill in the middle, and hub sets laid out on this disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from whale.domains.data import read_prepared
from whale.domains.data.inputs import hub_inputs
from whale.domains.data.prepare import Request, prepare
from whale.domains.data.source import HubFile, Source
from whale.types import Task

PREPARER = """
import time
from whale.domains.data.source import HubFile, RowError, Source
from whale.types import Task

class Sums:
    domain = "sums"
    version = "sums-1"
    sources = (Source("pool", ("weights", "search", "test")), Source("exam", ("test",)))
    sizes = {"search": 50, "test": 50}

    def task(self, source, number, row):
        if not row["q"]:
            raise RowError("no question")
        time.sleep(SLEEP)
        return Task(f"{source.name}-{number}", {"problem": row["q"]}, row["a"], source.name)
"""
PROGRAM = "import typer; from whale import cli, cli_data; cli.app.add_typer(cli_data.data_app, name='d'); cli.main()"


def command(folder: Path, *arguments: object) -> tuple[list[str], dict[str, str]]:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return [sys.executable, "-c", PROGRAM, "d", "prepare", "sums:Sums", *map(str, arguments)], {
        **os.environ, "PYTHONPATH": path, "COLUMNS": "200"
    }  # fmt: skip


def whale(folder: Path, *arguments: object, code: int = 0) -> str:
    line, environment = command(folder, *arguments)
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=folder, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sums.py").write_text(PREPARER.replace("SLEEP", "0"))
    rows = [{"q": f"{i} + {i}", "a": str(2 * i)} for i in range(3000)]
    rows[7]["q"] = ""
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "exam.csv").write_text("q,a\n" + "".join(f"{i} + {i},{2 * i}\n" for i in range(2990, 3010)))
    return tmp_path


@pytest.mark.slow
def test_the_command(folder: Path) -> None:
    text = whale(folder, "pool.jsonl", "exam.csv", "--size", "weights=1000")
    assert "dropped 10: same question in test" in text
    assert "dropped 1: no question" in text
    tasks = read_prepared(folder / "data" / "sums", "sums")
    assert {split: len(items) for split, items in tasks.items()} == {
        "weights": 1000, "search": 50, "test": 50, "unseen": 0
    }  # fmt: skip
    assert [task.family for task in tasks["test"][:6]] == ["exam", "pool"] * 3
    assert "finished already" in whale(folder, "pool.jsonl", "exam.csv", "--size", "weights=1000")
    text = whale(folder, "pool.jsonl", "exam.csv", "--seed", 1, code=2)
    assert "seed: 0 -> 1" in text
    assert "--out" in text
    assert "written to other" in whale(folder, "pool.jsonl", "exam.csv", "--seed", 1, "--out", "other")
    for wrong, message in [
        ([], "either --source hub, or one or more PATHs"),
        (["pool.jsonl", "--source", "hub"], "either --source hub"),
        (["--source", "web"], "--source web: hub is expected"),
        (["pool.jsonl", "--size", "train=4"], "--size train=4: SPLIT=N is expected"),
        (["none.jsonl"], "none.jsonl does not exist"),
    ]:
        assert message in whale(folder, *wrong, code=2)


@pytest.mark.slow
def test_a_killed_command_goes_on_and_comes_to_the_same(folder: Path) -> None:
    (folder / "sums.py").write_text(PREPARER.replace("SLEEP", "0.002"))
    line, environment = command(folder, "pool.jsonl", "exam.csv")
    part = folder / "data" / "sums" / "parts" / "pool.jsonl"
    process = subprocess.Popen(line, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    size = part.stat().st_size
    assert size
    assert not (folder / "data" / "sums" / "manifest.json").exists()
    with part.open("ab") as file:
        file.write(b'{"row": 12, "task')  # what a kill in the middle of a write leaves
    (folder / "sums.py").write_text(PREPARER.replace("SLEEP", "0"))
    assert "pool: going on after " in whale(folder, "pool.jsonl", "exam.csv")
    whale(folder, "pool.jsonl", "exam.csv", "--out", "whole")
    for name in ("manifest.json", "weights.jsonl", "search.jsonl", "test.jsonl", "dropped.jsonl"):
        assert (folder / "data" / "sums" / name).read_bytes() == (folder / "whole" / name).read_bytes(), name


class Words:
    """A preparer whose public set lies in a folder laid out as on the hub."""

    domain = "words"
    version = "words-1"
    sizes = {"search": 5, "test": 5}  # noqa: RUF012

    def __init__(self, *sources: Source) -> None:
        self.sources = sources

    def task(self, source: Source, number: int, row: Any) -> Task:
        return Task(f"{source.name}-{number}", {"q": row["q"]}, row["a"], source.name)


def hub_layout(folder: Path) -> None:
    """A data set with two configurations and named parts, as its card declares them."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"q": f"word {i}", "a": [f"a{i}", f"b{i}"]} for i in range(60)]
    (folder / "first").mkdir(parents=True)
    for part in range(2):
        table = pyarrow.Table.from_pylist(rows[20 * part : 20 * part + 20])
        parquet.write_table(table, folder / "first" / f"train-0000{part}-of-00002.parquet", row_group_size=7)
    (folder / "second").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(rows[35:60]), folder / "second" / "dev.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: first\n  data_files:\n  - split: train\n    path: first/train-*\n"
        "- config_name: second\n  data_files:\n  - split: dev\n    path: second/dev.parquet\n---\n"
    )


@pytest.mark.slow
def test_hub_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hub_layout(tmp_path / "set")
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "train.jsonl").write_text(
        "".join(json.dumps({"q": f"l{i}", "a": "x"}) + "\n" for i in range(30))
    )
    (tmp_path / "more.csv").write_text("q,a\n" + "".join(f"more {i},{i}\n" for i in range(10)))
    preparer = Words(
        Source("pool", ("weights", "search", "test"), HubFile(str(tmp_path / "set"), "first"), rows=40),
        Source("exam", ("test",), HubFile(str(tmp_path / "set"), "second", "dev"), rows=25),
        Source("more", ("weights",), HubFile("csv", files=(str(tmp_path / "more.csv"),)), rows=10),
        Source("lines", ("weights",), HubFile(str(tmp_path / "lines")), rows=30),
        Source("own", ("weights",)),
    )
    notes: list[str] = []
    inputs = hub_inputs(preparer.sources, notes.append)
    assert len(notes) == 1
    assert "own is not on the hub" in notes[0]
    manifest = prepare(Request(preparer, inputs, tmp_path / "out"))
    tasks = read_prepared(tmp_path / "out", "words")
    assert {split: len(items) for split, items in tasks.items()} == {
        "weights": 70, "search": 5, "test": 25, "unseen": 0
    }  # fmt: skip
    assert tasks["test"][0].reference[0].startswith("a")
    assert manifest["sources"]["pool"]["dropped"] == {"same question in test": 5}
    assert (manifest["sources"]["exam"]["kind"], manifest["sources"]["exam"]["config"]) == ("hub", "second")
    # A stream that is opened in the middle gives the same rows.
    for given in inputs:
        assert list(given.rows(13)) == list(given.rows(0))[13:], given.source.name


@pytest.mark.slow
def test_a_hub_set_that_does_not_exist(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    from whale.errors import DomainError

    preparer = Words(Source("pool", ("weights",), HubFile(str(tmp_path / "none"))))
    with pytest.raises(DomainError, match="source pool, row 0: cannot be read"):
        prepare(Request(preparer, hub_inputs(preparer.sources, print), tmp_path / "out"))


DATA = os.environ.get("WHALE_TEST_DATA")


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="WHALE_TEST_DATA names no folder")
def test_real_questions(tmp_path: Path) -> None:
    class Questions(Words):
        sizes = {"search": 256}  # noqa: RUF012

        def task(self, source: Source, number: int, row: Any) -> Task:
            return Task(f"{source.name}-{row['id']}", {"question": row["question"]}, row["answers"], source.name)

    from whale.domains.data.inputs import local_inputs

    folder = Path(str(DATA)) / "search_qa"
    held_out = ("triviaqa", "popqa", "bamboogle")
    preparer = Questions(Source("hotpotqa", ("weights", "search")), *(Source(name, ("test",)) for name in held_out))
    paths = [f"hotpotqa={folder / 'hotpotqa_dev.jsonl'}", *(f"{folder / name}.jsonl" for name in held_out)]
    manifest = prepare(Request(preparer, local_inputs(preparer.sources, paths, print), tmp_path / "out"))
    tasks = read_prepared(tmp_path / "out", "words")
    assert len(tasks["search"]) == 256
    read = {name: figures["read"] for name, figures in manifest["sources"].items()}
    assert read == {"hotpotqa": 5913, "triviaqa": 926, "popqa": 1154, "bamboogle": 96}
    for name, figures in manifest["sources"].items():
        kept, dropped = sum(figures["kept"].values()), sum(figures["dropped"].values())
        assert kept + dropped + figures["unused"] == read[name]
    lead = [task.family for task in tasks["test"][:288]]
    assert all(lead.count(name) == 96 for name in held_out)
