"""Preparers, found by name."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import entry_points

from whale.domains.data.source import Preparer
from whale.errors import ConfigError

PREPARERS = {
    "math": "whale.domains.math.prepare:MathPreparer",
    "chess": "whale.domains.chess.prepare:ChessPreparer",
    "search_qa": "whale.domains.search_qa.prepare:SearchQaPreparer",
}
GROUP = "whale.preparers"  # entry-point group of other distributions


def preparer_names() -> list[str]:
    """Every name ``load_preparer`` knows, installed entry points included."""
    return sorted({*PREPARERS, *(point.name for point in entry_points(group=GROUP))})


def load_preparer(name: str) -> Preparer:
    """The preparer called ``name`` (a built-in, an entry point or ``module:Class``).

    Raises ConfigError for an unknown name and for a module that cannot be imported.
    """
    target = PREPARERS.get(name) or (name if ":" in name else None)
    if target is None:
        target = next((point.value for point in entry_points(group=GROUP) if point.name == name), None)
    if target is None:
        known = preparer_names()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"no preparer {name!r}: {hint}known are {', '.join(known)}, or give module:Class")
    module, _, attribute = target.partition(":")
    try:
        preparer: Preparer = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"preparer {name!r}: cannot import {target}: {error}") from error
    return preparer
