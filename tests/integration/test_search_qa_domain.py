"""The search QA domain with a real index, and every harness of its catalogue in the real sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from whale.domains.base import ToolInputError
from whale.domains.search_qa import SearchQaDomain
from whale.domains.search_qa.domain import show
from whale.domains.search_qa.pieces import PIECES
from whale.domains.search_qa.retrieval.base import Passage, RetrievalError
from whale.errors import ConfigError
from whale.harness.validate import source_hash
from whale.rollout import Attempt, Setting, run_rollouts
from whale.scripted import ScriptedEngine
from whale.smoke import smoke_run
from whale.testing.catalogues import compatible_specs, smoke_faults, with_requirements
from whale.types import OWNED, Candidate, Limits, Outcome, Rollout, Sampling, Task

CORPUS = [
    {"id": "1", "title": "Orla Vennick", "text": "Orla Vennick was a glass artist. She was born in Halderby."},
    {
        "id": "2",
        "title": "Halderby",
        "text": "Halderby is a town.\nIts best known resident was Orla Vennick.",
    },
    {"id": "3", "title": "Pellam Strake", "text": "Pellam Strake directed The Tin Orchard."},
    {"id": "4", "title": "Corvane Bridge", "text": "The Corvane Bridge opened in 1871 and crosses the Isk."},
]
BORN = Task("born", {"question": "Where was Orla Vennick born?"}, ["Halderby", "Halderby, Vestmar"], "toy")
CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Orla Vennick birthplace"}}\n</tool_call>'
FIRST = CORPUS[0]["text"]


class Listed:
    """A retriever over a list in memory: passages that share most words with the query, in a fixed order."""

    name = "listed-1"

    def __init__(self, outages: int = 0) -> None:
        self.outages = outages
        self.asked: list[tuple[str, int, int | None]] = []
        self.starts = 0

    async def start(self) -> None:
        """Counts."""
        self.starts += 1

    async def search(self, query: str, top_k: int, max_tokens: int | None) -> list[Passage]:
        """Raises RetrievalError for the first ``outages`` searches."""
        self.asked.append((query, top_k, max_tokens))
        if self.outages:
            self.outages -= 1
            raise RetrievalError("the index does not answer")
        words = set(re.findall(r"\w+", query.lower()))
        found = []
        for row in CORPUS:
            text = f"{row['title']} {row['text']}".lower()
            shared = sum(word in text for word in words)
            if shared:
                text = " ".join(row["text"].split()[:max_tokens])
                found.append(Passage(row["id"], row["title"], text, shared))
        return sorted(found, key=lambda passage: -passage.score)[:top_k]

    async def close(self) -> None:
        """Nothing to close."""


def candidate(domain: SearchQaDomain, spec: dict[str, str]) -> Candidate:
    source = domain.catalogue().render(spec)
    return Candidate("h", source, source_hash(source), spec=spec)


def rollout(
    spec: dict[str, str], replies: Sequence[str], retriever: Listed | None = None, task: Task = BORN, retries: int = 0
) -> Rollout:
    domain = SearchQaDomain(retriever=retriever or Listed())
    setting = Setting(ScriptedEngine(replies), domain, Sampling(), Limits(), isolation="contained", retries=retries)
    return run_rollouts(setting, [Attempt(candidate(domain, spec), task, 0, 0)], 0)[0]


def test_h0_asks_searches_and_answers() -> None:
    retriever = Listed()
    result = rollout({}, [CALL, "She was born in <answer>Halderby</answer>."], retriever)
    assert (result.reward, result.reason, result.turns) == (1, "right", 2)
    assert retriever.asked == [("Orla Vennick birthplace", 1, 200)]  # unchanged, one passage, 200 tokens
    assert result.tools[0].result == f"Title: Orla Vennick\n{FIRST}"
    first = result.calls[0].messages
    assert [message["role"] for message in first] == ["system", "user"]
    assert "\n" not in first[0]["content"]
    assert "<answer>" in first[1]["content"]


@pytest.mark.parametrize(
    ("replies", "reward", "reason", "calls"),
    [
        (["<answer>Halderby</answer>"], 1, "right", 1),
        (["Halderby"], 0, "no_answer_tag", 1),
        ([CALL, CALL], 0, "no_answer", 2),  # at most two turns
        ([CALL, "<answer>Mirrin</answer>"], 0, "wrong", 2),
        ([""], 0, "no_answer", 1),
        # what the passage or the prompt says is not the policy's answer
        ([CALL, "Title: Orla Vennick"], 0, "no_answer_tag", 2),
        (["Put your final answer between <answer> and </answer>."], 0, "wrong", 1),
        (['<tool_call>\n{"name": "search", "arguments": {"query": " "}}\n</tool_call>', "x"], 0, "no_answer_tag", 2),
        (['<tool_call>\n{"name": "find", "arguments": {"query": "x"}}\n</tool_call>', "x"], 0, "no_answer_tag", 2),
        (["<tool_call>\n{broken\n</tool_call>", "<answer>Halderby</answer>"], 1, "right", 2),
    ],
)
def test_h0(replies: list[str], reward: float, reason: str, calls: int) -> None:
    result = rollout({}, replies)
    assert (result.reward, result.reason, result.turns) == (reward, reason, calls)


@pytest.mark.parametrize(
    ("spec", "replies", "reward", "searches", "calls"),
    [
        ({"flow": "question_first"}, ["<answer>Halderby</answer>"], 1, 1, 1),
        ({"flow": "question_first", "form": "line", "stop": "one_line"}, ["Halderby\nbecause"], 1, 1, 1),
        ({"flow": "question_first", "form": "line"}, ["Halderby\nbecause"], 0, 1, 1),
        ({"flow": "query_line", "form": "line"}, ["Orla Vennick\nmore", "Halderby"], 1, 1, 2),
        ({"flow": "query_line", "form": "label"}, ["Orla", "It says so.\nAnswer: Halderby."], 1, 1, 2),
        ({"flow": "query_line", "form": "line"}, ["", "Halderby"], 1, 1, 2),
        ({"form": "line"}, [CALL, "Halderby"], 1, 1, 2),
        ({"parse": "open_tag"}, ["It is <answer>Halderby\nI think"], 1, 0, 1),
        ({"form": "line", "parse": "first_line"}, ["Halderby\nor not"], 1, 0, 1),
        ({"form": "line", "parse": "last_line"}, ["Let me see\nHalderby"], 1, 0, 1),
        ({"form": "line", "parse": "first_clause"}, ["Halderby, in the north"], 1, 0, 1),
        ({"retry": "ask_for_tag"}, ["Halderby", "<answer>Halderby</answer>"], 1, 0, 2),
        ({"retry": "again"}, ["Halderby", "<answer>Halderby</answer>"], 1, 0, 2),
        ({"retry": "again", "form": "line"}, [" ", "Halderby"], 1, 0, 2),
        (
            {"flow": "question_first", "form": "line", "retry": "second_search"},
            ["Unknown.", "Orla Vennick", "Halderby"],
            1, 2, 3,
        ),
        ({"flow": "question_first", "form": "line", "retry": "second_search"}, ["Halderby"], 1, 1, 1),
        ({"calls": "vote"}, [f"<answer>{x}</answer>" for x in ("Mirrin", "Halderby", "Halderby")], 1, 0, 3),
        ({"calls": "vote", "form": "line"}, ["Mirrin", "Halderby", "Halderby"], 1, 0, 3),
        ({"calls": "confirm", "form": "line"}, ["Mirrin", "No", "Halderby"], 1, 0, 3),
        ({"calls": "confirm", "flow": "question_first", "form": "line"}, ["Halderby", "yes"], 1, 1, 2),
        (
            {"calls": "decompose", "flow": "query_line", "form": "line"},
            ["Orla Vennick\n\nHalderby\nVestmar\nfourth", "Halderby"],
            1, 3, 2,
        ),
        ({"calls": "decompose", "flow": "question_first", "form": "line"}, ["Halderby mayor", "Halderby"], 1, 2, 2),
        (
            {"calls": "decompose", "flow": "query_line", "observe": "once", "form": "line"},
            ["Orla\nOrla", "Halderby"],
            1, 2, 2,
        ),
        (
            {"flow": "question_first", "depth": "top_3", "observe": "titles_first", "form": "line"},
            ["[1]", "Halderby"],
            1, 1, 2,
        ),
        (
            {"flow": "question_first", "memory": "notes", "form": "line"},
            ["a glass artist", "Orla Vennick birthplace", "Halderby"],
            1, 2, 3,
        ),
        ({"stop": "more_turns"}, [CALL, CALL, CALL, "<answer>Halderby</answer>"], 1, 3, 4),
        ({"observe": "reminder"}, [CALL, "<answer>Halderby</answer>"], 1, 1, 2),
    ],
)  # fmt: skip
def test_mechanisms(spec: dict[str, str], replies: list[str], reward: float, searches: int, calls: int) -> None:
    result = rollout(spec, replies)
    assert result.outcome == Outcome.SCORED, result.detail
    assert (result.reward, len(result.tools), result.turns) == (reward, searches, calls)


def last_prompt(result: Rollout) -> str:
    return str(result.calls[-1].messages[-1]["content"])


def test_what_the_policy_is_shown() -> None:
    base = {"flow": "question_first", "form": "line"}
    question = BORN.inputs["question"]
    shown = last_prompt(rollout(base, ["x"]))
    assert shown.startswith(f"Question: {question}\n\nTitle: Orla Vennick\n{FIRST}\n\n")
    shown = last_prompt(rollout({**base, "prompt": "passage_first"}, ["x"]))
    assert shown.startswith(f"Title: Orla Vennick\n{FIRST}\n\nQuestion: {question}\n\n")
    assert last_prompt(rollout({**base, "prompt": "repeat_question"}, ["x"])).count(question) == 2
    several = last_prompt(rollout({**base, "depth": "top_3"}, ["x"]))
    assert "[1] Title: Orla Vennick\n" in several
    assert "\n\n[2] Title: " in several
    without = last_prompt(rollout({**base, "observe": "no_titles", "depth": "top_3"}, ["x"]))
    assert "Title:" not in without
    assert FIRST in without
    picked = {**base, "depth": "top_3", "observe": "titles_first"}
    shown = last_prompt(rollout(picked, ["2.", "x"]))
    assert "[2] Title: " in shown
    assert "[1]" not in shown
    assert "[1] Title: " in last_prompt(rollout(picked, ["the second", "x"]))  # none named: all are shown
    once = {**base, "flow": "query_line", "calls": "decompose", "observe": "once"}
    assert last_prompt(rollout(once, ["Orla\nOrla", "x"])).count(FIRST) == 1
    del once["observe"]
    assert last_prompt(rollout(once, ["Orla\nOrla", "x"])).count(FIRST) == 2
    noted = last_prompt(rollout({**base, "memory": "notes"}, ["an artist", "Tin Orchard", "x"]))
    assert "Known: an artist" in noted
    assert "Pellam Strake directed" in noted
    assert FIRST not in noted


def test_depth_and_length_reach_the_tool() -> None:
    retriever = Listed()
    rollout({"depth": "top_5", "length": "short"}, [CALL, "x"], retriever)
    rollout({"flow": "question_first", "depth": "top_2", "length": "long"}, ["x"], retriever)
    assert retriever.asked == [("Orla Vennick birthplace", 5, 64), (BORN.inputs["question"], 2, 400)]


@pytest.mark.parametrize("spec", [{}, {"flow": "question_first"}, {"flow": "query_line"}])
def test_an_outage_is_no_wrong_answer(spec: dict[str, str]) -> None:
    replies = [CALL if not spec else "Orla Vennick", "<answer>Halderby</answer>"]
    result = rollout(spec, replies, Listed(outages=1))
    assert (result.outcome, result.reward) == (Outcome.TOOL_INFRA_ERROR, None)
    assert "the index does not answer" in result.detail
    again = rollout(spec, ["<answer>Halderby</answer>"] if spec else replies * 2, Listed(outages=1), retries=1)
    assert (again.outcome, again.reward) == (Outcome.SCORED, 1)


@pytest.mark.slow
def test_two_copies_of_a_harness_score_alike_when_one_meets_an_outage() -> None:
    """A fifth of one side's searches fail: they are tried again, and what is lost is left out on that side."""
    tasks = [Task(f"t{n}", BORN.inputs, BORN.reference) for n in range(20)]
    scores = []
    for outages, retries in ((0, 1), (4, 1), (4, 0)):
        domain = SearchQaDomain(retriever=Listed(outages=outages))
        harness = candidate(domain, {"flow": "question_first"})
        engine = ScriptedEngine(["<answer>Halderby</answer>"])
        setting = Setting(engine, domain, Sampling(), Limits(), isolation="contained", retries=retries)
        rollouts = run_rollouts(setting, [Attempt(harness, task, 0, 0) for task in tasks], 0)
        valid = [item.reward for item in rollouts if item.outcome in OWNED]
        scores.append((sum(valid) / len(valid), len(valid)))
    assert scores == [(1.0, 20), (1.0, 20), (1.0, 16)]


