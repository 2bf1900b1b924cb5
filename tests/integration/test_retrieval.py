"""BM25 and dense retrieval on real indexes: what is found, what is kept on disk, what a kill leaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whale.domains.search_qa.retrieval import Passage, RetrievalError, Retriever, open_retriever

pytest.importorskip("bm25s")

PASSAGES = [
    ("Blue whale", "The blue whale is the largest animal known to have lived."),
    ("Krill", "Krill are small crustaceans eaten by whales and seals."),
    ("José Martí", "A Cuban poet and essayist born in Havana."),
    ("Havana", "Havana is the capital of Cuba."),
    ("Baleen", "Baleen plates filter krill out of the water."),
    ("Twin one", "An identical sentence about lighthouses."),
    ("Twin two", "An identical sentence about lighthouses."),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": f"p{i}", "title": title, "text": text} for i, (title, text) in enumerate(PASSAGES)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def using(retriever: Retriever, work: Callable[[Retriever], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        await retriever.start()
        try:
            return await work(retriever)
        finally:
            await retriever.close()

    return asyncio.run(run())


def bm25(corpus: Path, **options: Any) -> Retriever:
    given = {"kind": "bm25", "corpus": [str(corpus)], "cache": str(corpus.parent / "cache"), **options}
    return open_retriever(given, None, lambda line: None)


def ids(passages: list[Passage]) -> list[str]:
    return [passage.id for passage in passages]


def test_bm25_finds_by_words(corpus: Path) -> None:
    async def work(retriever: Retriever) -> None:
        found = await retriever.search("Which animal is the largest?", 3, None)
        assert found[0].id == "p0"
        assert found[0].title == "Blue whale"
        assert found[0].text == PASSAGES[0][1]
        assert ids(await retriever.search("jose marti", 1, None)) == ["p2"]  # accents do not matter
        krill = await retriever.search("krill", 10, None)
        assert sorted(ids(krill)) == ["p1", "p4"]  # only what shares a word, however many are asked for
        assert krill[0].score >= krill[1].score > 0
        assert ids(await retriever.search("identical lighthouses", 2, None)) == ["p5", "p6"]  # a tie: corpus order
        assert ids(await retriever.search("identical lighthouses", 1, None)) == ["p5"]
        for nothing in ("", "  ", "the of and", "?!", "zzzz unknown"):
            assert await retriever.search(nothing, 3, None) == []
        assert (await retriever.search("largest", 1, 3))[0].text == "The"
        for top_k, max_tokens in ((0, None), (1, 0)):
            with pytest.raises(ValueError, match="at least 1"):
                await retriever.search("krill", top_k, max_tokens)

    using(bm25(corpus), work)


def test_settings_change_what_is_found_and_the_name(corpus: Path) -> None:
    async def title_query(retriever: Retriever) -> list[str]:
        return ids(await retriever.search("Martí", 1, None))

    with_title, without = bm25(corpus), bm25(corpus, title=False)
    assert using(with_title, title_query) == ["p2"]
    assert using(without, title_query) == []
    assert with_title.name != without.name
    assert with_title.name.startswith("bm25-1-")
    name = with_title.name
    corpus.write_text(corpus.read_text() + json.dumps({"id": "n", "text": "new"}) + "\n")
    assert bm25(corpus).name.rsplit("-", 1)[0] == name.rsplit("-", 1)[0]
    assert bm25(corpus).name != name


def test_one_retriever_serves_many_tasks_and_event_loops(corpus: Path) -> None:
    retriever = bm25(corpus)
    queries = ["largest animal", "krill", "capital of Cuba", "lighthouses", ""] * 40

    async def ask() -> list[list[str]]:
        return [ids(found) for found in await asyncio.gather(*(retriever.search(q, 2, None) for q in queries))]

    asyncio.run(retriever.start())
    first, second = asyncio.run(ask()), asyncio.run(ask())
    assert first == second
    assert first[:5] == first[5:10]
    assert [found[:1] for found in first[:5]] == [["p0"], ["p1"], ["p3"], ["p5"], []]
    asyncio.run(retriever.close())
    asyncio.run(retriever.close())
    with pytest.raises(RetrievalError, match="start"):
        asyncio.run(ask())


def test_a_cancelled_search_does_not_stop_the_others(corpus: Path) -> None:
    async def work(retriever: Retriever) -> None:
        tasks = [asyncio.create_task(retriever.search("krill", 1, None)) for _ in range(20)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[3], asyncio.CancelledError)
        assert all(ids(found) == ["p1"] for i, found in enumerate(results) if i != 3)  # type: ignore[arg-type]

    using(bm25(corpus), work)


def test_the_index_is_built_once_and_a_damaged_one_is_named(corpus: Path) -> None:
    said: list[str] = []
    options = {"kind": "bm25", "corpus": [str(corpus)], "cache": str(corpus.parent / "cache")}

    async def nothing(retriever: Retriever) -> str:
        return retriever.name

    name = using(open_retriever(options, None, said.append), nothing)
    assert any("BM25 index of 7 passages" in line for line in said)
    said.clear()
    using(open_retriever(options, None, said.append), nothing)
    assert said == []
    (corpus.parent / "cache" / name / "data.csc.index.npy").write_bytes(b"not an array")
    with pytest.raises(RetrievalError, match=f"{name} cannot be read .*delete the folder"):
        using(open_retriever(options, None, said.append), nothing)


def test_a_corpus_without_words_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": 1, "title": "?", "text": "! ... -"}) + "\n")
    with pytest.raises(RetrievalError, match="no word"):
        asyncio.run(bm25(path).start())


def test_an_english_stemmer_finds_other_forms_or_says_what_is_missing(corpus: Path) -> None:
    async def work(retriever: Retriever) -> list[str]:
        return ids(await retriever.search("lighthouse identically", 1, None))

    try:
        import Stemmer  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        with pytest.raises(RetrievalError, match="pip install PyStemmer"):
            using(bm25(corpus, stemmer="english"), work)
    else:
        assert using(bm25(corpus, stemmer="english"), work) == ["p5"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder built in code: a table of random word vectors, averaged."""
    return make_encoder(tmp_path_factory.mktemp("models") / "static")


