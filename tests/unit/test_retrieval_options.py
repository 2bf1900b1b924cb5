"""Options of retrievers, the checks before a build, and the rules for prompts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from whale.cli_retriever import retriever_options
from whale.domains.search_qa.retrieval import RetrievalError, open_retriever
from whale.domains.search_qa.retrieval.base import read_options
from whale.domains.search_qa.retrieval.dense import WAY_OUT, DenseOptions, DenseRetriever, vector_bytes
from whale.domains.search_qa.retrieval.encoder import choose_prompt, is_e5, read_dimension
from whale.domains.search_qa.retrieval.room import Room, check_room, measure_room
from whale.errors import ConfigError, WhaleError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"the option kind is missing: .*known are bm25, dense, http"),
        ({"kind": "bm52", "corpus": ["a"]}, "did you mean 'bm25'"),
        ({"kind": "bm25"}, "retriever bm25 needs the option 'corpus'"),
        ({"kind": "bm25", "corpus": []}, "option corpus: .*at least 1"),
        ({"kind": "bm25", "corpus": "a.jsonl"}, "option corpus: .*list.*found 'a.jsonl'"),
        ({"kind": "bm25", "corpus": ["a"], "titel": True}, "no option 'titel': did you mean 'title'"),
        ({"kind": "bm25", "corpus": ["a"], "b": 2.0}, "option b: .*less than or equal to 1.*found 2.0"),
        ({"kind": "bm25", "corpus": ["a"], "stemmer": "german"}, "option stemmer: .*'english'.*found 'german'"),
        ({"kind": "dense", "corpus": ["a"]}, "needs the option 'encoder'"),
        ({"kind": "dense", "corpus": ["a"], "encoder": "e", "dtype": "int8"}, "option dtype: .*found 'int8'"),
        ({"kind": "dense", "corpus": ["a"], "encoder": "e", "prompt": ""}, "did you mean 'query_prompt'"),
        ({"kind": "http", "url": "localhost:8000"}, "option url: .*http://127.0.0.1:8000"),
        ({"kind": "http", "url": "http://h", "timeout": 0}, "option timeout: .*greater than 0"),
        ({"kind": "http", "url": "http://h", "retry": 1}, "did you mean 'retries'"),
    ],
)
def test_bad_options_are_named_with_the_way_out(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_retriever(options, None)


@pytest.mark.slow
def test_nothing_heavy_is_imported_before_start(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom whale.domains.search_qa.retrieval import open_retriever\n"
        "open_retriever({'kind': 'bm25', 'corpus': ['a']}, None)\n"
        "open_retriever({'kind': 'dense', 'corpus': ['a'], 'encoder': 'e'}, None)\n"
        "open_retriever({'kind': 'http', 'url': 'http://127.0.0.1:1'}, None)\n"
        "heavy = {'torch', 'transformers', 'bm25s', 'faiss', 'httpx', 'starlette', 'sentence_transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_outage_is_an_error_of_whale() -> None:
    assert issubclass(RetrievalError, WhaleError)
    assert issubclass(RetrievalError, RuntimeError)


def test_the_wikipedia_index_is_refused_on_a_small_machine() -> None:
    need = vector_bytes(21_000_000, 768, "float32")
    assert need == 64_512_000_000
    said: list[str] = []
    with pytest.raises(RetrievalError) as caught:
        check_room("the index", need, 0, Room(32_000_000_000, 10**12), WAY_OUT, said.append)
    assert said == ["the index needs: memory 64.5 GB of 32.0 GB free"]
    for part in ("64.5 GB of memory", "32.0 GB are free", "small corpus", "bm25"):
        assert part in str(caught.value)
    check_room("the index", need, 0, Room(65_000_000_000, 0), WAY_OUT, said.append)
    check_room("the index", vector_bytes(21_000_000, 768, "float16"), 0, Room(33 * 10**9, 0), WAY_OUT, said.append)
    with pytest.raises(RetrievalError, match=r"64\.5 GB of disk, 9\.0 GB are free"):
        check_room("the index", need, need, Room(10**12, 9_000_000_000), WAY_OUT, said.append)


def test_the_check_comes_before_the_encoder_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "config.json").write_text(json.dumps({"hidden_size": 768}))  # no weights: cannot be loaded
    corpus = tmp_path / "a.jsonl"
    corpus.write_text("".join(json.dumps({"id": i, "text": f"text {i}"}) + "\n" for i in range(1000)))
    given = {"corpus": [str(corpus)], "encoder": str(tmp_path / "encoder"), "cache": str(tmp_path / "cache")}
    options = read_options(DenseOptions, given, "retriever dense")
    retriever = DenseRetriever(options, None, lambda line: None, lambda folder: Room(3_000_000, 10**12))
    with pytest.raises(RetrievalError, match=r"1,000 passages x 768 .* 3\.1 MB of memory, 3\.0 MB are free"):
        retriever.load(tmp_path / "cache" / retriever.name)
    assert not (tmp_path / "cache").exists()  # and before anything is written


def test_the_room_of_this_machine(tmp_path: Path) -> None:
    room = measure_room(tmp_path / "not" / "there")
    assert room.memory > 0
    assert room.disk > 0


@pytest.mark.parametrize(
    ("given", "stored", "name", "query", "passage"),
    [
        (None, {}, "intfloat/e5-base-v2", "query: ", "passage: "),
        (None, {"query": "", "document": ""}, "/models/multilingual-e5-small", "query: ", "passage: "),
        (None, {"query": "Q: "}, "intfloat/e5-base-v2", "Q: ", ""),
        (None, {"query": "query: ", "passage": "passage: "}, "e5-base", "query: ", "passage: "),
        (None, {"query": "find ", "document": "doc "}, "some/model", "find ", "doc "),
        (None, {}, "some/model", "", ""),
        ("", {"query": "query: ", "document": "passage: "}, "e5-base", "", ""),
        ("X ", {"query": "query: "}, "e5-base", "X ", "X "),
    ],
)
def test_one_prompt_each(given: str | None, stored: dict[str, str], name: str, query: str, passage: str) -> None:
    assert choose_prompt("query", given, stored, name) == query
    assert choose_prompt("passage", given, stored, name) == passage


def test_names_of_the_e5_family() -> None:
    for name in ("intfloat/e5-base-v2", "/m/E5-small/", "/hub/models--intfloat--e5-large/snapshots/abc"):
        assert is_e5(name)
    for name in ("intfloat/multilingual-e5-large-instruct", "intfloat/e5-mistral-7b", "all-MiniLM-L6-v2", "home5/x"):
        assert not is_e5(name)


def test_the_length_of_vectors_is_read_from_files(tmp_path: Path) -> None:
    assert read_dimension(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 768}))
    assert read_dimension(tmp_path) == 768
    modules = [
        {"path": "", "type": "x.Transformer"},
        {"path": "1", "type": "x.Pooling"},
        {"path": "2", "type": "x.Dense"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for number, config in (("1", {"pooling_mode_mean_tokens": True}), ("2", {"out_features": 64})):
        (tmp_path / number).mkdir()
        (tmp_path / number / "config.json").write_text(json.dumps(config))
    assert read_dimension(tmp_path) == 64


def test_options_of_the_command_line(tmp_path: Path) -> None:
    options = retriever_options("bm25", [Path("a")], "", tmp_path, ["title=false", "k1=1.2", "stemmer=none"])
    assert options == {
        "kind": "bm25", "corpus": ["a"], "cache": str(tmp_path), "title": False, "k1": 1.2, "stemmer": "none"
    }  # fmt: skip
    with pytest.raises(ConfigError, match="name=value"):
        retriever_options("bm25", [Path("a")], "", None, ["title"])
    with pytest.raises(ConfigError, match="--kind http"):
        retriever_options("http", [Path("a")], "", None, [])