def test_the_tool_refuses_arguments_it_cannot_use() -> None:
    domain = SearchQaDomain(retriever=Listed(), top_k_limit=2, passage_tokens=3, passage_tokens_limit=5)
    search = domain.open(BORN).tools["search"]

    async def use() -> None:
        for arguments in (
            {}, {"query": ""}, {"query": " "}, {"query": 3}, {"query": None}, {"query": "x", "language": "en"},
            {"query": "x" * 2001}, {"query": "x", "top_k": 0}, {"query": "x", "top_k": "3"},
            {"query": "x", "top_k": True}, {"query": "x", "max_tokens": 0}, {"query": "x", "max_tokens": 1.5},
        ):  # fmt: skip
            with pytest.raises(ToolInputError):
                await search(**arguments)
        assert await search(query="Orla") == "Title: Orla Vennick\nOrla Vennick was"
        long = await search(query="Halderby", top_k=50, max_tokens=500)  # the host's bounds stand
        assert long.count("Title: ") == 2
        assert max(len(block.partition("\n")[2].split()) for block in long.split("\n\n")) == 5
        assert await search(query="zebra") == "No passage was found."

    asyncio.run(use())


def test_passages_are_two_lines_each_whatever_they_hold() -> None:
    passages = [Passage("1", "", "a\n\nb", 1.0), Passage("2", "T\n2", "c", 0.5)]
    assert show(passages) == "[1] Title: untitled\na b\n\n[2] Title: T 2\nc"
    assert show(passages[1:]) == "Title: T 2\nc"


