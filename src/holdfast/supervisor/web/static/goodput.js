// Where did the time of a job's workers go?

import { h } from "./dom.js";
import { table } from "./parts.js";
import { percent, span } from "./words.js";

const KINDS = {
  productive: "productive",
  "lost steps": "lost",
  hang: "lost",
  detect: "lost",
  stop: "lost",
  rendezvous: "begin",
  reclaim: "begin",
  start: "begin",
  import: "begin",
  "first collective": "begin",
  restore: "begin",
  "first step": "begin",
  spare: "idle",
  idle: "idle",
  missing: "idle",
};
const SHADES = 4;

export function goodputBar(goodput) {
  if (!goodput) return h("p", { class: "faint" }, "Not known: this host has no record of the job.");
  const parts = Object.entries(goodput.seconds).filter(([, seconds]) => seconds > 0);
  const all = parts.reduce((sum, [, seconds]) => sum + seconds, 0) || 1;
  const seen = {};
  const shown = parts.map(([state, seconds]) => {
    const kind = KINDS[state] ?? "idle";
    return { state, seconds, kind, shade: (seen[kind] = (seen[kind] ?? -1) + 1) % SHADES };
  });
  const bar = h("div", {
    class: "stack",
    role: "img",
    "aria-label": `${percent(goodput.goodput)} of the workers' time was productive`,
  });
  for (const { state, seconds, kind, shade } of shown) {
    const part = bar.appendChild(
      h("span", { "data-kind": kind, "data-shade": shade, title: `${state}: ${percent(seconds / all)}` }),
    );
    part.style.flexGrow = seconds / all;
  }
  const rows = shown
    .toSorted((one, other) => other.seconds - one.seconds)
    .map(({ state, seconds, kind, shade }) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, h("span", { class: "swatch", "data-kind": kind, "data-shade": shade }), state),
        h("td", { class: "number" }, span(seconds)),
        h("td", { class: "number" }, percent(seconds / all)),
      ),
    );
  return h(
    "div",
    {},
    h("p", { class: "big" }, percent(goodput.goodput), h("small", {}, " productive")),
    bar,
    table("Where time went", ["State", "Worker time", "Share"], h("tbody", {}, rows)),
  );
}
