"""The page's charts, as plotly figures. Colours are mid-tones that hold on a light and on a dark ground; the page
sets the colours of text and grid to its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from whale.report.series import STEP_FIGURES, Band, bands, dots, known_looks, line_names, rewards
from whale.report.source import RunData

TEST, UNSEEN, TRAIN, CANDIDATE, ACCEPTED = "#0e8f95", "#8b6fc4", "#7ba3d8", "#c98a2b", "#c2541f"
TINT = {"weights": "rgba(70,120,200,0.10)", "harness": "rgba(214,150,40,0.16)"}
LINE = {"test": (TEST, "solid"), "unseen": (UNSEEN, "dash")}


def main_chart(run: RunData, summary: dict[str, Any]) -> str:
    """Accuracy against rollouts, as JSON of a figure."""
    chart = go.Figure()
    _shade(chart, bands(run))
    for steps in rewards(run):  # a line per weight phase: searches in between have no reward
        chart.add_scatter(
            x=[x for x, _ in steps], y=[y for _, y in steps], name="training reward", mode="lines+markers",
            line={"color": TRAIN, "width": 1.3}, marker={"size": 3},
            hovertemplate="reward %{y:.3f}<extra></extra>",
        )  # fmt: skip
    _candidates(chart, run, summary)
    for split, name in reversed(line_names(summary)):
        _looks(chart, known_looks(summary, split), name, *LINE[split])
    chart.update_layout(**_layout(height=400))
    most = max(1, run.state.counters.axis)
    chart.update_xaxes(title="rollouts (training + search)", range=[-0.015 * most, 1.02 * most], zeroline=False)
    chart.update_yaxes(title="accuracy", rangemode="tozero", zeroline=False)
    return _embed(chart)


def legend(run: RunData, summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What the main chart holds: (css class of its mark, name)."""
    entries = [(f"line {split}", name) for split, name in line_names(summary)]
    if rewards(run):
        entries.append(("line reward", "training reward"))
    found = dots(run, summary)
    if any(not dot.accepted for dot in found):
        entries.append(("dot", "candidate (search score)"))
    if any(dot.accepted for dot in found):
        entries.append(("star", "accepted harness"))
    names = {"weights": "weight phase", "harness": "harness search"}
    return entries + [(f"band {kind}", names[kind]) for kind in dict.fromkeys(band.kind for band in bands(run))]


def step_charts(run: RunData) -> list[dict[str, str]]:
    """One small chart per figure of the weight steps: title, note, figure as JSON."""
    lines = run.lines("step")
    found = []
    for key, title, note in STEP_FIGURES:
        points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
        if points:
            found.append({"title": title, "note": note, "figure": _step_chart(points)})
    return found


def _step_chart(points: Sequence[tuple[int, float]]) -> str:
    chart = go.Figure()
    chart.add_scatter(
        x=[x for x, _ in points], y=[y for _, y in points], mode="lines+markers",
        line={"color": TEST, "width": 1.5}, marker={"size": 4}, hovertemplate="step %{x}: %{y:.4g}<extra></extra>",
    )  # fmt: skip
    chart.update_layout(**_layout(height=150, margin={"l": 44, "r": 8, "t": 6, "b": 26}))
    chart.update_xaxes(dtick=max(1, math.ceil(points[-1][0] / 6)), zeroline=False)
    chart.update_yaxes(nticks=4, rangemode="tozero", zeroline=False)
    return _embed(chart)


def _shade(chart: Any, phases: Sequence[Band]) -> None:
    for band in phases:
        chart.add_shape(
            type="rect", x0=band.begin, x1=band.end, y0=0, y1=1, yref="paper", layer="below",
            fillcolor=TINT[band.kind], line={"width": 0},
        )  # fmt: skip


def _candidates(chart: Any, run: RunData, summary: dict[str, Any]) -> None:
    styles = (
        (False, "candidate (search score)", {"size": 7, "color": CANDIDATE, "opacity": 0.75}),
        (True, "accepted harness", {"size": 13, "color": ACCEPTED, "symbol": "star"}),
    )
    found = dots(run, summary)
    for accepted, name, marker in styles:
        chosen = [dot for dot in found if dot.accepted == accepted]
        if chosen:
            chart.add_scatter(
                x=[dot.rollouts for dot in chosen], y=[dot.score for dot in chosen], name=name, mode="markers",
                marker=marker, text=[escape(dot.label) for dot in chosen],
                hovertemplate="%{text}<br>search score %{y:.3f}<extra></extra>",
            )  # fmt: skip
    for dot in (dot for dot in found if dot.accepted):
        chart.add_shape(
            type="line", x0=dot.rollouts, x1=dot.rollouts, y0=0, y1=1, yref="paper", layer="below",
            line={"color": ACCEPTED, "width": 1, "dash": "dot"},
        )  # fmt: skip


def _looks(chart: Any, looks: Sequence[dict[str, Any]], name: str, color: str, dash: str) -> None:
    chart.add_scatter(
        x=[look["rollouts"] for look in looks], y=[look["mean"] for look in looks], mode="lines+markers",
        name=name,
        line={"color": color, "width": 2.5, "dash": dash}, marker={"size": 8},
        error_y={
            "type": "data", "symmetric": False, "thickness": 1.4, "width": 4, "color": color,
            "array": [look["high"] - look["mean"] for look in looks],
            "arrayminus": [look["mean"] - look["low"] for look in looks],
        },
        text=[escape(f"{look['harness']}, policy {look['policy']}, coverage {look['coverage']:.1%}") for look in looks],
        hovertemplate=name + " %{y:.3f} (%{text})<extra></extra>",
    )  # fmt: skip


def _layout(height: int, margin: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "template": "none",
        "height": height,
        "margin": margin or {"l": 52, "r": 12, "t": 10, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#808892"},
        "hovermode": "closest",
        "showlegend": False,  # the page has one that wraps on a phone
        "dragmode": False,  # a finger on a chart scrolls the page
    }


def _embed(chart: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element."""
    chart.update_xaxes(gridcolor="rgba(128,136,146,0.22)", fixedrange=True)
    chart.update_yaxes(gridcolor="rgba(128,136,146,0.22)", fixedrange=True)
    return str(chart.to_json()).replace("<", "\\u003c")