def test_a_domain_without_a_retriever_can_be_read_but_not_run() -> None:
    domain = SearchQaDomain()
    assert "search" in domain.skill()
    assert "exact" in domain.version
    with pytest.raises(ConfigError, match="option retriever: missing"):
        asyncio.run(domain.start())


def test_a_retriever_that_is_no_table_is_refused_at_once() -> None:
    """As JSON on the command line becomes: a text."""
    with pytest.raises(ConfigError, match=r"option retriever: a table is expected, found '\{\"kind\"'"):
        SearchQaDomain(retriever='{"kind"')  # type: ignore[arg-type]


def test_gold_and_junk() -> None:
    async def score_all() -> None:
        for options in ({}, {"answer_tag": "optional"}, {"verifier": "f1"}):
            domain = SearchQaDomain(retriever=Listed(), **options)  # type: ignore[arg-type]
            assert (await domain.submit(domain.open(BORN), domain.gold(BORN))).reward == 1
            junk = domain.junk(BORN)
            assert len(junk) >= 8
            for answer in junk:
                assert (await domain.submit(domain.open(BORN), answer)).reward == 0, (options, answer)

    asyncio.run(score_all())


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    return str(path)


@pytest.mark.slow
def test_a_real_index_answers_h0_over_several_blocks(corpus: str, tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    options = {"kind": "bm25", "corpus": [corpus], "cache": str(tmp_path / "index")}
    domain = SearchQaDomain(retriever=options)
    version = domain.version
    engine = ScriptedEngine([CALL, "<answer>Halderby</answer>"])
    setting = Setting(engine, domain, Sampling(), Limits(), isolation="contained", retries=0)
    for _ in range(2):
        result = run_rollouts(setting, [Attempt(candidate(domain, {}), BORN, 0, 0)], 0)[0]
        assert result.reward == 1, result.detail
        assert FIRST in result.tools[0].result
        assert domain.version == version  # the same before and after it was started
    assert version.endswith(domain._retriever.name)  # type: ignore[union-attr]
    assert SearchQaDomain(retriever=options, verifier="f1").version != version


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: f"{piece.axis}-{piece.name}")
def test_every_piece_survives_the_smoke_run(piece) -> None:  # type: ignore[no-untyped-def]
    domain = SearchQaDomain(retriever=Listed())
    spec = with_requirements(domain.catalogue(), piece)
    assert spec is not None
    assert smoke_run(domain, candidate(domain, spec), Limits(), "contained") is None


