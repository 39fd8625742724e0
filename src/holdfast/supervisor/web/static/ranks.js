// A job's ranks: a tile each, with its state, step, time of a step and age of the heartbeat. Of very many a tile for each node,
// and above them the ranks that are not as the others.

import { remember } from "./address.js";
import { h, keyed, place, say, set } from "./dom.js";
import { Grid } from "./grid.js";
import { badge, filterField, mark, nodeLink, paintBadge } from "./parts.js";
import { fleet, now } from "./store.js";
import { many, number, rankLook, ranges, span, WORST_FIRST } from "./words.js";

const FOLDED = 400; // from so many ranks on, a tile is a node
const DIFFERENT = 8; // so many that differ are listed
const FAR_S = 2; // so many times the usual time of a step is slow

const SHOWN = ["rank", "state", "step", "step_s", "beat_age_s", "exitcode", "said", "round"];
const same = (one, other) => one && SHOWN.every((name) => one[name] === other[name]);

// Of its heartbeat: what it was when it was reported, and how long ago that was.
const ageOf = (rank) => (rank.beat_age_s == null ? null : rank.beat_age_s + Math.max(0, now() - (rank.said ?? now())));
const lookAt = (rank) => rankLook(rank, ageOf(rank));

// [{rank, node, …}, …] of a job: of each rank what the newest round says. A node of which nothing new was said costs nothing.
function reader(job) {
  const read = new WeakMap();
  const ofNode = (node) => {
    if (!read.has(node)) {
      const own = node.jobs.filter((one) => one.job === job);
      const told = ({ round, ranks }) =>
        ranks.map((rank) => ({
          ...rank,
          key: `${node.name} ${rank.local_rank}`,
          round,
          node: node.name,
          said: node.reported_at_unix,
        }));
      read.set(node, own.flatMap(told));
    }
    return read.get(node);
  };
  return () => {
    const found = [...fleet.nodes.values()].map(ofNode).filter((ranks) => ranks.length);
    const newest = found.reduce((most, ranks) => Math.max(most, ...ranks.map((rank) => rank.round)), 0);
    return found.map((ranks) => (ranks.every((rank) => rank.round === newest) ? ranks : current(ranks, newest))).flat();
  };
}

const current = (ranks, newest) => ranks.filter((rank) => rank.round === newest);

export function rankGrid(job, query) {
  const seen = { text: query.get("ranks") ?? "" };
  const peek = h("p", { class: "peek" }, "Point at a tile, or go there with the arrow keys.");
  const sums = h("p", { class: "faint" });
  const others = h("ol", { class: "others", "aria-label": "Ranks that differ" });
  const more = h("p", { class: "faint" });
  const tiles = h("div");
  const root = h("div", {}, h("div", { class: "bar" }, sums, filter()), others, more, peek, tiles);
  const ranksOf = reader(job);
  const kinds = { false: oneEach(peek), true: oneForEachNode(peek) };
  let grid = null,
    folded = null,
    due = false,
    turn = false;

  function filter() {
    return filterField(
      "Filter: 7, a node, late",
      (text) => {
        seen.text = text;
        remember({ ranks: text });
        grid?.filter(wanted);
      },
      seen.text,
    );
  }
  const wanted = (item) => !seen.text || (item.ranks ?? [item]).some((rank) => isAsked(rank, seen.text));

  function paintAll() {
    due = false;
    const ranks = ranksOf();
    const fold = ranks.length > FOLDED;
    if (fold !== folded) {
      folded = fold;
      grid = new Grid(kinds[fold]);
      grid.wanted = wanted;
      tiles.replaceChildren(grid.root);
      root.className = fold ? "folded" : "ranks";
    }
    const had = new Map([...grid.cells.values()].map((cell) => [cell.key, cell.item]));
    const items = fold ? byNode(ranks, had) : ranks.map((rank) => (same(had.get(rank.key), rank) ? had.get(rank.key) : rank));
    grid.set(items);
    summarize(ranks);
  }

  function summarize(ranks) {
    const words = new Map();
    for (const rank of ranks) {
      const [, word] = lookAt(rank);
      words.set(word, (words.get(word) ?? 0) + 1);
    }
    const steps = ranks.map((rank) => rank.step).filter((step) => step !== null);
    const [first, last] = steps.reduce(([low, high], step) => [Math.min(low, step), Math.max(high, step)], [Infinity, -Infinity]);
    const range = steps.length ? `; step ${number(first)}${first < last ? ` to ${number(last)}` : ""}` : "";
    const states = [...words].map(([word, count]) => `, ${number(count)} ${word}`).join("");
    say(sums, `${many(ranks.length, "rank")}${states}${range}`);
    const differ = folded ? different(ranks) : [];
    keyed(others, differ.slice(0, DIFFERENT), (rank) => rank.key, otherRow, paintOther);
    say(more, differ.length > DIFFERENT ? `and ${many(differ.length - DIFFERENT, "other rank")} like them or less so` : "");
    more.hidden = differ.length <= DIFFERENT;
    others.hidden = !differ.length;
  }

  // Of few ranks each change is shown at once, of very many all that has changed each other second.
  const update = () => (folded ? (due = true) : paintAll());
  // Ages grow without anybody's saying so.
  function tick() {
    if (folded && (turn = !turn)) return;
    if (folded && due) return paintAll();
    for (const { link, item } of grid?.cells.values() ?? []) grid.paint(link, item);
  }
  return { root, update, tick };
}

