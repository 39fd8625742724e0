// Rounds, attempts, failures and decisions of a job, over time. What is drawn stands below it as a table, too.

import { h, svg } from "./dom.js";
import { commas, nodeLink, table } from "./parts.js";
import { now } from "./store.js";
import { actWords, clock, many, moment, span } from "./words.js";

const TOP = 6,
  TALL = 56,
  BASE = TOP + TALL,
  ATTEMPTS = BASE + 6,
  MARKS = ATTEMPTS + 26,
  AXIS = MARKS + 18,
  HEIGHT = AXIS + 18;

export function timeline(rounds, deeds) {
  if (!rounds.length)
    return h("p", { class: "faint" }, "This host has no record of the job's rounds: its folder is on the hosts of its agents.");
  const begin = rounds[0].began_unix;
  const end = Math.max(...rounds.map((round) => round.ended_unix ?? now()), begin + 1);
  const x = (unix) => (100 * Math.min(Math.max(unix - begin, 0), end - begin)) / (end - begin);
  const label = `${many(rounds.length, "round")} in ${span(end - begin)}, ${many(rounds.filter((round) => round.failure).length, "failure")}`;
  const drawn = svg(
    "svg",
    { class: "timeline", role: "img", "aria-label": label, height: HEIGHT, width: "100%" },
    svg("rect", { class: "down", x: 0, y: TOP, width: "100%", height: TALL, rx: 3 }),
    rounds.map((round) => bar(round, x, Math.max(...rounds.map((one) => one.world_size), 1))),
    attempts(rounds).map((attempt) => attemptBar(attempt, x)),
    rounds.filter((round) => round.failure && round.ended_unix).map((round) => failure(round, x)),
    deeds.filter((deed) => deed.at_unix >= begin).map((deed) => decision(deed, x)),
    [0, 0.25, 0.5, 0.75, 1].map((part) => tick(begin + part * (end - begin), 100 * part, end - begin)),
  );
  return h(
    "div",
    {},
    h("div", { class: "drawn" }, drawn),
    h(
      "p",
      { class: "faint legend" },
      h("span", { class: "swatch", "data-is": "round" }),
      "round, as high as it has ranks ",
      h("span", { class: "swatch", "data-is": "down" }),
      "no ranks ",
      h("span", { class: "sign bad", "aria-hidden": "true" }, "✕"),
      "failure ",
      h("span", { class: "sign", "aria-hidden": "true" }, "◆"),
      "decision",
    ),
    h("details", {}, h("summary", {}, "As a table"), asTable(rounds)),
  );
}

function bar(round, x, most) {
  const from = x(round.began_unix),
    to = x(round.ended_unix ?? now());
  const height = Math.max(6, (TALL * round.world_size) / most);
  const words =
    `Round ${round.number}, attempt ${round.attempt}: ${many(round.world_size, "rank")} on ${round.nodes.join(", ")}, ` +
    `${moment(round.began_unix)}, ${span((round.ended_unix ?? now()) - round.began_unix)}${round.why ? `. ${round.why}` : ""}`;
  const frame = { x: `${from}%`, width: `${Math.max(to - from, 0.15)}%` };
  return svg(
    "g",
    {},
    svg(
      "rect",
      { ...frame, class: round.ended_unix === null ? "round live" : "round", y: BASE - height, height, rx: 3 },
      svg("title", {}, words),
    ),
    to - from > 4
      ? svg(
          "svg",
          { ...frame, y: 0, height: HEIGHT },
          svg(
            "text",
            { x: 7, y: BASE - 8, class: "inside" },
            to - from > 12 ? `round ${round.number} · ${many(round.world_size, "rank")}` : `${round.number}`,
          ),
        )
      : null,
  );
}

// Rounds that follow one another in one attempt are one bar.
function attempts(rounds) {
  const found = [];
  for (const round of rounds) {
    const last = found[found.length - 1];
    if (last && last.attempt === round.attempt) last.to = round.ended_unix;
    else found.push({ attempt: round.attempt, from: round.began_unix, to: round.ended_unix });
  }
  return found;
}

function attemptBar({ attempt, from, to }, x) {
  const left = x(from),
    width = Math.max(x(to ?? now()) - left, 0.15);
  const frame = { x: `${left}%`, width: `${width}%` };
  return svg(
    "g",
    {},
    svg("rect", { ...frame, class: "attempt", y: ATTEMPTS, height: 3, rx: 1.5 }, svg("title", {}, `attempt ${attempt}`)),
    width > 4
      ? svg(
          "svg",
          { ...frame, y: 0, height: HEIGHT },
          svg("text", { x: 1, y: ATTEMPTS + 15 }, width > 12 ? `attempt ${attempt}` : `${attempt}`),
        )
      : null,
  );
}

const failure = (round, x) =>
  svg(
    "text",
    { class: "sign bad", x: `${x(round.ended_unix)}%`, y: TOP + 20, "text-anchor": "middle" },
    "✕",
    svg("title", {}, `${moment(round.ended_unix)}: rank ${round.failure.rank} on ${round.failure.node}: ${round.failure.what}`),
  );

const decision = (deed, x) =>
  svg(
    "text",
    { class: "sign", x: `${x(deed.at_unix)}%`, y: MARKS + 8, "text-anchor": "middle" },
    "◆",
    svg("title", {}, `${moment(deed.at_unix)}: ${actWords(deed.act)}: ${deed.reason}`),
  );

function tick(unix, percent, whole) {
  const anchor = percent === 0 ? "start" : percent === 100 ? "end" : "middle";
  return svg(
    "g",
    { class: percent % 50 ? "tick odd" : "tick" },
    svg("line", { x1: `${percent}%`, x2: `${percent}%`, y1: TOP, y2: AXIS }),
    svg(
      "text",
      { x: `${percent}%`, y: AXIS + 13, "text-anchor": anchor },
      whole > 86400 ? moment(unix).slice(5, 16) : clock(unix),
    ),
  );
}

const asTable = (rounds) =>
  table(
    "Rounds",
    ["Round", "Attempt", "Began", "Lasted", "Ranks", "Nodes", "Ended because", "Lost"],
    h(
      "tbody",
      {},
      rounds
        .toReversed()
        .map((round) =>
          h(
            "tr",
            {},
            h("th", { scope: "row", class: "number" }, String(round.number)),
            h("td", { class: "number" }, String(round.attempt)),
            h("td", {}, moment(round.began_unix)),
            h("td", { class: "number" }, span((round.ended_unix ?? now()) - round.began_unix)),
            h("td", { class: "number" }, String(round.world_size)),
            h("td", {}, commas(round.nodes.map(nodeLink))),
            h("td", {}, round.ended_unix === null ? "it runs" : round.why),
            h("td", { class: "number" }, round.lost_s ? span(round.lost_s) : "–"),
          ),
        ),
    ),
  );