@pytest.mark.slow
def test_every_compatible_pair_survives_the_smoke_run() -> None:
    domain = SearchQaDomain(retriever=Listed())
    catalogue = domain.catalogue()
    specs = compatible_specs(catalogue)
    good = (Outcome.SCORED, Outcome.NO_ANSWER, Outcome.LIMIT)
    faults = smoke_faults(domain, [catalogue.render(spec) for spec in specs], Limits(), good)
    assert not [(specs[number], rollout.detail) for number, rollout in faults]


@pytest.mark.slow
def test_real_questions_over_a_real_corpus(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    folder = Path(os.environ.get("WHALE_TEST_DATA", ""), "search_qa")
    if not os.environ.get("WHALE_TEST_DATA") or not folder.is_dir():
        pytest.skip("WHALE_TEST_DATA does not hold the public question sets")
    domain = SearchQaDomain(
        files=[str(folder / "popqa.jsonl")],
        sizes={"test": 32, "search": 8},
        retriever={
            "kind": "bm25",
            "corpus": [str(folder / "corpus_popqa.jsonl.gz")],
            "cache": str(tmp_path / "index"),
        },
    )
    tasks = domain.tasks("test")
    found = 0

    async def search() -> None:
        nonlocal found
        await domain.start()
        try:
            for task in tasks:
                text = await domain.open(task).tools["search"](query=task.inputs["question"], top_k=3)
                found += any(alias.lower() in text.lower() for alias in task.reference)
        finally:
            await domain.close()

    asyncio.run(search())
    assert found >= 16  # the corpus holds the paragraph of nearly all of them
