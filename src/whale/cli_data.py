"""Commands of the data side: splits on disk, and domains of one's own. Thin like ``whale.cli``."""

from __future__ import annotations

import asyncio
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from whale.errors import ConfigError
from whale.types import SPLITS

data_app = typer.Typer(no_args_is_help=True, help="Build the splits of a domain from its sources.")
domain_app = typer.Typer(no_args_is_help=True, help="Check a domain, or begin one of your own.")
out = Console(highlight=False, soft_wrap=True)

_SHOWN_FAULTS = 20
_LINE_SECONDS = 5.0


@data_app.callback()
def _data() -> None:
    """A group with one command stays a group."""


@data_app.command()
def prepare(
    domain: Annotated[str, typer.Argument(help="Domain with a preparer, or module:Class of a preparer.")],
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH]...", help="Files or folders; NAME=PATH names the source.")
    ] = None,
    source: Annotated[str, typer.Option(help="`hub` streams the public sets instead of reading PATHs.")] = "",
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With --source hub: this source; may be repeated.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--out", help="Folder to write; default: data/DOMAIN.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the shuffle.")] = 0,
    size: Annotated[
        list[str] | None, typer.Option(metavar="SPLIT=N", help="Tasks of a split; may be repeated.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a finished preparation of something else.")] = False,
) -> None:
    """Build the splits of a domain, or continue: the same command after a stop goes on where it was."""
    from whale.domains.data.inputs import hub_inputs, local_inputs
    from whale.domains.data.prepare import Request
    from whale.domains.data.prepare import prepare as make
    from whale.domains.data.registry import load_preparer

    if source not in ("", "hub"):
        raise ConfigError(f"--source {source}: hub is expected; files and folders are given as PATHs")
    if bool(source) == bool(paths):
        raise ConfigError("say where the rows come from: either --source hub, or one or more PATHs")
    if only and paths:
        raise ConfigError("--only goes with --source hub; of local files the ones that are given are read")
    preparer = load_preparer(domain)
    watch = _watch()
    sources = preparer.sources
    inputs = local_inputs(sources, paths, watch.note) if paths else hub_inputs(sources, watch.note, only or ())
    folder = to or Path("data") / preparer.domain
    request = Request(preparer, inputs, folder, seed, _sizes(size or []), force)
    _print_manifest(make(request, watch), folder)


@domain_app.command()
def check(
    domain: Annotated[str, typer.Argument(help="Domain, or module:Class.")],
    data: Annotated[Path | None, typer.Option(help="Prepared folder, handed to the domain as option data.")] = None,
    option: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the domain.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Tasks per split; default: all.")] = None,
    isolation: Annotated[
        str, typer.Option(help="sealed, contained or off; for domains whose tools run code.")
    ] = "sealed",
    to: Annotated[Path | None, typer.Option("--out", help="JSONL file for every row that failed.")] = None,
) -> None:
    """Show that right answers score 1, junk scores 0 and the splits are disjoint; exit 1 if not."""
    from whale.domains import load_domain
    from whale.domains.check import check_domain, write_faults

    options = dict(_option(text) for text in option or [])
    if data is not None:
        options["data"] = str(data)
    loaded = load_domain(domain, options, isolation)
    report = asyncio.run(check_domain(loaded, limit))
    for line in report.lines(_SHOWN_FAULTS):
        out.print(line, markup=False)
    if to is not None:
        write_faults(report, to)
        out.print(f"every row that failed or cannot be scored: {to}", markup=False)
    if not report.ok:
        raise typer.Exit(1)


@domain_app.command()
def new(
    name: Annotated[str, typer.Argument(help="A Python name; also the folder's, unless --out is given.")],
    table: Annotated[
        Path | None, typer.Option("--csv", help="Your questions and answers (.csv or .jsonl); default: an example.")
    ] = None,
    question: Annotated[str, typer.Option(help="Column of the questions.")] = "question",
    answer: Annotated[str, typer.Option(help="Column of the answers.")] = "answer",
    to: Annotated[Path | None, typer.Option("--out", help="Folder to write; its last part must be NAME.")] = None,
) -> None:
    """Write a small domain that runs at once: tasks, verifier, seed harness, catalogue, recipe and a test."""
    from whale.domains.new import new_domain

    for line in new_domain(name, table, question, answer, to):
        out.print(line, markup=False)


def _sizes(texts: list[str]) -> dict[Any, int]:
    sizes = {}
    for text in texts:
        split, _, number = text.partition("=")
        if split not in SPLITS or not number.isdecimal():
            raise ConfigError(
                f"--size {text}: SPLIT=N is expected, with a split of {', '.join(SPLITS)}, e.g. search=256"
            )
        sizes[split] = int(number)
    return sizes


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ConfigError(f"--option {text}: KEY=VALUE is expected, e.g. seed=1")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _watch() -> Any:
    from whale.domains.data.parts import Watch

    class Lines(Watch):
        """Prints notes, and how far a source is every few seconds."""

        def __init__(self) -> None:
            self._last = 0.0

        def note(self, text: str) -> None:
            out.print(text, markup=False)

        def rows(self, source: str, read: int, total: int | None, per_second: float) -> None:
            now = time.monotonic()
            if now - self._last < _LINE_SECONDS and read != total:
                return
            self._last = now
            of = f" of {total:,}" if total else ""
            out.print(f"{source}: {read:,}{of} rows, {per_second:,.0f} rows/s", markup=False)

    return Lines()


def _print_manifest(manifest: dict[str, Any], folder: Path) -> None:
    splits = Table("split", "tasks", "families", box=None, pad_edge=False)
    for split, figures in manifest["splits"].items():
        families = ", ".join(f"{name or '-'} {count:,}" for name, count in figures["families"].items())
        splits.add_row(split, f"{figures['rows']:,}", families)
    sources = Table("source", "rows", "kept", "dropped", "not needed", box=None, pad_edge=False)
    for name, figures in manifest["sources"].items():
        dropped = sum(figures["dropped"].values())
        kept = sum(figures["kept"].values())
        sources.add_row(name, *(f"{count:,}" for count in (figures["read"], kept, dropped, figures["unused"])))
    out.print(sources)
    out.print()
    out.print(splits)
    reasons: dict[str, int] = {}
    for figures in manifest["sources"].values():
        for reason, count in figures["dropped"].items():
            reasons[reason] = reasons.get(reason, 0) + count
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        out.print(f"dropped {count:,}: {reason}", markup=False)
    out.print(f"written to {folder}; each dropped row stands in {folder / 'dropped.jsonl'}", markup=False)
