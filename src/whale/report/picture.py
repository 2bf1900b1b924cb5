"""A small static picture of accuracy against rollouts, written by hand as SVG: crisp, light, no dependencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from whale.report.data import summary_of
from whale.report.series import bands, dots, known_looks, rewards
from whale.report.source import RunData, load

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 44, 46
_TINT = {"weights": "#e6eefb", "harness": "#fbeed2"}
_NAME = {"weights": "weights", "harness": "harness search"}
_TEST, _TRAIN, _CANDIDATE, _ACCEPTED, _INK, _LINE = "#0e8f95", "#8fb2e0", "#c98a2b", "#c2541f", "#4b5563", "#dfe3e8"
_FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True)
class _Plane:
    """From values to places in the picture."""

    x_most: float
    y_most: float

    def x(self, value: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * value / self.x_most, 1)

    def y(self, value: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self.y_most, 1)


def write_picture(folder: Path, out_svg: Path) -> Path:
    """Write the picture of a run folder; returns its path. Raises StoreError for a folder that is no run."""
    run = load(folder)
    out_svg.parent.mkdir(parents=True, exist_ok=True)
    out_svg.write_text(picture_of(run, summary_of(run)), encoding="utf-8")
    return out_svg


def picture_of(run: RunData, summary: dict[str, Any]) -> str:
    """The picture as SVG text."""
    plane = _plane(run, summary)
    parts = [
        *_shading(run, plane),
        *_axes(plane),
        *_training(run, plane),
        *_candidates(run, summary, plane),
        *_looks(known_looks(summary, "test"), plane),
        *_legend(run, summary),
    ]
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    label = escape(f"Accuracy against rollouts of the run {summary['name']}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}" font-family="{_FONT}" '
        f'font-size="12"><rect width="100%" height="100%" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _plane(run: RunData, summary: dict[str, Any]) -> _Plane:
    looks = known_looks(summary, "test")
    highest = [
        *(look["high"] for look in looks),
        *(y for phase in rewards(run) for _, y in phase),
        *(dot.score for dot in dots(run, summary)),
    ]
    top = min(1.0, math.ceil(10 * max(highest, default=1.0)) / 10) or 0.1
    return _Plane(max(1, run.state.counters.axis), top)


def _shading(run: RunData, plane: _Plane) -> list[str]:
    found = []
    for band in bands(run):
        x, width = plane.x(band.begin), round(plane.x(band.end) - plane.x(band.begin), 1)
        height = _HEIGHT - _TOP - _BOTTOM
        found.append(f'<rect x="{x}" y="{_TOP}" width="{width}" height="{height}" fill="{_TINT[band.kind]}"/>')
    return found


def _axes(plane: _Plane) -> list[str]:
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value in _ticks(plane.y_most, 5):
        y = plane.y(value)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y}" y2="{y}" stroke="{_LINE}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{value:.1f}", anchor="end"))
    for value in _ticks(plane.x_most, 6):
        parts.append(_text(plane.x(value), floor + 18, f"{value:,.0f}", anchor="middle"))
    parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{floor}" y2="{floor}" stroke="{_INK}"/>')
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 8, "rollouts (training + search)", anchor="middle"))
    return parts


def _training(run: RunData, plane: _Plane) -> list[str]:
    parts = []
    for phase in rewards(run):
        points = [(plane.x(x), plane.y(y)) for x, y in phase]
        parts.append(_path(points, _TRAIN, 1.3))
        parts += [f'<circle cx="{x}" cy="{y}" r="1.6" fill="{_TRAIN}"/>' for x, y in points]
    return parts


def _candidates(run: RunData, summary: dict[str, Any], plane: _Plane) -> list[str]:
    parts = []
    for dot in dots(run, summary):
        x, y = plane.x(dot.rollouts), plane.y(dot.score)
        if dot.accepted:
            line = f'stroke="{_ACCEPTED}" stroke-dasharray="2 3"'
            parts.append(f'<line x1="{x}" x2="{x}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" {line}/>')
            parts.append(_star(x, y))
        else:
            parts.append(f'<circle cx="{x}" cy="{y}" r="3.2" fill="{_CANDIDATE}" fill-opacity="0.8"/>')
    return parts


def _looks(looks: Sequence[dict[str, Any]], plane: _Plane) -> list[str]:
    parts = [_path([(plane.x(look["rollouts"]), plane.y(look["mean"])) for look in looks], _TEST, 2.4)]
    for look in looks:
        x, low, high = plane.x(look["rollouts"]), plane.y(look["low"]), plane.y(min(look["high"], plane.y_most))
        bar = f"M{x} {low}V{high}M{x - 4} {low}h8M{x - 4} {high}h8"
        parts.append(f'<path d="{bar}" stroke="{_TEST}" stroke-width="1.3"/>')
        parts.append(f'<circle cx="{x}" cy="{plane.y(look["mean"])}" r="4.2" fill="{_TEST}"/>')
    return parts


def _legend(run: RunData, summary: dict[str, Any]) -> list[str]:
    parts, x = [], float(_LEFT)
    for name, swatch in _legend_entries(run, summary):
        parts.append(f'<g transform="translate({x:.0f} 20)">{swatch}{_text(24, 4, name)}</g>')
        x += 40 + sum(9.4 if letter in "mw@" else 6.2 for letter in name)
    return parts


def _legend_entries(run: RunData, summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What the picture holds: (name, mark drawn around the origin)."""
    looks, found = known_looks(summary, "test"), dots(run, summary)
    entries = []
    if looks:
        entries.append((f"test mean@{looks[-1]['k']}", f'<path d="M0 0h18" stroke="{_TEST}" stroke-width="2.4"/>'))
    if rewards(run):
        entries.append(("training reward", f'<path d="M0 0h18" stroke="{_TRAIN}" stroke-width="1.3"/>'))
    if any(not dot.accepted for dot in found):
        entries.append(("candidate", f'<circle cx="9" r="3.2" fill="{_CANDIDATE}"/>'))
    if any(dot.accepted for dot in found):
        entries.append(("accepted", _star(9, 0)))
    for kind in dict.fromkeys(band.kind for band in bands(run)):
        entries.append((_NAME[kind], f'<rect y="-7" width="18" height="14" fill="{_TINT[kind]}"/>'))
    return entries


def _ticks(most: float, count: int) -> list[float]:
    """Round values from 0 to at most ``most``, about ``count`` of them."""
    raw = most / count
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    return [step * i for i in range(int(most / step + 1e-9) + 1)]


def _path(points: Sequence[tuple[float, float]], color: str, width: float) -> str:
    if len(points) < 2:
        return ""
    line = "L".join(f"{x} {y}" for x, y in points)
    return f'<path d="M{line}" fill="none" stroke="{color}" stroke-width="{width}" stroke-linejoin="round"/>'


def _star(x: float, y: float) -> str:
    corners = [(7.5 if i % 2 == 0 else 3.2, math.pi * (i / 5 - 0.5)) for i in range(10)]
    points = " ".join(f"{x + r * math.cos(a):.1f},{y + r * math.sin(a):.1f}" for r, a in corners)
    return f'<polygon points="{points}" fill="{_ACCEPTED}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{round(x, 1)}" y="{round(y, 1)}" fill="{_INK}" text-anchor="{anchor}">{escape(text)}</text>'
