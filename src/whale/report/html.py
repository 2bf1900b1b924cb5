"""One self-contained page about a run: opens from disk, loads nothing from anywhere, and says so to the browser."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from whale.errors import ConfigError
from whale.report.data import summary_of
from whale.report.picture import picture_of, write_picture
from whale.report.source import load
from whale.report.view import page
from whale.report.words import count, memory, number, seconds, signed, span

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    from whale.report import charts
except ImportError as error:
    raise ConfigError(f"the HTML report needs jinja2 and plotly ({error}): pip install 'whale-learn[report]'") from None

__all__ = ["write_picture", "write_report"]

_HERE = Path(__file__).parent


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run folder to ``out`` (default: ``report.html`` in the folder); returns its path.

    The page is about 5 MB, nearly all of it the chart library. Raises StoreError for a folder that is no run.
    """
    run = load(folder)
    summary = summary_of(run)
    out = out or folder / "report.html"
    figures = {
        "main": charts.main_chart(run, summary),
        "legend": charts.legend(run, summary),
        "steps": charts.step_charts(run),
    }
    html = _environment().get_template("template.html.j2").render(
        **page(run, summary), figures=figures, picture=Markup(picture_of(run, summary)), scripts=_scripts(),
        css=Markup((_HERE / "page.css").read_text("utf-8")),
    )  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(html, encoding="utf-8")
    return out


def _scripts() -> list[dict[str, Any]]:
    """The page's own scripts with their digests: no other script may run, so text of a candidate never can."""
    found = []
    for source in (get_plotlyjs(), (_HERE / "draw.js").read_text("utf-8")):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        found.append({"source": Markup(source), "digest": digest})
    return found


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("whale.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(
        count=count, number=number, signed=signed, span=span, seconds=seconds, memory=memory, raw_json=Markup
    )
    return environment
