"use strict";
// Draws every chart of the page from the JSON beside it, in the page's own colours for light and dark.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function themed(layout) {
  const axis = { gridcolor: css("--line"), linecolor: css("--line"), tickcolor: css("--line") };
  for (const name of ["xaxis", "yaxis"]) Object.assign(layout[name], axis);
  layout.font.color = css("--muted");
  layout.hoverlabel = { bgcolor: css("--panel"), bordercolor: css("--line"), font: { color: css("--ink") } };
  return layout;
}

function drawAll() {
  for (const place of document.querySelectorAll(".chart")) {
    const figure = JSON.parse(place.querySelector("script").textContent);
    const target = place.querySelector("div");
    Plotly.react(target, figure.data, themed(figure.layout), { responsive: true, displayModeBar: false });
  }
}

drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
