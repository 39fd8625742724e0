// History: which part of the time do jobs train, what ends their rounds, and how long until they train again? Over days.

import { remember } from "./address.js";
import { h, say, svg } from "./dom.js";
import { get } from "./live.js";
import { choice, failed, section, table } from "./parts.js";
import { now } from "./store.js";
import { many, moment, number, percent, span } from "./words.js";

const AGAIN_MS = 60_000;
const HOUR_S = 3600;
const RANGES = { 1: ["24 hours", 1], 7: ["7 days", 6], 30: ["30 days", 24] }; // days → words, hours of a column
const TALL = 96,
  AXIS = TALL + 16;
const SHADES = 4;
const SHORTEST_S = 0.01,
  LONGEST_S = 3600; // of the times' scale, which is logarithmic
const MARKS_S = [0.1, 1, 10, 120, 1200];
const TIMES = {
  detect: ["Time to detect", "from a trouble until it was seen"],
  act: ["Time to act", "from then until the ranks of the next round ran"],
  train: ["Time to train again", "from the trouble until each rank had made a step again"],
};

export function open(_, query) {
  let days = query.get("days") in RANGES ? query.get("days") : "7";
  let told = null;
  const lead = h("p", { class: "lead", role: "status" });
  const drawn = h("div"),
    problem = h("div");
  const range = choice(
    "How far back",
    Object.entries(RANGES).map(([name, [words]]) => [name, words]),
    (name) => {
      days = name;
      remember({ days: days === "7" ? "" : days });
      paint();
    },
    days,
  );
  const head = h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "History"), lead, h("div", { class: "row" }, range));
  const root = h("div", {}, head, problem, drawn);

  function paint() {
    if (!told) return;
    const columns = split(told.hours, Number(days));
    const all = sum(columns.map((column) => column.sums));
    const incidents = Object.values(all.incidents).reduce((one, other) => one + other, 0);
    say(lead, `${many(incidents, "incident")} in ${RANGES[days][0]}, goodput ${shown(all)}`);
    drawn.replaceChildren(
      section("Goodput", goodput(columns, all)),
      section("Incidents by cause", causes(columns, all)),
      ...Object.keys(TIMES).map((name) => section(TIMES[name][0], times(name, columns, all, told.bounds_s))),
    );
  }

  const closed = new AbortController();
  let asked = -Infinity;
  async function read() {
    asked = performance.now();
    try {
      told = await get("/api/history", closed.signal);
      problem.replaceChildren();
      paint();
    } catch (refused) {
      if (!closed.signal.aborted) problem.replaceChildren(failed(refused));
    }
  }
  read();
  const tick = () => performance.now() - asked > AGAIN_MS && read();
  return { root, title: "History", tick, close: () => closed.abort(), update() {} };
}

// The range in columns of some hours, of which the last has not ended: [{from, sums}]
function split(hours, days) {
  const step = RANGES[days][1] * HOUR_S;
  const end = (Math.floor(now() / step) + 1) * step;
  return Array.from({ length: (days * 24 * HOUR_S) / step }, (_, at) => {
    const from = end - days * 24 * HOUR_S + at * step;
    return { from, sums: sum(hours.filter((hour) => hour.at_unix >= from && hour.at_unix < from + step)) };
  });
}

function sum(hours) {
  const all = { incidents: {}, trained_s: 0, lost_s: 0, detect: [], act: [], train: [] };
  for (const hour of hours) {
    all.trained_s += hour.trained_s;
    all.lost_s += hour.lost_s;
    for (const [cause, count] of Object.entries(hour.incidents)) all.incidents[cause] = (all.incidents[cause] ?? 0) + count;
    for (const name of Object.keys(TIMES))
      (hour[name].counts ?? hour[name]).forEach((count, at) => (all[name][at] = (all[name][at] ?? 0) + count));
  }
  return all;
}

const part = ({ trained_s, lost_s }) => (trained_s + lost_s > 0 ? Math.max(0, trained_s) / (trained_s + lost_s) : null);
const shown = (sums) => (part(sums) === null ? "not known" : percent(part(sums)));
const total = (counts) => counts.reduce((one, other) => one + other, 0);

// As Prometheus' histogram_quantile: evenly within the bounds. null: there is none.
function quantile(counts, bounds, wanted) {
  let left = wanted * total(counts);
  if (!left) return null;
  const at = counts.findIndex((count) => (left -= count) <= 0);
  if (at >= bounds.length) return bounds[bounds.length - 1];
  const from = at ? bounds[at - 1] : 0;
  return from + ((bounds[at] - from) * (counts[at] + left)) / counts[at];
}

// --- charts: what is drawn stands below it as a table, too ---------------------------------------------------------------

