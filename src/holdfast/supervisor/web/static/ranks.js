// A job's ranks, a tile each: state, step, time of a step, age of the heartbeat. In a row: those of one node.

import { h, place, say, set } from "./dom.js";
import { Grid } from "./grid.js";
import { filterField, mark } from "./parts.js";
import { fleet, now } from "./store.js";
import { many, number, rankLook, span } from "./words.js";

// [{rank, node, …}, …] of a job: of each rank what the newest round says.
function ranksOf(job) {
  const found = new Map();
  for (const node of fleet.nodes.values()) {
    for (const { job: name, round, ranks } of node.jobs) {
      if (name !== job) continue;
      for (const rank of ranks) {
        const key = `${node.name} ${rank.local_rank}`;
        found.set(key, { ...rank, key, round, node: node.name, said: node.reported_at_unix });
      }
    }
  }
  const newest = Math.max(0, ...[...found.values()].map((rank) => rank.round));
  return [...found.values()].filter((rank) => rank.round === newest);
}

// Of its heartbeat: what it was when it was reported, and how long ago that was.
const ageOf = (rank) => (rank.beat_age_s == null ? null : rank.beat_age_s + Math.max(0, now() - (rank.said ?? now())));

export function rankGrid(job) {
  const peek = h("p", { class: "peek" }, "Point at a rank, or go there with the arrow keys.");
  const sums = h("p", { class: "faint" });
  const grid = new Grid({
    label: "Ranks",
    keyOf: (rank) => rank.key,
    groupOf: (rank) => rank.node,
    paint,
    peek: (rank) => say(peek, inWords(rank)),
    empty: "No ranks.",
  });
  const filter = filterField("Filter: 7, a node, late", (text) =>
    grid.filter((rank) => {
      const all = `${rank.node} ${rankLook(rank, ageOf(rank))[1]}`.toLowerCase();
      return !text || String(rank.rank) === text || all.includes(text);
    }),
  );

  function update() {
    const ranks = ranksOf(job);
    const had = new Map([...grid.cells.values()].map((cell) => [cell.key, cell.item]));
    grid.set(ranks.map((rank) => (same(had.get(rank.key), rank) ? had.get(rank.key) : rank)));
    const by = new Map();
    for (const rank of ranks) by.set(rankLook(rank, ageOf(rank))[1], (by.get(rankLook(rank, ageOf(rank))[1]) ?? 0) + 1);
    const steps = ranks.map((rank) => rank.step).filter((step) => step !== null);
    const range = steps.length
      ? `; step ${number(Math.min(...steps))}${Math.min(...steps) < Math.max(...steps) ? ` to ${number(Math.max(...steps))}` : ""}`
      : "";
    say(sums, `${many(ranks.length, "rank")}${[...by].map(([word, count]) => `, ${count} ${word}`).join("")}${range}`);
  }
  // Ages grow without anybody's saying so.
  const tick = () => {
    for (const { link, item } of grid.cells.values()) paint(link, item);
  };
  return { root: h("div", { class: "ranks" }, h("div", { class: "bar" }, sums, filter), peek, grid.root), update, tick };
}

const SHOWN = ["rank", "state", "step", "step_s", "beat_age_s", "exitcode", "said", "round"];
const same = (one, other) => one && SHOWN.every((name) => one[name] === other[name]);

function paint(link, rank) {
  if (!link.firstChild) {
    link.append(mark(""), h("span", { class: "name" }), h("span", { class: "more" }), h("span", { class: "age" }));
    set(link, "href", place("nodes", rank.node));
  }
  const age = ageOf(rank);
  const [look, word] = rankLook(rank, age);
  set(link, "data-look", look);
  set(link.children[0], "data-look", look);
  say(link.children[1], String(rank.rank));
  say(
    link.children[2],
    rank.step === null ? word : `${number(rank.step)}${rank.step_s == null ? "" : ` · ${span(rank.step_s)}`}`,
  );
  say(
    link.children[3],
    age === null
      ? rank.step === null
        ? ""
        : word
      : `${word === "running" ? "beat" : word} ${span(Math.floor(age) || Math.min(age, 0.9))}`,
  );
  set(link, "aria-label", `rank ${rank.rank}, ${word}${rank.step === null ? "" : `, step ${rank.step}`}`);
}

function inWords(rank) {
  const age = ageOf(rank);
  return [
    `rank ${rank.rank} (local ${rank.local_rank}) on ${rank.node}`,
    rankLook(rank, age)[1],
    rank.pid > 0 ? `pid ${rank.pid}` : "",
    rank.step === null ? "tells of no steps" : `step ${number(rank.step)}`,
    rank.step_s == null ? "" : `the last one took ${span(rank.step_s)}`,
    age === null ? "no heartbeat" : `last heartbeat ${span(age)} ago`,
  ]
    .filter(Boolean)
    .join(" · ");
}
