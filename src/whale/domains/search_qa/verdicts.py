"""Verdicts of a judge, kept in a JSONL file so that none is paid for twice."""

from __future__ import annotations

import json
import os
from pathlib import Path

from whale.errors import ConfigError


class VerdictFile:
    """One line per verdict: ``{"key", "model", "right"}``; questions and answers are only in the key, as a hash.

    path: the file, read at the first question. Several processes may write to it: a line is appended in
    one write. A line that cannot be read (a process was ended while writing) is skipped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser()
        self._known: dict[str, bool] | None = None

    def get(self, key: str) -> bool | None:
        """The kept verdict, or ``None``. Raises ConfigError if the file cannot be read."""
        return self._read().get(key)

    def add(self, key: str, model: str, right: bool) -> None:
        """Keep a verdict. Raises ConfigError if the file cannot be written."""
        self._read()[key] = right
        line = json.dumps({"key": key, "model": model, "right": right})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                # A torn last line must not swallow this one; readers skip blank lines.
                torn = file.tell() > 0 and not self._ends_with_newline()
                file.write(("\n" * torn + line + "\n").encode())
        except OSError as error:
            raise self._trouble("written", error) from error

    def _read(self) -> dict[str, bool]:
        if self._known is None:
            self._known = {}
            for line in self._lines():
                try:
                    row = json.loads(line)
                    if isinstance(row["right"], bool):
                        self._known[str(row["key"])] = row["right"]
                except (ValueError, KeyError, TypeError):
                    continue
        return self._known

    def _lines(self) -> list[str]:
        if not self._path.exists():
            return []
        try:
            return self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise self._trouble("read", error) from error

    def _ends_with_newline(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"

    def _trouble(self, what: str, error: OSError) -> ConfigError:
        return ConfigError(f"the judge's verdicts {self._path} cannot be {what}: {error}; set judge.cache to a file")
