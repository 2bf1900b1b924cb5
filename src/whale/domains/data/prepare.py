"""``whale data prepare``: read every source, share the tasks out, write the splits and, last of all, the manifest."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whale.domains.base import content_key
from whale.domains.data.hub import Retry
from whale.domains.data.inputs import Input
from whale.domains.data.parts import Part, Watch, discard, fill, same_part, write_json
from whale.domains.data.prepared import MANIFEST, SCHEMA, read_manifest, read_prepared
from whale.domains.data.source import Preparer
from whale.domains.data.splits import HELD_OUT, Index, Shares, Sizes, build_index, share_out
from whale.errors import ConfigError, DomainError
from whale.types import SPLITS, Split

DEFAULT_SIZES: Mapping[Split, int | None] = {"weights": None, "search": 256, "test": None, "unseen": None}
"""Where the preparer says nothing. The paper's search set has 256 tasks."""

DROPPED = "dropped.jsonl"
_PARTS = "parts"
_REASONS = 20  # kinds of reasons that the manifest counts apart; dropped.jsonl has them all


@dataclass(frozen=True)
class Request:
    """What one preparation is asked for. sizes: tasks per split that stand above the preparer's own.
    force: replace a finished result, and parts that were read from something else."""

    preparer: Preparer
    inputs: Sequence[Input]
    out: Path
    seed: int = 0
    sizes: Mapping[Split, int] = field(default_factory=dict)
    force: bool = False
    retry: Retry = field(default_factory=Retry)

    def wanted(self) -> Sizes:
        """Tasks per split in force."""
        return Sizes({**DEFAULT_SIZES, **self.preparer.sizes, **self.sizes}, frozenset(self.sizes))


def prepare(request: Request, watch: Watch | None = None) -> dict[str, Any]:
    """Prepare ``request.out`` and return its manifest; a finished folder of the same request is left alone.

    A call that was stopped or failed is continued by the same call. Raises ConfigError with the differences for a
    folder of another request, DomainError for data that cannot be used and for a network that stays away.
    """
    watch = watch or Watch()
    request.out.mkdir(parents=True, exist_ok=True)
    with _locked(request.out):
        asked = _asked(request)
        if _finished(request, asked, watch):
            return read_manifest(request.out)
        return _make(request, asked, watch)


def _make(request: Request, asked: Mapping[str, Any], watch: Watch) -> dict[str, Any]:
    folder = request.out / _PARTS
    folder.mkdir(exist_ok=True)
    parts = []
    for given in request.inputs:
        name = given.source.name
        identity = asked["sources"][name]
        if request.force and not same_part(folder, name, request.preparer.version, identity):
            discard(folder, name)
        parts.append(fill(folder, request.preparer, given, identity, watch, request.retry))
    sizes = request.wanted()
    with (request.out / DROPPED).open("w", encoding="utf-8") as file:

        def dropped(source: str, row: int, name: str | None, reason: str, same_as: str | None = None) -> None:
            line = {"source": source, "row": row, "id": name, "reason": reason}
            file.write(json.dumps(line | ({"same_as": same_as} if same_as else {}), ensure_ascii=False) + "\n")

        content = getattr(request.preparer, "content", content_key)
        index = build_index(parts, request.seed, dropped, content)
        shares = share_out(index, sizes)
        pairs = index.lines(number for drop in shares.drops for number in (drop.number, drop.other))
        for drop, line, other in zip(shares.drops, pairs, pairs, strict=True):
            source = parts[index.source[drop.number]].source.name
            dropped(source, line["row"], line["task"]["id"], drop.reason, other["task"]["id"])
    _note_short(shares, sizes, watch)
    manifest = {
        "schema": SCHEMA,
        **asked,
        "sources": _source_figures(asked["sources"], parts, index, shares),
        "splits": _write_splits(request.out, index, shares),
    }
    write_json(request.out / MANIFEST, manifest)
    return manifest


def _asked(request: Request) -> dict[str, Any]:
    """What decides the result: the part of the manifest that a later call must repeat."""
    sizes = request.wanted()
    return {
        "domain": request.preparer.domain,
        "preparer": request.preparer.version,
        "seed": request.seed,
        "sizes": {split: sizes.wanted[split] for split in SPLITS},
        "exact_sizes": sorted(sizes.exact),
        "sources": {given.source.name: given.identity() for given in request.inputs},
    }


