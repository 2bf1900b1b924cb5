"""What a domain itself costs per rollout, with an engine that answers at once; prints one JSON object.

    WHALE_TEST_DATA=... python scripts/domain_bench.py

Each rollout of h0 calls the domain's tools: two turns with a search or an interpreter run between them, or the moves of
a puzzle. Sealed processes and verification are included. ``alone`` is the same with a harness that asks the model twice
and uses no tool: what any rollout costs. Seconds are wall-clock per rollout, blocks of ``--rollouts``, in turn.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from whale.archive import make_candidate
from whale.domains import load_domain
from whale.protocols import Domain
from whale.rollout import Attempt, Setting, run_rollouts
from whale.scripted import ScriptedEngine
from whale.types import Limits, Sampling, Task

ALONE = """
class Harness:
    async def run(self, task, session) -> str:
        messages = [{"role": "user", "content": str(vars(task))[:2000]}]
        await session.chat(messages)
        return (await session.chat(messages)).text
"""
Reply = Callable[[str, int], str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=512)
    parser.add_argument("--concurrent", type=int, nargs="*", default=[1, 16, 64, 256])
    parser.add_argument("--passages", type=int, nargs="*", default=[1_000, 10_000, 40_000])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    data = Path(os.environ.get("WHALE_TEST_DATA", ""))
    if not (data / "search_qa").is_dir():
        sys.exit("set WHALE_TEST_DATA to a folder with search_qa and chess")
    with tempfile.TemporaryDirectory() as folder:
        sides = {"math": (load_domain("math", {}, "sealed"), calls_interpreter), **chess(data)}
        sides |= {
            f"search_qa, {size} passages": (search(data, Path(folder), size), calls_search)
            for size in arguments.passages
        }
        found = {name: measure(domain, reply, arguments) for name, (domain, reply) in sides.items()}
    print(json.dumps({"settings": vars(arguments), "milliseconds_per_rollout": found}, indent=1))


def measure(domain: Domain, reply: Reply, arguments: argparse.Namespace) -> dict[str, Any]:
    tasks = domain.tasks("weights")
    harnesses = {"h0": domain.seed_harness(), "alone": ALONE}
    times: dict[str, dict[str, list[float]]] = {name: {} for name in harnesses}
    for _ in range(arguments.repeats):
        for concurrent in arguments.concurrent:
            for name, source in harnesses.items():
                seconds = block(domain, source, reply, tasks, min(arguments.rollouts, 32 * concurrent), concurrent)
                times[name].setdefault(str(concurrent), []).append(seconds)
    return {
        name: {key: round(1000 * statistics.median(values), 2) for key, values in by.items()}
        for name, by in times.items()
    }


def block(domain: Domain, source: str, reply: Reply, tasks: Sequence[Task], count: int, concurrent: int) -> float:
    harness = make_candidate(0, source)
    attempts = [Attempt(harness, tasks[i % len(tasks)], i, i) for i in range(count)]
    setting = Setting(ScriptedEngine(reply), domain, Sampling(), Limits(context_tokens=100_000), concurrent=concurrent)
    run_rollouts(setting, attempts[:1], 0)  # loads what is loaded once
    began = time.perf_counter()
    rollouts = run_rollouts(setting, attempts, 0)
    seconds = time.perf_counter() - began
    lost = [rollout for rollout in rollouts if rollout.reward is None]
    if lost:
        sys.exit(f"{len(lost)} rollouts were lost: {lost[0].detail}")
    return seconds / count


def calls_search(context: str, seed: int) -> str:
    if "assistant: " in context.removesuffix("assistant: "):
        return "<answer>nobody</answer>"
    found = re.search(r"user: (.*)", context)
    return call("search", query=found.group(1) if found else "")


def calls_interpreter(context: str, seed: int) -> str:
    if "assistant: " in context.removesuffix("assistant: "):
        return "\\boxed{5}"
    return call("code_interpreter", code=f"{seed % 1000} + 1")


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def moves_first_legal(context: str, seed: int) -> str:
    found = re.findall(r"Legal moves: (\w+)", context)
    return f"<move>{found[-1]}</move>"


def chess(data: Path) -> dict[str, tuple[Domain, Reply]]:
    files = sorted((data / "chess").glob("lichess_puzzles*.csv"))
    if not files:
        return {}
    options = {"puzzles": str(files[0]), "sizes": {"weights": 512, "search": 16, "test": 16}}
    return {"chess": (load_domain("chess", options, "sealed"), moves_first_legal)}


def search(data: Path, folder: Path, size: int) -> Domain:
    """The domain over the first ``size`` passages of all corpora."""
    corpus = folder / f"{size}.jsonl"
    with corpus.open("w") as target:
        left = size
        for path in sorted((data / "search_qa").glob("corpus_*.jsonl.gz")):
            with gzip.open(path, "rt") as source:
                for line in source:
                    if not left:
                        break
                    target.write(line)
                    left -= 1
    options = {
        "files": [str(data / "search_qa" / "popqa.jsonl")],
        "sizes": {"weights": 256, "search": 32, "test": 32},
        "retriever": {"kind": "bm25", "corpus": [str(corpus)], "cache": str(folder / "index")},
    }
    return load_domain("search_qa", options, "sealed")


if __name__ == "__main__":
    main()
