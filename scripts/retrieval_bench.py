"""Measures retrieval on real corpora and prints one JSON object: build, search times, recall of gold paragraphs.

    WHALE_TEST_DATA=... python scripts/retrieval_bench.py --kind bm25
    WHALE_TEST_DATA=... python scripts/retrieval_bench.py --kind dense --encoder FOLDER --cache FOLDER

Gold paragraphs are those of HotpotQA, 2WikiMultihopQA, MuSiQue and PopQA, looked for among all corpora together.
Recall@k of a question: share of its gold paragraphs among the first k passages; ``any``: whether one of them is there;
``titles``: share of its gold titles among the titles of the first k (the corpora hold other cuts of the same articles).
Times are medians of wall-clock seconds, with CPU seconds beside them, because a machine may be shared.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from whale.domains.search_qa.retrieval import Passage, Retriever, open_retriever

SETS = {
    "hotpotqa": ("hotpotqa_distractor.jsonl.gz", "hotpotqa_train_gold.jsonl"),
    "2wikimultihopqa": ("2wikimultihopqa.jsonl", "2wikimultihopqa_distractor.jsonl.gz"),
    "musique": ("musique.jsonl", "musique_distractor.jsonl.gz"),
    "popqa": ("popqa.jsonl",),
}
DEPTHS = (1, 5, 10)
CONCURRENCY = (1, 16, 64)


def main() -> None:
    arguments = read_arguments()
    folder = Path(os.environ.get("WHALE_TEST_DATA", "")) / "search_qa"
    pattern = arguments.corpora
    corpora = sorted(folder.glob(pattern))
    if not corpora:
        sys.exit(f"no file {pattern} in {folder}: set WHALE_TEST_DATA")
    if arguments.static_from:
        make_static(arguments.static_from, arguments.encoder)
    cache = Path(arguments.cache or tempfile.mkdtemp(prefix="retrieval-bench-"))
    try:
        print(json.dumps(measure(arguments, folder, corpora, cache), indent=1))
    finally:
        if not arguments.cache:
            shutil.rmtree(cache)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("bm25", "dense"), default="bm25")
    parser.add_argument("--encoder", default="", help="folder or hub id of the sentence encoder")
    parser.add_argument("--static-from", default="", help="first make --encoder from the word vectors of this one")
    parser.add_argument("--option", action="append", default=[], help="name=JSON value, e.g. max_length=128")
    parser.add_argument("--corpora", default="corpus_*.jsonl.gz", help="which corpora of the data folder")
    parser.add_argument("--cache", default="", help="folder for indexes; a stopped dense build goes on there")
    parser.add_argument("--questions", type=int, default=500, help="questions per set at most")
    parser.add_argument("--timed", type=int, default=256, help="queries of each time")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 20_000, 40_000], help="corpora of the growth")
    return parser.parse_args()


def measure(arguments: argparse.Namespace, folder: Path, corpora: Sequence[Path], cache: Path) -> dict[str, Any]:
    options = options_of(arguments, corpora, cache)
    questions = {name: read_questions(folder, files, arguments.questions) for name, files in SETS.items()}
    queries = [question["question"] for rows in questions.values() for question in rows]
    random.Random(0).shuffle(queries)
    queries = queries[: arguments.timed]
    result: dict[str, Any] = {"kind": arguments.kind, "options": {**options, "corpus": [p.name for p in corpora]}}
    passages = list(read_rows(corpora))
    # Indexed before anything of the same size is held in memory or in the page cache of this process.
    result |= asyncio.run(one_corpus(options, queries, questions, Gold(passages)))
    result["growth"] = {}
    random.Random(1).shuffle(passages)
    for size in arguments.sizes:
        part = cache / f"part-{size}.jsonl"
        part.write_text("".join(json.dumps({**p, "id": i}) + "\n" for i, p in enumerate(passages[:size])))
        result["growth"][size] = asyncio.run(grown(options_of(arguments, [part], cache), queries))
    return result


def options_of(arguments: argparse.Namespace, corpora: Sequence[Path], cache: Path) -> dict[str, Any]:
    options: dict[str, Any] = {"kind": arguments.kind, "corpus": [str(p) for p in corpora], "cache": str(cache)}
    if arguments.encoder:
        options["encoder"] = arguments.encoder
    return options | {name: json.loads(value) for name, _, value in (o.partition("=") for o in arguments.option)}


async def one_corpus(
    options: dict[str, Any], queries: Sequence[str], questions: dict[str, list[dict[str, Any]]], gold: Gold
) -> dict[str, Any]:
    retriever, start = await started(options)
    result = {"name": retriever.name, "start": start, "search": {}}
    for count in CONCURRENCY:
        result["search"][count] = await timed(retriever, queries, count)
    result["recall"] = {name: await recall(retriever, rows, gold) for name, rows in questions.items()}
    await retriever.close()
    retriever, result["load"] = await started(options)
    await retriever.close()
    return result


async def grown(options: dict[str, Any], queries: Sequence[str]) -> dict[str, Any]:
    retriever, start = await started(options)
    figures = {str(count): await timed(retriever, queries, count) for count in CONCURRENCY}
    await retriever.close()
    return {"start": start, "search": figures}


async def started(options: dict[str, Any]) -> tuple[Retriever, dict[str, float]]:
    retriever = open_retriever(options, None)
    wall, cpu = time.perf_counter(), time.process_time()
    await retriever.start()
    return retriever, {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


async def timed(retriever: Retriever, queries: Sequence[str], concurrent: int) -> dict[str, float]:
    """Times of top-5 searches with ``concurrent`` of them open at any time."""
    times: list[float] = []
    waiting = iter(queries)

    async def one_after_another() -> None:
        for query in waiting:
            begin = time.perf_counter()
            await retriever.search(query, 5, 200)
            times.append(time.perf_counter() - begin)

    for query in queries[:8]:
        await retriever.search(query, 5, 200)
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one_after_another() for _ in range(concurrent)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "median_ms": 1e3 * statistics.median(times),
        "p95_ms": 1e3 * statistics.quantiles(times, n=20)[-1],
        "cpu_ms_per_query": 1e3 * cpu / len(times),
        "queries_per_second": len(times) / wall,
    }


class Gold:
    """Knows a passage by its title and text, however they are spaced."""

    def __init__(self, passages: Iterable[dict[str, Any]]) -> None:
        self._known = {content(p) for p in passages}

    def of(self, question: dict[str, Any]) -> tuple[set[tuple[str, str]], int]:
        """Gold paragraphs of a question that the corpora hold, and how many they lack."""
        paragraphs = {content(p) for p in question["gold"]}
        return paragraphs & self._known, len(paragraphs - self._known)


async def recall(retriever: Retriever, questions: list[dict[str, Any]], gold: Gold) -> dict[str, Any]:
    sums = {name: dict.fromkeys(DEPTHS, 0.0) for name in ("recall", "any", "titles")}
    asked = lacking = 0
    for question in questions:
        wanted, missing = gold.of(question)
        lacking += missing
        if not wanted:
            continue
        asked += 1
        found = await retriever.search(question["question"], max(DEPTHS), None)
        for depth in DEPTHS:
            for name, share in shares(wanted, found[:depth]).items():
                sums[name][depth] += share
    figures = {name: {depth: value / asked for depth, value in by.items()} for name, by in sums.items() if asked}
    return {"questions": asked, "gold_paragraphs_not_in_the_corpora": lacking, **figures}


def shares(wanted: set[tuple[str, str]], found: Sequence[Passage]) -> dict[str, float]:
    contents = {(spaced(p.title), spaced(p.text)) for p in found}
    titles = {title for title, _ in wanted}
    return {
        "recall": len(wanted & contents) / len(wanted),
        "any": float(bool(wanted & contents)),
        "titles": len(titles & {title for title, _ in contents}) / len(titles),
    }


def content(passage: dict[str, Any]) -> tuple[str, str]:
    return spaced(passage["title"]), spaced(passage["text"])


def spaced(text: str) -> str:
    return " ".join(text.split())


def read_questions(folder: Path, files: Sequence[str], most: int) -> list[dict[str, Any]]:
    """Questions with gold paragraphs, a fixed sample of them, without repeated ones."""
    found: dict[str, dict[str, Any]] = {}
    for row in read_rows(folder / name for name in files):
        gold = row.get("gold_paragraphs") or [p for p in row.get("paragraphs", ()) if p["is_supporting"]]
        if gold:
            found.setdefault(spaced(row["question"]).lower(), {"question": row["question"], "gold": gold})
    rows = list(found.values())
    random.Random(0).shuffle(rows)
    return rows[:most]


def read_rows(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as handle:
            yield from map(json.loads, handle)


def make_static(source: str, target: str) -> None:
    """Save an encoder without layers: the word vectors of ``source`` in their 256 main directions, rare tokens
    weighted up. Fast on any CPU and far worse than its source: it shows the machinery, not what dense search can do."""
    import numpy as np
    from safetensors.numpy import load_file
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(source) / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tensors = load_file(Path(source) / "model.safetensors")
    vectors = next(value for name, value in tensors.items() if name.endswith("word_embeddings.weight"))
    vectors = vectors.astype(np.float64) - vectors.mean(axis=0)
    _, directions = np.linalg.eigh(vectors.T @ vectors)
    # Vocabularies are sorted by frequency: the place of a token stands for its rarity (Zipf).
    weights = np.log(2 + np.arange(len(vectors)))[:, None]
    table = (vectors @ directions[:, -256:] * weights).astype(np.float32)
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table)], device="cpu").save(target)


if __name__ == "__main__":
    main()
