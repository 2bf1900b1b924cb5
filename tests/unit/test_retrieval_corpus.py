"""Corpora: what is read, what is left out, what is refused with file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from whale.domains.search_qa.retrieval.corpus import Document, Dropped, corpus_digest, count_rows, read_documents
from whale.domains.search_qa.retrieval.store import build_once, open_store
from whale.errors import DomainError


def write(path: Path, rows: list[Any]) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def read(*paths: Path) -> list[Document]:
    return list(read_documents(paths, Dropped()))


def test_both_layouts_plain_and_gzipped(tmp_path: Path) -> None:
    fields = write(tmp_path / "a.jsonl", [{"id": 7, "title": " Ada ", "text": "Wrote notes.\nTwo lines."}])
    contents = write(
        tmp_path / "b.jsonl.gz", [{"id": "x", "contents": '"Bob"\nDrew maps.'}, {"id": "y", "contents": "One line."}]
    )
    assert read(fields, contents) == [
        Document("7", "Ada", "Wrote notes.\nTwo lines."),
        Document("x", "Bob", "Drew maps."),
        Document("y", "", "One line."),
    ]
    assert count_rows([fields, contents]) == 3


def test_repeated_and_empty_passages_are_left_out_and_counted(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", [{"id": "1", "title": "A", "text": "one"}, "", {"id": "2", "text": " "}])
    second = write(tmp_path / "b.jsonl", [{"id": "9", "title": "A", "text": "one "}, {"id": "1", "text": "two"}])
    dropped = Dropped()
    found = list(read_documents([first, second], dropped))
    assert dropped == Dropped(duplicates=1, empty=1)
    # The same title under another text is another passage, and an id of another file gets that file's name.
    assert [document.id for document in found] == ["1", "b:1"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: an object is expected, found list"),
        ('{"title": "A", "text": "b"}', "line 2: id must be a text or a number, found None"),
        ('{"id": true, "text": "b"}', "line 2: id must be"),
        ('{"id": "2", "title": "A"}', "line 2: text must be a text, found None"),
        ('{"id": "2", "title": 3, "text": "b"}', "line 2: title must be a text, found 3"),
        ('{"id": "2", "contents": 3}', "line 2: contents must be a text, found 3"),
        ('{"id": "1", "text": "other"}', "line 2: id '1' names an earlier, different passage"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"id": "1", "text": "fine"}, row])
    with pytest.raises(DomainError, match=r"a\.jsonl, " + message):
        read(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match=r"there is no file .*none\.jsonl"):
        read(tmp_path / "none.jsonl")
    packed = write(tmp_path / "a.jsonl.gz", [{"id": str(i), "text": f"text {i}"} for i in range(2000)])
    packed.write_bytes(packed.read_bytes()[:-200])
    for use in (lambda: read(packed), lambda: corpus_digest([packed])):
        with pytest.raises(DomainError, match=r"a\.jsonl\.gz cannot be read"):
            use()
    (tmp_path / "b.jsonl").write_bytes(b'{"id": "1", "text": "\xff"}\n')
    with pytest.raises(DomainError, match=r"b\.jsonl, line 1: not JSON in UTF-8"):
        read(tmp_path / "b.jsonl")


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    rows = [{"id": "1", "text": "one"}, {"id": "2", "text": "two"}]
    (tmp_path / "copy").mkdir()
    plain = write(tmp_path / "a.jsonl", rows)
    packed = write(tmp_path / "copy" / "a.jsonl.gz", rows)
    assert corpus_digest([plain]) == corpus_digest([packed])
    other = write(tmp_path / "copy" / "a.jsonl", rows[::-1])
    assert corpus_digest([plain]) != corpus_digest([other])
    assert corpus_digest([plain, other]) != corpus_digest([other, plain])


def test_the_store_gives_back_what_was_read(tmp_path: Path) -> None:
    texts = ["plain", "tab\tand \u2028 line \n break", "emoji \U0001f40b", "\ud800 lone", "é" * 5000]
    path = write(tmp_path / "a.jsonl", [{"id": str(i), "title": f"T{i}", "text": t} for i, t in enumerate(texts)])
    said: list[str] = []
    store = open_store([path], tmp_path / "cache", said.append)
    assert list(store.documents()) == read(path)
    assert store.get(4).text == "é" * 5000
    assert [document.id for document in store.documents(1, 3)] == ["1", "2"]
    store.close()
    assert any("5 passages" in line for line in said)
    before = len(said)
    open_store([path], tmp_path / "cache", said.append).close()
    assert len(said) == before  # read once


def test_an_empty_corpus_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"id": "1", "text": ""}])
    with pytest.raises(DomainError, match="no passage"):
        open_store([path], tmp_path / "cache", lambda line: None)
    assert not list((tmp_path / "cache").glob("corpus-*[0-9a-f]/meta.json"))


def test_a_half_built_folder_is_never_used(tmp_path: Path) -> None:
    target = tmp_path / "index"

    def fail(work: Path) -> None:
        (work / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(target, fail)
    assert not target.exists()
    seen: list[list[str]] = []

    def build(work: Path) -> None:
        seen.append(sorted(path.name for path in work.iterdir()))
        (work / "whole").write_text("x")

    build_once(target, build)
    assert sorted(path.name for path in target.iterdir()) == ["whole"]
    assert seen == [[]]  # what the first try left is gone
    build_once(target, fail)  # there: not built again