def _finished(request: Request, asked: Mapping[str, Any], watch: Watch) -> bool:
    """True if the folder already holds the result; clears the way for another one where that is asked for."""
    path = request.out / MANIFEST
    if not path.exists():
        return False
    if request.force:
        path.unlink()
        return False
    known = read_manifest(request.out)
    differences = _differences(known, asked)
    if differences:
        raise ConfigError(
            f"{request.out} holds a finished preparation of something else:\n  "
            + "\n  ".join(differences)
            + "\nGive another folder with --out, or --force to replace it"
        )
    read_prepared(request.out, request.preparer.domain)
    watch.note(f"{request.out} is finished already; --force makes it anew")
    return True


def _differences(known: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{key}: {known.get(key)!r} -> {asked[key]!r}"
        for key in ("domain", "preparer", "seed", "sizes", "exact_sizes")
        if known.get(key) != asked[key]
    ]
    old, new = known["sources"], asked["sources"]
    for name in sorted({*old, *new}):
        if name not in new or name not in old:
            lines.append(f"source {name}: {'left out' if name in old else 'added'}")
            continue
        changed = [key for key in new[name] if new[name][key] != old[name].get(key)]
        lines += [f"source {name}, {key}: {old[name].get(key)!r} -> {new[name][key]!r}" for key in changed]
    return lines


def _source_figures(
    identities: Mapping[str, Any], parts: Sequence[Part], index: Index, shares: Shares
) -> dict[str, Any]:
    dropped = [Counter(reasons) for reasons in index.dropped]
    for drop in shares.drops:
        dropped[index.source[drop.number]][drop.reason] += 1
    kept = [Counter[str]() for _ in parts]
    for split, numbers in shares.splits.items():
        for number in numbers:
            kept[index.source[number]][split] += 1
    return {
        part.source.name: {
            **identities[part.source.name],
            "read": part.rows,
            "kept": {split: kept[i][split] for split in SPLITS if kept[i][split]},
            "dropped": _counted(dropped[i]),
            "unused": shares.unused[i],
        }
        for i, part in enumerate(parts)
    }


def _counted(reasons: Counter[str]) -> dict[str, int]:
    common = dict(reasons.most_common(_REASONS))
    rest = reasons.total() - sum(common.values())
    return common | ({"other": rest} if rest else {})


def _write_splits(out: Path, index: Index, shares: Shares) -> dict[str, Any]:
    """Write the splits' files; only ``unseen`` may be missing."""
    figures: dict[str, Any] = {}
    for split in SPLITS:
        path, numbers = out / f"{split}.jsonl", shares.splits[split]
        if numbers or split != "unseen":
            figures[split] = _write_split(path, index, numbers)
        else:
            path.unlink(missing_ok=True)
    return figures


def _write_split(path: Path, index: Index, numbers: Sequence[int]) -> dict[str, Any]:
    """Write a split's file and say what it holds."""
    digest = hashlib.sha256()
    families: Counter[str] = Counter()
    with path.open("wb") as file:
        for line_of_part in index.lines(numbers):
            fields = line_of_part["task"]
            families[fields["family"]] += 1
            line = json.dumps(fields, ensure_ascii=False).encode() + b"\n"
            digest.update(line)
            file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return {"rows": len(numbers), "families": dict(sorted(families.items())), "sha256": digest.hexdigest()}


def _note_short(shares: Shares, sizes: Sizes, watch: Watch) -> None:
    for split in SPLITS:
        have, want = len(shares.splits[split]), sizes.wanted[split]
        if want is not None and have < want:
            watch.note(f"{split}: {have:,} tasks, {want:,} were asked for; the sources have no more for it")
        elif want is not None and have > want and split in HELD_OUT:
            watch.note(f"{split}: {have:,} tasks, held-out sources are taken whole; --size {split}={want} cuts them")
    for split in ("weights", "search", "test"):
        if not shares.splits[split]:  # type: ignore[index]
            watch.note(f"{split}: no tasks; a run needs some, so give a source that has this split")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DomainError(f"{folder} is being prepared by another process; wait for it, or give --out") from None
        yield
