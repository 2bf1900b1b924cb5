"""The contract between the search QA domain and whatever finds its passages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from whale.errors import ConfigError, DomainError, WhaleError

Say = Callable[[str], None]
"""Called with one short line per step of a long job."""


class RetrievalError(WhaleError, RuntimeError):
    """A retriever cannot start or cannot answer. An infrastructure fault: no rollout is counted wrong for it."""


class CorpusError(DomainError, RetrievalError):
    """A corpus file cannot be used. The message names the file and the line."""


@dataclass(frozen=True)
class Passage:
    """One found passage.

    id: unique in the corpus. title: may be empty. text: cut to the tokens that were asked for. score: the higher the
    better; comparable within one retriever only.
    """

    id: str
    title: str
    text: str
    score: float


class Retriever(Protocol):
    """Finds passages. One object serves any number of searches at a time, from any event loop.

    name: kind, version and digest of the corpus; equal names give equal passages. Complete once ``start`` is through.
    """

    @property
    def name(self) -> str: ...

    async def start(self) -> None:
        """Load or connect, then check the health with a real query. Safe to call twice. Raises RetrievalError."""
        ...

    async def search(self, query: str, top_k: int, max_tokens: int | None) -> list[Passage]:
        """The best passages for ``query``, best first, at most ``top_k`` (from 1).

        max_tokens: each text is cut to so many tokens of the policy's tokenizer (``None``: whole texts).
        An empty list means that nothing fits (or the query holds no word), never an outage.
        Raises RetrievalError when the search could not be made, ValueError for numbers below 1.
        """
        ...

    async def close(self) -> None:
        """Let go of everything; safe to call twice."""
        ...


class RetrieverOptions(BaseModel):
    """Base of the options of each kind: unknown names are refused, values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Options = TypeVar("Options", bound=RetrieverOptions)


def read_options(model: type[Options], given: Mapping[str, Any], where: str) -> Options:
    """``given`` as ``model``. Raises ConfigError that names the option, its value and, for a typing error, the
    nearest name."""
    for name in given:
        if name not in model.model_fields:
            raise ConfigError(f"{where} has no option {name!r}: {nearest(name, model.model_fields)}")
    try:
        return model(**given)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise ConfigError(f"{where} needs the option {option!r}") from error
        raise ConfigError(f"{where}, option {option}: {first['msg'].lower()}, found {first['input']!r}") from error


def nearest(name: str, known: Mapping[str, Any]) -> str:
    """``did you mean 'x'? known are x, y`` for an unknown name."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known are {', '.join(known)}"


def check_numbers(top_k: int, max_tokens: int | None) -> None:
    """Raise ValueError for a ``top_k`` or ``max_tokens`` below 1."""
    if top_k < 1:
        raise ValueError(f"top_k: at least 1 is expected, found {top_k}")
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens: at least 1 or None is expected, found {max_tokens}")


def needs_extra(package: str, extra: str) -> RetrievalError:
    """The error for an optional package that is not installed."""
    return RetrievalError(f"retrieval needs the package {package}; install it with: pip install 'whale-learn[{extra}]'")
