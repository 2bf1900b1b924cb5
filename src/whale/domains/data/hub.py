"""Rows of a public data set, streamed from the Hugging Face hub, and what to do when the network fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from whale.domains.data.files import EXTRA, Row
from whale.domains.data.source import HubFile
from whale.errors import ConfigError, DomainError

OpenRows = Callable[[int], Iterator[Row]]
"""Rows from number ``n`` (from 0) on."""

_NETWORK_PACKAGES = frozenset({"aiohttp", "httpcore", "httpx", "huggingface_hub", "requests", "urllib3", "fsspec"})
_WORTH_ANOTHER_TRY = frozenset({408, 425, 429})  # of the 4xx codes


@dataclass(frozen=True)
class Retry:
    """How often the network may fail in a row, and the pauses between, in seconds: doubled each time up to ``most``."""

    tries: int = 6
    first: float = 1.0
    most: float = 60.0
    sleep: Callable[[float], None] = time.sleep

    def pause(self, failures: int) -> float:
        """Seconds to wait after ``failures`` (from 1) in a row."""
        return float(min(self.first * 2 ** (failures - 1), self.most))


def hub_rows(hub: HubFile, start: int) -> Iterator[Row]:
    """Rows of ``hub`` from number ``start`` on; ``hub.path`` may also be a local folder or ``json``, ``csv`` or
    ``parquet`` with ``files``. Raises ConfigError without the package, and what ``datasets`` raises."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError(f"--source hub needs another package: {EXTRA}") from error
    data = load_dataset(
        hub.path,
        hub.config,
        split=hub.split,
        streaming=True,
        revision=hub.revision,
        data_files=list(hub.files) or None,
    )
    yield from data.skip(start) if start else data


def with_retries(name: str, rows: OpenRows, start: int, retry: Retry, note: Callable[[str], None]) -> Iterator[Row]:
    """``rows(start)``, opened again at the next row after each network fault.

    Raises DomainError for a source that cannot be reached or read; all rows before were yielded.
    """
    number, failures = start, 0
    while True:
        try:
            for row in rows(number):
                failures = 0
                yield row
                number += 1
            return
        except (ConfigError, DomainError):
            raise
        except Exception as error:
            if not _may_pass(error):
                raise DomainError(f"source {name}, row {number}: cannot be read: {_said(error)}") from error
            failures += 1
            if failures >= retry.tries:
                raise DomainError(
                    f"source {name}: the network failed {failures} times in a row at row {number}: {_said(error)}. "
                    "What was read is kept; give the same command again to go on from there"
                ) from error
            pause = retry.pause(failures)
            note(f"{name}: network fault at row {number}, next try in {pause:g} s ({_said(error)})")
            retry.sleep(pause)


def _may_pass(error: Exception) -> bool:
    """True for faults of the network that another try may not meet; a missing data set stays missing."""
    code = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "status", None)
    if isinstance(code, int) and 400 <= code < 500:
        return code in _WORTH_ANOTHER_TRY
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return False
    packages = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    return isinstance(error, OSError | TimeoutError) or bool(packages & _NETWORK_PACKAGES)


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