def make_encoder(folder: Path, prompts: dict[str, str] | None = None) -> Path:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    pytest.importorskip("faiss")
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = sorted({w for t, x in PASSAGES for w in f"{t} {x} query passage find : . ? {t} {x}".lower().split()})
    words += sorted({w.strip(".,:?") for w in words} - set(words))
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, **{w: i + 1 for i, w in enumerate(words)}}, "[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    table = np.random.default_rng(0).normal(size=(len(words) + 1, 24)).astype(np.float32)
    module = StaticEmbedding(tokenizer, embedding_weights=table)
    sentence_transformers.SentenceTransformer(modules=[module], device="cpu", prompts=prompts).save(str(folder))
    return folder


def dense(corpus: Path, encoder: Path, **options: Any) -> Retriever:
    given = {"kind": "dense", "corpus": [str(corpus)], "encoder": str(encoder), "device": "cpu"}
    return open_retriever({**given, "cache": str(corpus.parent / "cache"), **options}, None, lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"shard_rows": 2}, {"dtype": "float16", "shard_rows": 3}])
def test_dense_search_is_the_exact_order(corpus: Path, encoder: Path, options: dict[str, Any]) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(encoder), device="cpu")
    texts = [f"{title}\n{text}" for title, text in PASSAGES]
    queries = ["largest animal whale", "capital of Cuba", "krill"]
    vectors = model.encode([*texts, *queries], normalize_embeddings=True)
    expected = vectors[len(texts) :] @ vectors[: len(texts)].T

    async def work(retriever: Retriever) -> None:
        results = await asyncio.gather(*(retriever.search(query, 50, None) for query in queries))
        for found, scores in zip(results, expected, strict=True):
            assert [p.score for p in found] == pytest.approx(sorted(scores, reverse=True), abs=2e-3)
            assert all(p.score == pytest.approx(scores[int(p.id[1:])], abs=2e-3) for p in found)
        assert ids(await retriever.search("krill", 2, None)) == ids(results[2])[:2]
        assert ids(await retriever.search(PASSAGES[5][1], 2, 3)) == ["p5", "p6"]
        assert await retriever.search(" ", 2, None) == []

    using(dense(corpus, encoder, **options), work)


