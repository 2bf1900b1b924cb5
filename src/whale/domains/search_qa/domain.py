"""The search QA domain: short questions, a search tool over a corpus, answers between tags."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from whale.domains.base import ScoreFunction, SplitTasks, StatelessEpisode, ToolInputError, check_sizes
from whale.domains.search_qa import questions
from whale.domains.search_qa.catalogue import SearchQaCatalogue
from whale.domains.search_qa.checks import gold_answer, junk_answers
from whale.domains.search_qa.judge import Judge, JudgeOptions
from whale.domains.search_qa.template import seed_source
from whale.domains.search_qa.verifier import TagRule, exact, f1
from whale.errors import ConfigError, DomainError
from whale.protocols import Episode
from whale.types import SPLITS, Split, Task, ToolSpec, Verdict

if TYPE_CHECKING:
    from whale.domains.search_qa.retrieval.base import Passage, Retriever

SEARCH = ToolSpec(
    name="search",
    description="Searches an encyclopedia and returns the passage that fits the query best.",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string", "description": "What to search for"}},
        "required": ["query"],
    },
)
"""As the policy is told of it. A harness may also give ``top_k`` and ``max_tokens``."""

NOTHING_FOUND = "No passage was found."
_VERIFIERS = {"exact": exact, "f1": f1}
_QUERY_CHARACTERS = 2000  # of a query; a whole question is far shorter


class SearchQaDomain(SplitTasks):
    """Implements ``whale.protocols.Domain`` and ``Checkable``.

    data: folder that ``whale data prepare`` made; or files: JSONL files of your own, as ``questions.load`` takes them,
    with seed and sizes (tasks per split); with_passages leaves out their rows without ``gold_paragraphs``, whose answer
    a small corpus may not hold. retriever: options of ``retrieval.open_retriever``, or a retriever.
    top_k_limit: passages of one search at most. passage_tokens: length of a passage, in tokens of the policy, where a
    harness asks for none; passage_tokens_limit: the longest it may ask for. verifier: ``exact``, ``f1`` or ``judge``
    with its options in judge. answer_tag: ``required``, or ``optional`` to read a reply without tags whole.
    tokenizer: the policy's ``tokenizer.json``, which passages are cut by.
    """

    name = "search_qa"
    tool_specs: Mapping[str, ToolSpec] = {"search": SEARCH}
    allowed_imports: frozenset[str] = frozenset()

    def __init__(
        self,
        data: str | None = None,
        files: questions.Files | None = None,
        seed: int = 0,
        sizes: Mapping[str, int] | None = None,
        with_passages: bool = False,
        retriever: Mapping[str, Any] | Retriever | None = None,
        top_k_limit: int = 10,
        passage_tokens: int = 200,
        passage_tokens_limit: int = 400,
        verifier: str = "exact",
        judge: Mapping[str, Any] | None = None,
        answer_tag: TagRule = "required",
        tokenizer: Path | None = None,
    ) -> None:
        _check_source(data, files, retriever)
        check_sizes("search_qa", sizes or {})
        _check_bounds(top_k_limit, passage_tokens, passage_tokens_limit)
        if answer_tag not in get_args(TagRule):
            raise ConfigError(
                f"domain search_qa, option answer_tag: required or optional is expected, found {answer_tag!r}"
            )
        self._data, self._files = data, files
        self._seed, self._sizes, self._with_passages = seed, dict(sizes or {}), with_passages
        self._top_k_limit, self._tokens, self._tokens_limit = top_k_limit, passage_tokens, passage_tokens_limit
        self._verifier, self._tag = verifier, answer_tag
        self._judge = _judge(verifier, judge)
        self._retriever = _open(retriever, tokenizer)
        self._started = False

    @property
    def version(self) -> str:
        """Names verifier and retriever. The corpus is part of it, so the retriever is started for it if need be."""
        verifier = self._judge.name if self._judge else self._verifier
        parts = ["search_qa-1", verifier, self._tag, f"{self._tokens}/{self._tokens_limit}/{self._top_k_limit}"]
        if self._retriever is not None:
            if not self._started:
                with ThreadPoolExecutor(1) as thread:  # a thread of its own: the caller may be inside an event loop
                    thread.submit(asyncio.run, self._start_retriever()).result()
            parts.append(self._retriever.name)
        return " ".join(parts)

    def _load(self) -> dict[Split, list[Task]]:
        if self._files is not None:
            return questions.load(self._files, self._seed, self._sizes, self._with_passages)
        if self._data is None:
            raise ConfigError(
                "domain search_qa needs questions: give the option data (a folder made by `whale data prepare "
                "search_qa`) or files (JSONL files)"
            )
        from whale.domains.data.prepared import read_prepared

        prepared = read_prepared(Path(self._data).expanduser(), "search_qa")
        splits = {split: list(prepared.get(split, ())) for split in SPLITS}
        for split, size in self._sizes.items():
            if size > len(splits[split]):  # type: ignore[index]
                raise DomainError(f"{self._data}: split {split} holds fewer questions than the {size} of option sizes")
            splits[split] = splits[split][:size]  # type: ignore[index]
        return splits

    def open(self, task: Task) -> StatelessEpisode:
        """A fresh episode: the search tool, and the verifier with the task's references."""
        references: list[str] = task.reference
        judge: ScoreFunction
        if self._judge is not None:
            judge = partial(self._judge, question=task.inputs["question"], references=references, tag=self._tag)
        else:
            judge = partial(_VERIFIERS[self._verifier], references=references, tag=self._tag)
        return StatelessEpisode(judge, {"search": self._search})

    async def _search(self, **arguments: Any) -> str:
        query, top_k, max_tokens = self._arguments(arguments)
        if self._retriever is None:
            raise _no_retriever()
        return show(await self._retriever.search(query, top_k, max_tokens))

    def _arguments(self, given: Mapping[str, Any]) -> tuple[str, int, int]:
        unknown = [name for name in given if name not in ("query", "top_k", "max_tokens")]
        query = given.get("query")
        if unknown or not isinstance(query, str) or not query.strip():
            raise ToolInputError("search takes a query: a text that is not empty")
        if len(query) > _QUERY_CHARACTERS:
            raise ToolInputError(f"the query is longer than {_QUERY_CHARACTERS} characters")
        top_k = _bounded(given.get("top_k", 1), self._top_k_limit, "top_k")
        max_tokens = _bounded(given.get("max_tokens", self._tokens), self._tokens_limit, "max_tokens")
        return query, top_k, max_tokens

    def seed_harness(self) -> str:
        """Source of h0."""
        return seed_source()

    def catalogue(self) -> SearchQaCatalogue:
        """Pieces for the offline search."""
        return SearchQaCatalogue()

    def smoke(self) -> tuple[Sequence[Task], Sequence[str]]:
        """Two toy questions and replies that take a harness through a tag, tool calls, bare lines and junk."""
        tasks = [
            Task("smoke-1", {"question": "What colour is a clear sky at noon?"}, ["blue"], "smoke"),
            Task("smoke-2", {"question": "How many days does a week have?"}, ["seven", "7"], "smoke"),
        ]
        return tasks, _SMOKE_REPLIES

    def gold(self, task: Task) -> str:
        """The first reference between tags."""
        return gold_answer(task)

    def junk(self, task: Task) -> Sequence[str]:
        """Answers that must score 0, without those that happen to equal a reference."""
        return junk_answers(task, self._tag, partial_credit=self._verifier == "f1")

    async def submit(self, episode: Episode, answer: str) -> Verdict:
        """What the verifier says of ``answer``."""
        return await episode.score(answer)

    async def start(self) -> None:
        """Load the retriever and open the judge's client. Raises RetrievalError, ConfigError."""
        if self._retriever is None:
            raise _no_retriever()
        await self._start_retriever()
        if self._judge is not None:
            await self._judge.start()

    async def _start_retriever(self) -> None:
        assert self._retriever is not None
        await self._retriever.start()
        self._started = True

    async def close(self) -> None:
        """Close the judge's client; safe to call twice. The retriever stays loaded for the next block: loading a
        large index takes minutes, and it may be used from any event loop."""
        if self._judge is not None:
            await self._judge.close()


