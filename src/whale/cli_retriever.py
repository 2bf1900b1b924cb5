"""Command line of the search QA retriever: build an index, serve a retriever."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from whale.errors import ConfigError

Kind = Annotated[str, typer.Option(help="bm25 or dense.")]
Corpus = Annotated[list[Path], typer.Option(help="JSONL file, plain or gzipped; may be repeated.")]
EncoderName = Annotated[str, typer.Option(help="Folder or hub id of the sentence encoder (dense).")]
Tokenizer = Annotated[Path | None, typer.Option(help="tokenizer.json of the policy, or its folder; cuts the passages.")]
Cache = Annotated[Path | None, typer.Option(help="Folder for indexes; default: retrieval in whale's cache.")]
OptionPairs = Annotated[
    list[str] | None, typer.Option("--option", "-o", help="Further option of the kind, e.g. title=false.")
]


def serve_retriever(
    corpus: Corpus,
    kind: Kind = "bm25",
    encoder: EncoderName = "",
    tokenizer: Tokenizer = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    cache: Cache = None,
    option: OptionPairs = None,
) -> None:
    """Serve passages over HTTP: POST /retrieve and GET /health, until Ctrl-C."""
    from whale.domains.search_qa.retrieval import open_retriever
    from whale.domains.search_qa.retrieval.server import serve

    retriever = open_retriever(retriever_options(kind, corpus, encoder, cache, option or []), tokenizer, _say)
    serve(retriever, host, port, _say)


def index(
    corpus: Corpus,
    kind: Kind = "bm25",
    encoder: EncoderName = "",
    cache: Cache = None,
    option: OptionPairs = None,
) -> None:
    """Build the index of a corpus and make one search; a stopped dense build goes on where it was."""
    from whale.domains.search_qa.retrieval import open_retriever

    retriever = open_retriever(retriever_options(kind, corpus, encoder, cache, option or []), None, _say)

    async def build() -> None:
        await retriever.start()
        await retriever.close()

    asyncio.run(build())
    _say(f"ready: {retriever.name}")


def retriever_options(
    kind: str, corpus: list[Path], encoder: str, cache: Path | None, pairs: list[str]
) -> dict[str, Any]:
    """Options for ``open_retriever``. pairs: ``name=value`` with a TOML value, or a plain text. Raises ConfigError."""
    if kind == "http":
        raise ConfigError("--kind http: a server cannot stand behind this one; choose bm25 or dense")
    options: dict[str, Any] = {"kind": kind, "corpus": [str(path) for path in corpus]}
    if encoder:
        options["encoder"] = encoder
    if cache is not None:
        options["cache"] = str(cache)
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--option {pair}: name=value is expected")
        options[name] = _value(value)
    return options


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _say(line: str) -> None:
    typer.echo(line, err=True)
