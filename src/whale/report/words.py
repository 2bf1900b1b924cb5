"""How figures are written, the same in every report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def number(value: float | None, digits: int = 3) -> str:
    """A figure with fixed digits; a dash for an unknown one."""
    return "-" if value is None else f"{value:.{digits}f}"


def count(many: int, noun: str) -> str:
    """A number of things: ``1 task``, ``1,200 tasks``."""
    return f"{many:,} {noun}{'' if many == 1 else 's'}"


def signed(value: float | None) -> str:
    """A difference with its sign."""
    return "-" if value is None else f"{value:+.3f}"


def span(estimate: Mapping[str, Any], form: str = ".3f") -> str:
    """The 95 % interval of an estimate."""
    if estimate["low"] is None:
        return "[unknown]"
    return f"[{estimate['low']:{form}}, {estimate['high']:{form}}]"


def figure(estimate: Mapping[str, Any]) -> str:
    """A mean@k with its interval, number of tasks and coverage."""
    return (
        f"{number(estimate['mean'])} {span(estimate)}  mean@{estimate['k']}, {count(estimate['tasks'], 'task')}, "
        f"coverage {estimate['coverage']:.1%}"
    )


def gain(difference: Mapping[str, Any]) -> str:
    """A paired difference with its interval."""
    return f"{signed(difference['mean'])} {span(difference, '+.3f')}  paired over {count(difference['tasks'], 'task')}"


def seconds(value: float | None) -> str:
    """A duration: ``42 s``, ``3 min 05 s``, ``2 h 07 min``."""
    if value is None:
        return "-"
    whole = round(value)
    if whole < 60:
        return f"{value:.0f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def memory(value: int | None) -> str:
    """Bytes in GB."""
    return "-" if value is None else f"{value / 1e9:.2f} GB"


def clip(text: str, most: int = 1500) -> str:
    """A long text without its middle."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
