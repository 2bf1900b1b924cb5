"""The messages between an HTTP retriever and a server: the format of the Search-R1 family, with a version.

Request: ``{"queries": [...], "topk": k, "return_scores": true, "max_doc_tokens": n}``. Answer: ``{"result":
[[{"document": {"id", "title", "text"}, "score": s}, ...], ...]}``, one list per query; whale's server adds its name.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from whale.domains.search_qa.retrieval.base import Passage
from whale.domains.search_qa.retrieval.corpus import split_contents

PROTOCOL = 1
"""Changes when a client of the old version would misread the answers of a server of the new one."""
MAX_QUERIES = 1024
MAX_TOP_K = 1000
_FIELDS = ("queries", "topk", "return_scores", "max_doc_tokens")


class BadRequest(ValueError):
    """A request the server cannot use. The message goes to the client with status 400."""


class BadAnswer(ValueError):
    """An answer that is not whole. Another try may bring a better one."""


class Search(NamedTuple):
    """A request, checked."""

    queries: list[str]
    top_k: int
    scores: bool
    max_tokens: int | None


def read_request(body: bytes) -> Search:
    """The search that a request body asks for.

    ``queries``: at most 1024 texts; ``topk``: 1 to 1000 (default 3); ``return_scores``: whether each passage comes
    with its score (default false); ``max_doc_tokens``: tokens per passage, from 1 (default: whole passages).
    Raises BadRequest.
    """
    try:
        value = json.loads(body)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest(f"an object is expected, found {type(value).__name__}")
    unknown = [name for name in value if name not in _FIELDS]
    if unknown:
        raise BadRequest(f"unknown field {unknown[0]!r}; known are {', '.join(_FIELDS)}")
    queries = value.get("queries")
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise BadRequest("queries: a list of texts is expected")
    if len(queries) > MAX_QUERIES:
        raise BadRequest(f"queries: at most {MAX_QUERIES} are taken at once, found {len(queries)}")
    scores = value.get("return_scores", False)
    if not isinstance(scores, bool):
        raise BadRequest(f"return_scores: true or false is expected, found {scores!r}")
    return Search(queries, _whole(value, "topk", MAX_TOP_K) or 3, scores, _whole(value, "max_doc_tokens", None))


def _whole(value: dict[str, Any], name: str, most: int | None) -> int | None:
    number = value.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or number < 1 or (most and number > most):
        limit = f"from 1 to {most}" if most else "from 1"
        raise BadRequest(f"{name}: a whole number {limit} is expected, found {number!r}")
    return number


def write_passage(passage: Passage, scores: bool) -> dict[str, Any]:
    """A passage of an answer. Clients of the family read either title and text, or contents, whose first line is the
    title in quotes: both are there."""
    contents = f'"{passage.title}"\n{passage.text}'
    document = {"id": passage.id, "title": passage.title, "text": passage.text, "contents": contents}
    return {"document": document, "score": passage.score} if scores else document


def read_results(body: Any, queries: int) -> list[list[Passage]]:
    """Passages per query of an answer with scores. A document has ``text`` and perhaps ``title``, or ``contents``.

    Raises BadAnswer when anything is missing: half an answer is no answer.
    """
    results = body.get("result") if isinstance(body, dict) else None
    if not isinstance(results, list) or len(results) != queries:
        found = f"{len(results)} results" if isinstance(results, list) else "no list of results"
        raise BadAnswer(f"malformed answer: {found} for {queries} queries")
    return [[_read_passage(entry) for entry in _entries(result)] for result in results]


def _entries(result: Any) -> list[Any]:
    if not isinstance(result, list):
        raise BadAnswer(f"malformed answer: a result is {type(result).__name__}, not a list")
    return result


def _read_passage(entry: Any) -> Passage:
    document = entry.get("document") if isinstance(entry, dict) else None
    score = entry.get("score") if isinstance(entry, dict) else None
    if not isinstance(document, dict) or isinstance(score, bool) or not isinstance(score, int | float):
        raise BadAnswer(f"malformed answer: a passage without document and score ({entry!r:.80})")
    if not math.isfinite(score):
        raise BadAnswer(f"malformed answer: the score {score}")
    title, text = document.get("title") or "", document.get("text")
    if text is None and isinstance(document.get("contents"), str):
        title, text = split_contents(document["contents"])
    if not isinstance(text, str) or not isinstance(title, str):
        raise BadAnswer(f"malformed answer: a document without text ({document!r:.80})")
    return Passage(str(document.get("id", "")), title, text, float(score))