function isAsked(rank, text) {
  return String(rank.rank) === text || `${rank.node} ${lookAt(rank)[1]}`.toLowerCase().includes(text);
}

// --- a tile for each rank ------------------------------------------------------------------------------------------------

const oneEach = (peek) => ({
  label: "Ranks",
  keyOf: (rank) => rank.key,
  groupOf: (rank) => rank.node,
  paint,
  peek: (rank) => say(peek, inWords(rank)),
  empty: "No ranks.",
});

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

// --- a tile for each node ------------------------------------------------------------------------------------------------

const oneForEachNode = (peek) => ({
  label: "Ranks",
  names: true,
  keyOf: (item) => item.node,
  groupOf: () => "by node",
  paint: paintNode,
  peek: (item) => say(peek, nodeInWords(item)),
  empty: "No ranks.",
});

function byNode(ranks, had) {
  const found = new Map();
  for (const rank of ranks) found.get(rank.node)?.push(rank) ?? found.set(rank.node, [rank]);
  return [...found].map(([node, own]) => {
    const old = had.get(node);
    return old?.ranks.length === own.length && own.every((rank, at) => rank === old.ranks[at]) ? old : { node, ranks: own };
  });
}

const worst = (ranks) => ranks.map(lookAt).reduce((one, other) => (severity(other[0]) < severity(one[0]) ? other : one));
const severity = (look) => WORST_FIRST.indexOf(look);

function paintNode(link, item) {
  if (!link.firstChild) {
    link.append(mark(""), h("span", { class: "name" }));
    set(link, "href", place("nodes", item.node));
    set(link, "title", item.node);
  }
  const [look, word] = worst(item.ranks);
  const said = `${word} ${item.ranks.length} ${item.ranks[0].rank}`;
  if (link.said === said) return; // of a thousand tiles a few change
  link.said = said;
  set(link, "data-look", look);
  set(link.firstChild, "data-look", look);
  set(link, "aria-label", `${item.node}, ranks ${ranges(item.ranks.map((rank) => rank.rank))}, ${word}`);
}

function nodeInWords({ node, ranks }) {
  const words = new Map();
  for (const rank of ranks) words.set(lookAt(rank)[1], [...(words.get(lookAt(rank)[1]) ?? []), rank.rank]);
  const steps = [...new Set(ranks.map((rank) => rank.step).filter((step) => step !== null))].sort((one, other) => one - other);
  return [
    node,
    ...[...words].map(([word, own]) => `${word}: ${own.length === 1 ? "rank" : "ranks"} ${ranges(own)}`),
    steps.length ? `step ${[...new Set([steps[0], steps[steps.length - 1]])].map(number).join(" to ")}` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

// --- what differs --------------------------------------------------------------------------------------------------------

// The ranks that are not as most are, the worst first: another state, a step behind, a slow step.
function different(ranks) {
  const usual = { word: mode(ranks.map((rank) => lookAt(rank)[1])), step: mode(ranks.map((rank) => rank.step)) };
  const times = ranks
    .map((rank) => rank.step_s)
    .filter((time) => time != null)
    .sort((one, other) => one - other);
  usual.step_s = times[times.length >> 1];
  const found = [];
  for (const rank of ranks) {
    const why = differs(rank, usual);
    if (why || lookAt(rank)[1] !== usual.word) found.push({ ...rank, why });
  }
  return found.sort(
    (one, other) =>
      severity(lookAt(one)[0]) - severity(lookAt(other)[0]) ||
      (one.step ?? Infinity) - (other.step ?? Infinity) ||
      one.rank - other.rank,
  );
}

function differs(rank, usual) {
  const age = ageOf(rank);
  return [
    lookAt(rank)[1] === usual.word || rank.state === "gone" ? "" : age === null ? "no heartbeat" : `last heartbeat ${span(age)} ago`,
    rank.step !== null && rank.step < usual.step - 1
      ? `step ${number(rank.step)}, ${number(usual.step - rank.step)} behind most`
      : "",
    rank.step_s > FAR_S * usual.step_s ? `a step takes ${span(rank.step_s)}, of most ${span(usual.step_s)}` : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

// What is said most often.
function mode(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].reduce((most, one) => (one[1] > most[1] ? one : most), [null, 0])[0];
}

const otherRow = (rank) => h("li", {}, badge(""), " ", h("b", {}, `rank ${rank.rank}`), " on ", nodeLink(rank.node), " ", h("span"));

function paintOther(row, rank) {
  const [look, word] = lookAt(rank);
  paintBadge(row.firstChild, word, look);
  say(row.lastChild, rank.why);
}
