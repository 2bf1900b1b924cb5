"""What whale knows of each command line program: how it is called, and how to read what it prints.

Readers accept any output: unknown fields are skipped, cut JSON is nothing, and what is not said is ``None``.
Formats: `claude -p --output-format json | stream-json` and `codex exec --json` as documented by their makers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale.config import ProposerConfig
from whale.proposers.outbox import printable
from whale.proposers.scratch import Scratch

COST_FILE = "cost.json"
"""Where a program of kind ``command`` may leave ``{"money": dollars, "tokens": n, "calls": n, "turns": n}``."""

_WEB_TOOLS = "WebFetch,WebSearch"
_TOOL_ITEMS = frozenset({"command_execution", "file_change", "mcp_tool_call", "web_search"})


@dataclass(frozen=True)
class Said:
    """What a program said of its session; ``None`` is unknown. calls: tool calls. limit: it stopped at a limit."""

    calls: int = 0
    turns: int | None = None
    tokens: int | None = None
    money: float | None = None
    session: str = ""
    detail: str = ""
    limit: bool = False


@dataclass(frozen=True)
class Program:
    """A command line program. key: variable its key is in, under the name the program looks for. other_keys:
    variables that do instead. variables: others it is given. credentials: files below the home folder that hold a
    login; home_variable names a folder that replaces the first part of their paths. install, login: ways out."""

    default: str
    argv: Callable[[ProposerConfig, Scratch, bool], list[str]]
    read: Callable[[Path, Scratch], Said]
    key: str = ""
    other_keys: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    home_variable: str = ""
    install: str = ""
    login: str = ""


def _claude_argv(settings: ProposerConfig, scratch: Scratch, sealed: bool) -> list[str]:
    argv = ["-p", "--output-format", "stream-json", "--verbose", "--permission-mode", "acceptEdits"]
    argv += ["--allowedTools", ",".join(settings.tools), "--disallowedTools", _WEB_TOOLS]
    argv += ["--max-turns", str(settings.turns)]
    argv += ["--model", settings.model] if settings.model else []
    argv += ["--effort", settings.effort] if settings.effort else []
    argv += ["--max-budget-usd", str(settings.money)] if settings.money is not None else []
    return [*argv, *settings.arguments]


def read_claude(log: Path, scratch: Scratch) -> Said:
    """The result object that ends the output, and the tools used on the way there."""
    result: dict[str, Any] = {}
    calls, session = 0, ""
    for message in json_objects(log):
        session = _text(message.get("session_id")) or session
        if message.get("type") == "result":
            result = message
        elif message.get("type") == "assistant":
            calls += sum(block.get("type") == "tool_use" for block in _dicts(_dict(message.get("message")), "content"))
    subtype = _text(result.get("subtype"))
    denied = sorted({_text(denial.get("tool_name")) for denial in _dicts(result, "permission_denials")})
    detail = f"{subtype}: {_text(result.get('result'))}" if result else "no result was printed"
    return Said(
        calls=calls,
        turns=_whole(result.get("num_turns")),
        tokens=_sum(_dict(result.get("usage")), "input_tokens", "cache_creation_input_tokens",
                    "cache_read_input_tokens", "output_tokens"),
        money=_number(result.get("total_cost_usd")),
        session=session,
        detail=detail + (f"; refused: {', '.join(denied)}" if denied else ""),
        limit=subtype.startswith("error_max"),
    )  # fmt: skip


def _codex_argv(settings: ProposerConfig, scratch: Scratch, sealed: bool) -> list[str]:
    # Its own sandbox does not start inside ours, and is what there is without.
    argv = ["exec", "--json", "--skip-git-repo-check", "--sandbox"]
    argv += ["danger-full-access"] if sealed else ["workspace-write"]
    argv += ["--cd", str(scratch.folder)]
    argv += ["--model", settings.model] if settings.model else []
    argv += ["-c", f'model_reasoning_effort="{settings.effort}"'] if settings.effort else []
    return [*argv, *settings.arguments, "-"]


def read_codex(log: Path, scratch: Scratch) -> Said:
    """Events, one per line. Tokens are told per turn; money is not told at all."""
    calls = turns = 0
    tokens: int | None = None
    session, last, failed = "", "", ""
    for event in json_objects(log):
        kind = _text(event.get("type"))
        item = _dict(event.get("item"))
        item_kind = _text(item.get("type") or item.get("item_type"))
        if kind == "thread.started":
            session = _text(event.get("thread_id"))
        elif kind == "turn.completed":
            turns += 1
            used = _sum(_dict(event.get("usage")), "input_tokens", "output_tokens")
            tokens = tokens if used is None else (tokens or 0) + used
        elif kind == "item.completed" and item_kind in _TOOL_ITEMS:
            calls += 1
        elif kind == "item.completed" and item_kind in ("agent_message", "assistant_message"):
            last = _text(item.get("text"))
        elif kind == "turn.failed":
            failed = _text(_dict(event.get("error")).get("message")) or kind
        elif kind == "error":  # also printed for a lost connection that was found again
            failed = failed or _text(event.get("message"))
    return Said(calls, turns or None, tokens, None, session, failed or last)


def _command_argv(settings: ProposerConfig, scratch: Scratch, sealed: bool) -> list[str]:
    places = {
        "{scratch}": str(scratch.folder),
        "{outbox}": str(scratch.outbox),
        "{task}": str(scratch.folder / "TASK.md"),
    }
    words = list(settings.arguments)
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    return words


def read_command(log: Path, scratch: Scratch) -> Said:
    """What the program left in ``outbox/cost.json``, if anything, and the end of its output."""
    cost: dict[str, Any] = {}
    path = scratch.outbox / COST_FILE
    if path.is_file() and not path.is_symlink():
        cost = next(json_objects(path), {})
    return Said(
        calls=_whole(cost.get("calls")) or 0,
        turns=_whole(cost.get("turns")),
        tokens=_whole(cost.get("tokens")),
        money=_number(cost.get("money")),
        detail=tail(log),
    )


PROGRAMS = {
    "claude-code": Program(
        "claude", _claude_argv, read_claude, "ANTHROPIC_API_KEY",
        other_keys=("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"), variables=("ANTHROPIC_BASE_URL",),
        credentials=(".claude/.credentials.json",), home_variable="CLAUDE_CONFIG_DIR",
        install="install Claude Code (`npm install -g @anthropic-ai/claude-code`)",
        login="log in with `claude`, or `claude setup-token` and CLAUDE_CODE_OAUTH_TOKEN",
    ),
    "codex": Program(
        "codex", _codex_argv, read_codex, "CODEX_API_KEY", variables=("OPENAI_BASE_URL",),
        credentials=(".codex/auth.json", ".codex/config.toml"), home_variable="CODEX_HOME",
        install="install Codex (`npm install -g @openai/codex`)", login="log in with `codex login`",
    ),
    "command": Program("", _command_argv, read_command),
}  # fmt: skip


def json_objects(path: Path) -> Iterator[dict[str, Any]]:
    """JSON objects of a file, whether one per line, one over many lines, or a list; what cannot be read is skipped."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    whole = _loads(text)
    if whole is not None:
        yield from _objects(whole)
        return
    for line in text.splitlines():
        yield from _objects(_loads(line))


def tail(path: Path, characters: int = 1_000) -> str:
    """The end of a log."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4 * characters))
        return file.read().decode("utf-8", "replace")[-characters:].strip()


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = value.get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _text(value: Any) -> str:
    return printable(value) if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        return None
    return float(value)


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _sum(values: dict[str, Any], *names: str) -> int | None:
    found = [number for name in names if (number := _whole(values.get(name))) is not None]
    return sum(found) if found else None