// `marks`: [height, words] of lines across.
function chart(label, columns, draw, heads, cells, marks = []) {
  const width = 100 / columns.length;
  const drawing = svg(
    "svg",
    { class: "timeline history", role: "img", "aria-label": label, height: AXIS + 2, width: "100%" },
    columns.map((column, at) => {
      const frame = { x: `${at * width + width * 0.1}%`, width: `${width * 0.8}%` };
      return svg("g", {}, svg("rect", { ...frame, class: "ground", y: 0, height: TALL }), draw(column, frame, `${(at + 0.5) * width}%`));
    }),
    marks.map(([y, words]) => [
      svg("line", { class: "scale", x1: 0, x2: "100%", y1: y, y2: y }),
      svg("text", { x: "100%", y: y - 3, "text-anchor": "end" }, words),
    ]),
    [0, 0.25, 0.5, 0.75].map((at) => {
      const { from } = columns[Math.floor(at * columns.length)];
      return svg("text", { x: `${100 * at}%`, y: AXIS }, moment(from).slice(5, 16));
    }),
  );
  const rows = columns
    .toReversed()
    .filter((column) => cells(column.sums).some((cell) => cell !== "–" && cell !== "0"))
    .map((column) =>
      h("tr", {}, h("th", { scope: "row" }, moment(column.from).slice(0, 16)), cells(column.sums).map((cell) => h("td", {}, cell))),
    );
  const listed = h("details", {}, h("summary", {}, "As a table"), table(label, ["From", ...heads], h("tbody", {}, rows)));
  return [h("div", { class: "drawn" }, drawing), listed];
}

function goodput(columns, all) {
  const draw = ({ from, sums }, frame) => {
    if (part(sums) === null) return null;
    const height = TALL * part(sums);
    const words = svg("title", {}, `${moment(from)}: ${shown(sums)}`);
    const bars = [svg("rect", { ...frame, class: "lost", y: 0, height: TALL - height })];
    return svg("g", {}, words, bars, svg("rect", { ...frame, class: "trained", y: TALL - height, height }));
  };
  const cells = (sums) => [shown(sums).replace("not known", "–"), sums.lost_s ? span(sums.lost_s) : "–"];
  return [
    h("p", { class: "big" }, shown(all), h("small", {}, " of the jobs' time, on all their nodes, was training")),
    ...chart(`Goodput: ${shown(all)}`, columns, draw, ["Goodput", "Lost, times nodes"], cells),
  ];
}

function causes(columns, all) {
  const ordered = Object.entries(all.incidents).toSorted(([, one], [, other]) => other - one);
  if (!ordered.length) return h("p", { class: "faint" }, "Nothing has ended a round.");
  const look = (cause) => {
    const at = ordered.findIndex(([name]) => name === cause);
    return at < SHADES ? { "data-kind": "lost", "data-shade": at } : { "data-kind": "idle", "data-shade": 0 };
  };
  const most = Math.max(...columns.map(({ sums }) => total(Object.values(sums.incidents))));
  const draw = ({ from, sums }, frame) => {
    let y = TALL;
    return ordered.map(([cause]) => {
      const count = sums.incidents[cause] ?? 0;
      const height = (TALL * count) / most;
      y -= height;
      const words = `${moment(from)}: ${cause}: ${number(count)}`;
      return count ? svg("rect", { ...frame, ...look(cause), class: "part", y, height }, svg("title", {}, words)) : null;
    });
  };
  const legend = ordered.map(([cause, count]) => [h("span", { class: "swatch", ...look(cause) }), `${cause}: ${number(count)} `]);
  const cells = (sums) => ordered.map(([cause]) => number(sums.incidents[cause] ?? 0));
  return [
    h("p", { class: "legend" }, legend),
    ...chart(`Incidents; most in a column: ${most}`, columns, draw, ordered.map(([cause]) => cause), cells, [[TALL / 2, number(most / 2)]]),
  ];
}

function times(name, columns, all, bounds) {
  const of = (sums) => [0.5, 0.9].map((wanted) => quantile(sums[name], bounds, wanted));
  const [median, late] = of(all);
  const words = TIMES[name][1];
  if (median === null) return h("p", { class: "faint" }, `No restart has been measured: ${words}.`);
  const y = (seconds) => TALL - (TALL * Math.log(Math.max(seconds, SHORTEST_S) / SHORTEST_S)) / Math.log(LONGEST_S / SHORTEST_S);
  const draw = ({ from, sums }, frame, middle) => {
    const [half, most] = of(sums);
    if (half === null) return null;
    const said = `${moment(from)}: median ${span(half)}, 90 % within ${span(most)}`;
    const line = svg("line", { x1: middle, x2: middle, y1: y(half), y2: y(most), class: "most" });
    return svg("g", {}, svg("title", {}, said), line, svg("circle", { cx: middle, cy: y(half), r: 3.5, class: "half" }));
  };
  const cells = (sums) => [number(total(sums[name])), ...of(sums).map((seconds) => (seconds === null ? "–" : span(seconds)))];
  return [
    h("p", {}, h("strong", {}, span(median)), ` in the middle, 90 % within `, h("strong", {}, span(late)), h("span", { class: "faint" }, `: ${words}`)),
    ...chart(`${TIMES[name][0]}: median ${span(median)}`, columns, draw, ["Restarts", "Median", "90 % within"], cells, MARKS_S.map((at) => [y(at), span(at)])),
  ];
}
