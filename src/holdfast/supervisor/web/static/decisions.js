// Decisions: what was seen, by which policy, what was done, and what came of it; the newest first.

import { remember } from "./address.js";
import { h, say } from "./dom.js";
import { get } from "./live.js";
import { choice, deedList, failed, filterField, paintDeeds } from "./parts.js";
import { fleet, keep, newestDeeds } from "./store.js";
import { ACT_NAMES, actWords, many, TROUBLES } from "./words.js";

const AT_ONCE = 200;
const FILTERS = ["text", "act", "trouble", "node", "job"]; // in the page's address

export function open(_, query) {
  const asked = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
  const seen = { ...asked, rows: AT_ONCE };
  const list = deedList("Decisions");
  const count = h("p", { class: "faint", role: "status" });
  const more = h("button", { type: "button", onclick: () => again({ rows: seen.rows + AT_ONCE }) }, "Show older");
  const problem = h("div");
  const node = h("input", {
    type: "search",
    "aria-label": "Node",
    placeholder: "Node",
    list: "known-nodes",
    oninput: (event) => again({ node: event.target.value.trim() }),
  });
  const job = h("input", {
    type: "search",
    "aria-label": "Job",
    placeholder: "Job",
    list: "known-jobs",
    oninput: (event) => again({ job: event.target.value.trim() }),
  });
  node.value = seen.node;
  job.value = seen.job;
  const root = h(
    "div",
    {},
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Decisions"), count),
    h(
      "section",
      { class: "card", "aria-label": "Decisions" },
      h(
        "div",
        { class: "bar" },
        filterField("Filter by any word", (text) => again({ text }), seen.text),
        node,
        job,
        choice("What was done", [["", "any act"], ...ACT_NAMES.map((act) => [act, actWords(act)])], (act) => again({ act }), seen.act),
        choice(
          "What it was about",
          [["", "any trouble"], ...TROUBLES.map((trouble) => [trouble, trouble])],
          (trouble) => again({ trouble }),
          seen.trouble,
        ),
      ),
      h(
        "datalist",
        { id: "known-nodes" },
        [...fleet.nodes.keys()].map((name) => h("option", { value: name })),
      ),
      h(
        "datalist",
        { id: "known-jobs" },
        [...fleet.jobs.keys()].map((name) => h("option", { value: name })),
      ),
      problem,
      list,
      more,
    ),
  );

  function again(changed) {
    Object.assign(seen, changed);
    remember(Object.fromEntries(FILTERS.map((name) => [name, seen[name]])));
    const deeds = newestDeeds((deed) => matches(deed, seen));
    paintDeeds(list, deeds.slice(0, seen.rows));
    more.hidden = deeds.length <= seen.rows;
    say(count, deeds.length ? many(deeds.length, "decision") : "No decision is like that.");
  }
  again({});
  const about = new URLSearchParams(Object.entries({ node: seen.node, job: seen.job }).filter(([, value]) => value));
  get(`/api/deeds?${about}`).then(keep, (refused) => problem.replaceChildren(failed(refused)));
  return { root, title: "Decisions", update: (changes) => (changes.all || changes.deeds.size ? again({}) : null) };
}

function matches(deed, { text, act, trouble, node, job }) {
  if ((act && deed.act !== act) || (trouble && deed.trouble !== trouble)) return false;
  if ((node && !deed.node.includes(node)) || (job && !deed.job.includes(job))) return false;
  return (
    !text ||
    [deed.node, deed.job, deed.seen, deed.reason, deed.outcome, actWords(deed.act), ...deed.done]
      .join(" ")
      .toLowerCase()
      .includes(text)
  );
}
