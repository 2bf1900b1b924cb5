"""The file tools of the built-in agent: all it can do. They read a scratch copy and write into its outbox.

A mistake in a call is a text for the model, never an exception. Links are not followed out of the copy, nor made.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from whale.errors import WhaleError
from whale.harness.validate import MAX_SOURCE_BYTES
from whale.proposers.outbox import printable
from whale.proposers.scratch import Scratch

OBSERVATION_CHARACTERS = 12_000
"""Most that one call returns; a longer text is cut and says so."""

_LINE_CHARACTERS = 2_000
_READ_BYTES = 64 << 20
_MATCHES = 200
_ENTRIES = 500

CheckSource = Callable[[str], str | None]
"""Why a harness source must not be evaluated, or ``None``."""


class _Refused(ValueError):
    """A call that cannot be answered; its text is for the model."""


class FileTools:
    """list, read, grep, write, edit, diff, check. calls: how many were made."""

    def __init__(self, scratch: Scratch, check: CheckSource) -> None:
        self._root = Path(os.path.realpath(scratch.folder))
        self._outbox = Path(os.path.realpath(scratch.outbox))
        self._check = check
        self._tools: dict[str, Callable[..., str]] = {
            "list": self._list, "read": self._read, "grep": self._grep, "write": self._write, "edit": self._edit,
            "diff": self._diff, "check": self._check_file,
        }  # fmt: skip
        self.calls = 0

    def call(self, name: str, arguments: str) -> str:
        """Run a tool on its JSON arguments; returns what the model reads."""
        self.calls += 1
        try:
            return _cut(self._tools[name](**self._arguments(name, arguments)))
        except KeyError:
            return f"Error: there is no tool {printable(name)[:100]!r}; the tools are {', '.join(self._tools)}"
        except (_Refused, OSError) as error:
            return f"Error: {error}"

    def _arguments(self, name: str, text: str) -> dict[str, Any]:
        schema = SCHEMAS[name]["parameters"]
        try:
            given = json.loads(text or "{}")
        except (ValueError, RecursionError) as error:
            raise _Refused(f"the arguments are not valid JSON: {error}") from None
        if not isinstance(given, dict):
            raise _Refused("the arguments must be a JSON object")
        missing = [key for key in schema["required"] if key not in given]
        unknown = [key for key in given if key not in schema["properties"]]
        if missing or unknown:
            raise _Refused(f"{name} takes {', '.join(schema['properties'])}; missing: {missing}, unknown: {unknown}")
        return {key: _of_type(key, value, schema["properties"][key]["type"]) for key, value in given.items()}

    def _inside(self, name: str, root: Path | None = None) -> Path:
        """The real path of a file below ``root`` (the copy). Raises _Refused for one that lies elsewhere."""
        root = root or self._root
        if "\0" in name:
            raise _Refused("a path cannot hold a null character")
        path = Path(os.path.realpath(self._root / name))
        if not path.is_relative_to(root):
            where = "the outbox" if root == self._outbox else "the current folder"
            raise _Refused(f"{name[:200]!r} is outside {where}; {where} is all there is")
        return path

    def _text(self, name: str) -> str:
        path = self._inside(name)
        if not path.is_file():
            raise _Refused(f"there is no file {name[:200]!r}")
        if path.stat().st_size > _READ_BYTES:
            raise _Refused(f"{name[:200]!r} is too large to be read")
        return path.read_text(encoding="utf-8", errors="replace")

    def _list(self, path: str = ".") -> str:
        folder = self._inside(path)
        if not folder.is_dir():
            raise _Refused(f"there is no folder {path[:200]!r}")
        entries = sorted(folder.iterdir())
        lines = [f"{e.name}/" if e.is_dir() else f"{e.name}  {e.lstat().st_size} bytes" for e in entries[:_ENTRIES]]
        return "\n".join(lines) + (f"\n... {len(entries)} entries in all" if len(entries) > _ENTRIES else "") or "empty"

    def _read(self, path: str, start: int = 1, lines: int = 200) -> str:
        found = self._text(path).splitlines()
        first = max(1, start)
        shown = found[first - 1 : first - 1 + max(1, lines)]
        numbered = [f"{number}\t{_line(line)}" for number, line in enumerate(shown, first)]
        return "\n".join([*numbered, f"(lines {first} to {first + len(shown) - 1} of {len(found)})"])

    def _grep(self, text: str, path: str = ".") -> str:
        """Plain text, not a pattern: a pattern could take for ever."""
        place = self._inside(path)
        files = (
            [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file() and not p.is_symlink())
        )
        found: list[str] = []
        for file in files:
            name = str(file.relative_to(self._root))
            for number, line in enumerate(self._text(name).splitlines(), 1):
                at = line.lower().find(text.lower())
                if at >= 0:
                    found.append(f"{name}:{number}: {_around(line, at)}")
        more = f"\n... {len(found)} lines in all" if len(found) > _MATCHES else ""
        return "\n".join(found[:_MATCHES]) + more or "nothing found"

    def _write(self, path: str, content: str) -> str:
        target = self._inside(path, self._outbox)
        data = content.encode("utf-8", "replace")
        if len(data) > MAX_SOURCE_BYTES:
            raise _Refused(f"{len(data)} bytes; a file may have {MAX_SOURCE_BYTES}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return f"wrote {len(data)} bytes to {target.relative_to(self._root)}"

    def _edit(self, path: str, old: str, new: str) -> str:
        self._inside(path, self._outbox)
        text = self._text(path)
        count = text.count(old) if old else 0
        if count != 1:
            raise _Refused(f"the old text must occur exactly once; it occurs {count} times")
        return self._write(path, text.replace(old, new))

    def _diff(self, old: str, new: str) -> str:
        lines = difflib.unified_diff(
            self._text(old).splitlines(), self._text(new).splitlines(), old, new, lineterm="", n=2
        )
        return "\n".join(map(_line, lines)) or "the files are equal"

    def _check_file(self, path: str) -> str:
        source = self._text(path)
        try:
            problem = self._check(source)
        except WhaleError as error:
            return f"Error: the check could not be made: {error}"
        return f"would be rejected: {problem}" if problem else "passes: it can be evaluated"


def _of_type(key: str, value: Any, kind: str) -> Any:
    wanted = {"string": str, "integer": int}[kind]
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise _Refused(f"{key} must be of type {kind}")
    return value


def _line(line: str) -> str:
    return line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]}... ({len(line)} characters)"


def _around(line: str, at: int) -> str:
    """Some of a line around a match; rows of rollouts are long."""
    first = max(0, at - 150)
    return line[first : at + 250].strip()


def _cut(text: str) -> str:
    if len(text) <= OBSERVATION_CHARACTERS:
        return text
    return f"{text[:OBSERVATION_CHARACTERS]}\n... cut: {len(text)} characters; ask for less"


def _schema(description: str, properties: Mapping[str, tuple[str, str]], required: tuple[str, ...]) -> dict[str, Any]:
    known = {name: {"type": kind, "description": text} for name, (kind, text) in properties.items()}
    parameters = {"type": "object", "properties": known, "required": list(required), "additionalProperties": False}
    return {"description": description, "parameters": parameters}


_PATH = ("string", "path below the current folder")

SCHEMAS: dict[str, dict[str, Any]] = {
    "list": _schema("List a folder.", {"path": _PATH}, ()),
    "read": _schema(
        "Read lines of a file, with their numbers.",
        {"path": _PATH, "start": ("integer", "first line, from 1"), "lines": ("integer", "how many, default 200")},
        ("path",),
    ),
    "grep": _schema(
        "Find lines that contain a text (no pattern, case ignored).",
        {"text": ("string", "text to find"), "path": ("string", "file or folder, default: everything")},
        ("text",),
    ),
    "write": _schema(
        "Write a whole file into outbox/.",
        {"path": _PATH, "content": ("string", "the whole file")},
        ("path", "content"),
    ),
    "edit": _schema(
        "Replace a text that occurs exactly once in a file in outbox/.",
        {"path": _PATH, "old": ("string", "text to replace"), "new": ("string", "what comes instead")},
        ("path", "old", "new"),
    ),
    "diff": _schema("Compare two files.", {"old": _PATH, "new": _PATH}, ("old", "new")),
    "check": _schema(
        "Check a candidate as the search will: syntax, rules, a run on toy tasks with scripted replies. Costs nothing.",
        {"path": _PATH},
        ("path",),
    ),
}
"""Description and JSON schema of each tool."""
