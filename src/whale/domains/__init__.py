"""Fields of work: tasks, tools, a verifier and a seed harness each, found by name."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from whale.errors import ConfigError
from whale.protocols import Domain

_BUILT_IN = {
    "chess": "whale.domains.chess.domain:ChessDomain",
    "math": "whale.domains.math.domain:MathDomain",
    "search_qa": "whale.domains.search_qa.domain:SearchQaDomain",
    "toy": "whale.testing.toy:ToyDomain",
}
_GROUP = "whale.domains"  # entry-point group of other distributions

__all__ = ["domain_names", "load_domain"]


def domain_names() -> list[str]:
    """Every name ``load_domain`` knows, installed entry points included."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=_GROUP))})


def load_domain(
    name: str, options: Mapping[str, Any], isolation: str | None = None, tokenizer: Path | None = None
) -> Domain:
    """The domain called ``name`` (a built-in, an entry point or ``module:Class``), built with ``options``.

    isolation: the run's sandbox level, for domains whose tools run code: a harness must not reach through a tool what
    its own sandbox keeps from it. tokenizer: the policy's ``tokenizer.json``, for domains that cut texts by its tokens.
    A domain gets what its constructor names; an option of that name stands above it.
    Raises ConfigError for an unknown name or option, and whatever the domain raises for a bad value
    (ConfigError or DomainError).
    """
    factory = _factory(name)
    _check_options(name, factory, options)
    parameters = inspect.signature(factory).parameters
    provided = {"isolation": isolation, "tokenizer": tokenizer}
    of_the_run = {key: value for key, value in provided.items() if value is not None and key in parameters}
    domain: Domain = factory(**{**of_the_run, **options})
    return domain


def _factory(name: str) -> Callable[..., Any]:
    target = _BUILT_IN.get(name) or (name if ":" in name else None)
    if target is None:
        for point in entry_points(group=_GROUP):
            if point.name == name:
                return _import(name, point.value)
        raise ConfigError(_unknown(name))
    return _import(name, target)


def _import(name: str, target: str) -> Callable[..., Any]:
    module, _, attribute = target.partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"domain {name!r}: cannot import {target}: {error}") from error
    if not callable(factory):
        raise ConfigError(f"domain {name!r}: {target} is not a class or function")
    return factory  # type: ignore[no-any-return]


def _unknown(name: str) -> str:
    names = domain_names()
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown domain {name!r}: {hint}known are {', '.join(names)}, or give module:Class"


def _check_options(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            near = difflib.get_close_matches(option, parameters, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"domain {name!r} has no option {option!r}: {hint}known are {', '.join(parameters)}")