@pytest.mark.slow
def test_prompts_are_put_once(corpus: Path, tmp_path: Path) -> None:
    from whale.domains.search_qa.retrieval.encoder import Encoder

    e5 = make_encoder(tmp_path / "e5-tiny")
    stored = make_encoder(tmp_path / "e5-stored", {"query": "query: ", "document": "passage: "})
    plain = make_encoder(tmp_path / "plain")

    def vector(folder: Path, text: str, side: Any, **prompts: str) -> list[float]:
        return Encoder(folder, str(folder), prompts, device="cpu").encode([text], side)[0].tolist()

    for side, prefix in (("query", "query: "), ("passage", "passage: ")):
        once = pytest.approx(vector(plain, f"{prefix}krill", side), abs=1e-6)
        assert vector(e5, "krill", side) == once
        assert vector(stored, "krill", side) == once
        assert vector(plain, "krill", side, **{side: prefix}) == once
        assert vector(plain, "krill", side) != once
        # The user's word stands above what is stored, even if it is "none".
        assert vector(stored, "krill", side, **{side: ""}) == pytest.approx(vector(plain, "krill", side), abs=1e-6)
    assert dense(corpus, e5).name != dense(corpus, plain).name


BUILD = """
import asyncio, json, os, signal, sys
from whale.domains.search_qa.retrieval import open_retriever
options = json.loads(sys.argv[1])
def say(line):
    if "of 7 passages" in line and line.startswith("dense index: 5"):
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(open_retriever(options, None, say).start())
"""


@pytest.mark.slow
def test_a_killed_build_goes_on_where_it_was(corpus: Path, encoder: Path) -> None:
    cache = corpus.parent / "killed"
    # One row a shard: the process kills itself when the fifth is encoded, before that shard is written.
    options = {"kind": "dense", "corpus": [str(corpus)], "encoder": str(encoder), "device": "cpu", "shard_rows": 1}
    command = [sys.executable, "-c", BUILD, json.dumps({**options, "cache": str(cache)})]
    killed = subprocess.run(command, timeout=120, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert killed.returncode == -signal.SIGKILL
    (work,) = cache.glob("dense-*.building")
    kept = {path.name: path.stat().st_mtime_ns for path in work.glob("shard-*.npy")}
    assert sorted(kept) == [f"shard-{i:05d}.npy" for i in range(4)]

    async def search(retriever: Retriever) -> list[tuple[str, float]]:
        return [(p.id, p.score) for p in await retriever.search("krill whale", 7, None)]

    resumed = using(dense(corpus, encoder, shard_rows=1, cache=str(cache)), search)
    (folder,) = (path for path in cache.glob("dense-*") if path.is_dir())
    assert not folder.name.endswith(".building")
    assert {name: (folder / name).stat().st_mtime_ns for name in kept} == kept  # not encoded again
    assert len(list(folder.glob("shard-*.npy"))) == 7
    assert resumed == using(dense(corpus, encoder, cache=str(corpus.parent / "fresh")), search)


@pytest.mark.slow
def test_a_shard_of_another_shape_is_named(corpus: Path, encoder: Path) -> None:
    async def nothing(retriever: Retriever) -> str:
        return retriever.name

    name = using(dense(corpus, encoder), nothing)
    shard = corpus.parent / "cache" / name / "shard-00000.npy"
    np.save(shard, np.zeros((3, 24), dtype=np.float32))
    with pytest.raises(RetrievalError, match=r"shard-00000\.npy holds \(3, 24\) .*delete the folder"):
        using(dense(corpus, encoder), nothing)


@pytest.mark.slow
def test_encoders_that_cannot_be_used(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    with pytest.raises(RetrievalError, match="there is no folder"):
        asyncio.run(dense(corpus, tmp_path / "none").start())
    with pytest.raises(RetrievalError, match="whale models pull nobody/nothing"):
        asyncio.run(dense(corpus, Path("nobody/nothing")).start())
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    with pytest.raises(RetrievalError, match="cannot be loaded"):
        asyncio.run(dense(corpus, tmp_path / "broken").start())


@pytest.mark.slow
def test_real_corpora_are_found_by_their_own_sentences(tmp_path: Path) -> None:
    data = os.environ.get("WHALE_TEST_DATA")
    if not data:
        pytest.skip("WHALE_TEST_DATA is not set")
    corpora = sorted(Path(data).glob("search_qa/corpus_[hmp]*.jsonl.gz"))
    assert corpora
    retriever = open_retriever(
        {"kind": "bm25", "corpus": [str(path) for path in corpora], "cache": str(tmp_path)}, None, lambda line: None
    )

    async def work(retriever: Retriever) -> float:
        store = retriever._loaded.store  # type: ignore[attr-defined]
        rows = range(0, store.rows, 101)
        documents = [store.get(row) for row in rows]
        found = await asyncio.gather(*(retriever.search(d.text[:200], 3, None) for d in documents))
        return sum(d.id in ids(passages) for d, passages in zip(documents, found, strict=True)) / len(documents)

    assert using(retriever, work) > 0.95
