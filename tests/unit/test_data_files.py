"""Local files of every format, and what is said of broken ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from whale.domains.data.files import read_rows, sha256
from whale.domains.data.source import RowError
from whale.errors import DomainError

ROWS = [{"question": f'q{i}, "quoted"\nand öther', "answer": str(i)} for i in range(40)]


def write(path: Path, data: bytes) -> Path:
    if path.name.endswith(".gz"):
        data = gzip.compress(data)
    elif path.name.endswith(".zst"):
        zstandard = pytest.importorskip("zstandard")
        half = len(data) // 2  # two frames, as in files that were put together
        data = b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:half], data[half:]))
    path.write_bytes(data)
    return path


def as_jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_csv(rows: list[dict[str, str]]) -> bytes:
    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    lines = [",".join(rows[0]), *(",".join(map(quoted, row.values())) for row in rows)]
    return ("\r\n".join(lines) + "\r\n").encode()


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_json_lines_and_csv_give_the_same_rows(tmp_path: Path, ending: str) -> None:
    assert list(read_rows(write(tmp_path / f"a.jsonl{ending}", as_jsonl(ROWS)))) == ROWS
    assert list(read_rows(write(tmp_path / f"b.csv{ending}", as_csv(ROWS)))) == ROWS


@pytest.mark.slow
def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "c.parquet")
    assert list(read_rows(tmp_path / "c.parquet")) == ROWS


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"\xef\xbb\xbfquestion,answer\na,b\n")
    assert list(read_rows(path)) == [{"question": "a", "answer": "b"}]


def test_a_field_longer_than_the_default_of_python(tmp_path: Path) -> None:
    rows = [{"text": "x" * 300_000}]
    assert list(read_rows(write(tmp_path / "a.csv", as_csv(rows)))) == rows


def test_a_broken_line_is_one_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"a": 1}\n{"a": \n[2]\n\n{"a": 3}\n')
    first, second, third, last = read_rows(path)
    assert (first, last) == ({"a": 1}, {"a": 3})
    assert isinstance(second, RowError)
    assert str(second) == "not JSON"
    assert isinstance(third, RowError)
    path = write(tmp_path / "b.csv", b"a,b\n1,2\n1\n1,2,3\n")
    assert [str(row) for row in read_rows(path)][1:] == ["fewer fields than columns", "more fields than columns"]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_download_that_was_cut_is_an_error(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, as_jsonl([{"n": i, "x": hash(str(i))} for i in range(20_000)]))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DomainError, match=rf"{name}, row \d+: cannot be read"):
        list(read_rows(path))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="xlsx: unknown format; known are"):
        list(read_rows(tmp_path / "a.xlsx"))
    with pytest.raises(DomainError, match=r"none.csv, row 0: cannot be read"):
        list(read_rows(tmp_path / "none.csv"))
    with pytest.raises(DomainError, match=r"bad.csv, row 0: cannot be read"):
        list(read_rows(write(tmp_path / "bad.csv", b"a,b\n\xff\xfe,1\n")))
    with pytest.raises(DomainError, match=r"bad.parquet: cannot be read"):
        list(read_rows(write(tmp_path / "bad.parquet", b"PAR1 this is none PAR1")))
    with pytest.raises(DomainError, match="none"):
        sha256(tmp_path / "none")
