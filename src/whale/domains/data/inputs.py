"""Which files or hub sets a preparation reads, and which source their rows belong to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whale.domains.data.files import FORMATS, Row, is_data_file, read_rows, sha256
from whale.domains.data.hub import hub_rows
from whale.domains.data.source import Source
from whale.errors import ConfigError

Note = Callable[[str], None]


@dataclass(frozen=True)
class Input:
    """A source and where its rows come from: local files in this order, or the hub if there are none."""

    source: Source
    files: tuple[Path, ...] = ()

    @property
    def kind(self) -> str:
        """``path`` or ``hub``."""
        return "path" if self.files else "hub"

    def rows(self, start: int) -> Iterator[Row]:
        """Rows from number ``start`` on; the files of a source count as one."""
        if self.files:
            return itertools.islice(itertools.chain.from_iterable(map(read_rows, self.files)), start, None)
        assert self.source.hub is not None
        return hub_rows(self.source.hub, start)

    def identity(self) -> dict[str, Any]:
        """What the rows are decided by, as the manifest keeps it. Raises DomainError for an unreadable file."""
        if self.files:
            return {"kind": "path", "files": [{"name": path.name, "sha256": sha256(path)} for path in self.files]}
        assert self.source.hub is not None
        return {"kind": "hub", **asdict(self.source.hub), "files": list(self.source.hub.files)}


def hub_inputs(sources: Sequence[Source], note: Note, only: Sequence[str] = ()) -> list[Input]:
    """The sources called ``only``, or every default one, from the hub. Raises ConfigError if none lies there."""
    known = {source.name: source for source in sources}
    for name in only:
        if name not in known or known[name].hub is None:
            on_hub = [source.name for source in sources if source.hub]
            raise ConfigError(f"--only {name}: there is no such source on the hub; known are {', '.join(on_hub)}")
    wanted = [known[name] for name in only] or [source for source in sources if source.default]
    for source in wanted:
        if source.hub is None:
            note(f"source {source.name} is not on the hub and is left out; give its files as a PATH to use it")
    found = [Input(source) for source in wanted if source.hub is not None]
    if not found:
        raise ConfigError("--source hub: no source of this domain is on the hub; give files as PATHs")
    return found


def local_inputs(sources: Sequence[Source], arguments: Sequence[str], note: Note) -> list[Input]:
    """Sources of the given files and folders; ``NAME=PATH`` names the source, else the file's name does.

    Raises ConfigError for a path that does not exist, a file that no source claims and a file given twice. Files in
    a folder that no source claims are noted and left out.
    """
    known = {source.name: source for source in sources}
    files: dict[str, list[Path]] = {}
    for argument in arguments:
        for name, path in _claimed(argument, known, note):
            if any(path.samefile(other) for others in files.values() for other in others):
                raise ConfigError(f"{path} is given twice")
            files.setdefault(name, []).append(path)
    for name in known:
        if name not in files:
            note(f"source {name}: no file given, left out")
    return [Input(source, tuple(files[source.name])) for source in sources if source.name in files]


def _claimed(argument: str, known: Mapping[str, Source], note: Note) -> list[tuple[str, Path]]:
    name, equals, rest = argument.partition("=")
    named = name if equals and name in known else ""
    path = Path(rest if named else argument)
    if equals and not named and not path.exists():
        raise ConfigError(f"{argument}: no source is called {name!r}; known are {', '.join(known)}")
    if not path.exists():
        raise ConfigError(f"{path} does not exist; give a file, a folder or NAME=PATH (names: {', '.join(known)})")
    if not path.is_dir():
        return [(named or _require(path, known), path)]
    found = sorted(file for file in path.iterdir() if file.is_file() and is_data_file(file))
    if named:
        pairs = [(named, file) for file in found]
    else:
        claimed = [(_source_of(file, known), file) for file in found]
        pairs = [(source, file) for source, file in claimed if source]
        for source, file in claimed:
            if not source:
                note(f"{file}: its name begins with no source's name, left out")
    if not pairs:
        raise ConfigError(
            f"{path}: no file of a known source in this folder; names begin with {', '.join(known)} and end in "
            f"{', '.join(FORMATS)} (compressed or not), or write NAME={path}"
        )
    return pairs


def _source_of(path: Path, known: Mapping[str, Source]) -> str:
    """The source with the longest name that the file's name begins with, or ``""``."""
    return max((name for name in known if path.name.casefold().startswith(name.casefold())), key=len, default="")


def _require(path: Path, known: Mapping[str, Source]) -> str:
    name = _source_of(path, known)
    if not name:
        raise ConfigError(
            f"{path}: its name begins with no source's name ({', '.join(known)}); say which it is: NAME={path}"
        )
    return name
