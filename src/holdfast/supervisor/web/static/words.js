// What do states, times and numbers look like in words?

import { now } from "./store.js";

export const NODE_STATES = {
  unfit: "it has been taken out, or its own checks say so",
  lost: "it was not heard for a lease",
  draining: "it is being taken out",
  suspect: "something was seen, and it still works",
  fit: "ranks run there, and nothing is held against it",
  spare: "it waits, and could take over",
};
export const STATES = Object.keys(NODE_STATES); // what needs a look comes first

// How others' states look: a job's, its nodes' and its ranks'. The words are the agents' own: what is not known looks neutral.
const LOOKS = {
  running: "fit",
  succeeded: "spare",
  finished: "spare",
  starting: "draining",
  new: "draining",
  joining: "draining",
  waiting: "unfit",
  stopping: "draining",
  dying: "unfit",
  failed: "unfit",
  stopped: "lost",
  silent: "lost",
  ended: "spare",
};
export const WORST_FIRST = ["unfit", "lost", "suspect", "draining", "none", "spare", "fit"]; // looks
export const lookOf = (state) => (state in NODE_STATES ? state : (LOOKS[state] ?? "none"));

// A rank: [how it looks, its state in a word]. `age`: of its heartbeat, seconds; null where it has none.
const LATE_S = 30,
  SILENT_S = 120;
export function rankLook(rank, age) {
  if (rank.state === "gone" && rank.exitcode === 0) return ["spare", "done"];
  if (rank.state === "gone") return ["unfit", rank.exitcode === null ? "gone" : `exit ${rank.exitcode}`];
  if (rank.state === "running" && age !== null && age >= LATE_S)
    return age >= SILENT_S ? ["unfit", "silent"] : ["suspect", "late"];
  return [lookOf(rank.state), rank.state];
}

const ACTS = {
  none: "watch",
  "restart-workers": "restart workers",
  "restart-job": "restart job",
  swap: "swap node",
  shrink: "shrink job",
  replace: "ask for a node",
  stop: "stop job",
  check: "check node",
  "reset-gpu": "reset GPUs",
  "restart-daemon": "restart daemon",
  reboot: "reboot node",
  probation: "probation",
  report: "report for repair",
};
export const actWords = (act) => ACTS[act] ?? act;
export const ACT_NAMES = Object.keys(ACTS);
export const TROUBLES = ["worker", "hang", "lost", "device", "unfit", "operator", "repair"];

const collator = new Intl.Collator("en", { numeric: true });
export const byName = (one, other) => collator.compare(one, other);

// "3 s", "4 min", "2 h 5 min", "3 d"
export function span(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 0.9995) return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d`;
}

export const ago = (unix) => {
  const age = Math.floor(now() - unix);
  return age < 1 ? "now" : age < 10 ? `${age} s ago` : `${span(age)} ago`;
};
export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");
export const moment = (unix) => `${new Date(unix * 1000).toLocaleDateString("en-CA")} ${clock(unix)}`;
export const number = (value) => Number(value).toLocaleString("en-US");
export const percent = (part) => `${(100 * part).toFixed(1)} %`;
export const many = (count, one, more = `${one}s`) => `${number(count)} ${count === 1 ? one : more}`;

// [0, 1, 2, 5] → "0–2, 5"
export function ranges(numbers) {
  const sorted = [...numbers].sort((one, other) => one - other);
  const runs = [];
  for (const value of sorted) {
    const last = runs[runs.length - 1];
    if (last && value === last[1] + 1) last[1] = value;
    else runs.push([value, value]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}

// Each of these texts without the clauses that one before it has said already.
export function onlyNew(...texts) {
  const said = new Set();
  return texts.map((text) => {
    const clauses = text.split(/(?<=[.;:])\s+/);
    const kept = clauses.filter((clause) => !said.has(bare(clause)));
    for (const clause of clauses) said.add(bare(clause));
    return kept.length === clauses.length ? text : kept.join(" ").replace(/[;:]$/, "");
  });
}

const bare = (clause) => clause.toLowerCase().replace(/[.;:,\s]+$/, "");