def show(passages: Sequence[Passage]) -> str:
    """Passages as the policy reads them: a line ``Title: ...``, a line of text; an empty line between passages, which
    are numbered ``[1]``, ``[2]``, ... where there are several."""
    blocks = [f"Title: {' '.join(p.title.split()) or 'untitled'}\n{' '.join(p.text.split())}" for p in passages]
    if len(blocks) > 1:
        blocks = [f"[{number}] {block}" for number, block in enumerate(blocks, start=1)]
    return "\n\n".join(blocks) or NOTHING_FOUND


_SMOKE_REPLIES = (
    "It is <answer>blue</answer>.",
    '<tool_call>\n{"name": "search", "arguments": {"query": "days of the week"}}\n</tool_call>',
    "seven",
    "<answer>seven",
    "",
    "1",
    "Yes",
    "unknown",
    "colour of the sky\nlight in the air",
    "Answer: blue.\nThe sky is blue.",
    '<tool_call>\n{"name": "search", "arguments": {"query": ""}}\n</tool_call>',
    "no",
)


def _bounded(value: Any, limit: int, name: str) -> int:
    """A whole number from 1; above the limit the limit counts, as the documentation says."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ToolInputError(f"{name} must be a whole number from 1 to {limit}")
    return min(value, limit)


_RETRIEVER_EXAMPLE = 'retriever = { kind = "bm25", corpus = ["corpus.jsonl"] }'


def _check_source(data: str | None, files: questions.Files | None, retriever: object) -> None:
    if data is not None and files is not None:
        raise ConfigError("domain search_qa: give either the option data or the option files, not both")
    if (data is not None or files is not None) and retriever is None:
        raise _no_retriever()


def _no_retriever() -> ConfigError:
    return ConfigError(f"domain search_qa, option retriever: missing; give for example {_RETRIEVER_EXAMPLE}")


def _check_bounds(top_k_limit: Any, passage_tokens: Any, passage_tokens_limit: Any) -> None:
    bounds = {
        "top_k_limit": top_k_limit,
        "passage_tokens": passage_tokens,
        "passage_tokens_limit": passage_tokens_limit,
    }
    for name, value in bounds.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"domain search_qa, option {name}: a whole number from 1 is expected, found {value!r}")
    if passage_tokens > passage_tokens_limit:
        raise ConfigError(
            f"domain search_qa, option passage_tokens: {passage_tokens} is more than passage_tokens_limit "
            f"({passage_tokens_limit})"
        )


def _judge(verifier: str, options: Mapping[str, Any] | None) -> Judge | None:
    if verifier not in (*_VERIFIERS, "judge"):
        known = ", ".join([*_VERIFIERS, "judge"])
        raise ConfigError(f"domain search_qa, option verifier: one of {known} is expected, found {verifier!r}")
    if verifier != "judge":
        if options is not None:
            raise ConfigError('domain search_qa, option judge: only used with verifier = "judge"')
        return None
    return Judge(JudgeOptions.read(options or {}))


def _open(retriever: Mapping[str, Any] | Retriever | None, tokenizer: Path | None) -> Retriever | None:
    if not isinstance(retriever, Mapping):
        if retriever is None or hasattr(retriever, "search"):
            return retriever
        raise ConfigError(
            f"domain search_qa, option retriever: a table is expected, found {retriever!r}; give for example "
            f"{_RETRIEVER_EXAMPLE}"
        )
    from whale.domains.search_qa.retrieval import open_retriever

    return open_retriever(retriever, tokenizer)
