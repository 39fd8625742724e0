// A job: its ranks now, its rounds and attempts over time, where time went, what failed, what was decided.

import { button } from "./act.js";
import { h, keyed, place, say } from "./dom.js";
import { goodputBar } from "./goodput.js";
import { get } from "./live.js";
import { pattern, shared, short } from "./names.js";
import {
  badge,
  commas,
  crumbs,
  deedList,
  empty,
  facts,
  failed,
  nodeLink,
  paintBadge,
  paintDeeds,
  section,
  when,
} from "./parts.js";
import { rankGrid } from "./ranks.js";
import { fleet, keep, newestDeeds } from "./store.js";
import { timeline } from "./timeline.js";
import { many, number } from "./words.js";

const AGAIN_MS = 2000; // at most so often the record is read again; it grows with what happens
const SLOWLY_MS = 10_000;

export function open([name], query) {
  const ranks = rankGrid(name, query);
  const acts = buttons(name);
  const parts = {
    state: badge(""),
    lead: h("p", { class: "lead" }),
    facts: h("div"),
    acts: h(
      "div",
      { class: "row" },
      acts.map((act) => act.root),
    ),
    problem: h("div"),
  };
  const drawn = h("div"),
    spent = h("div"),
    incidents = h("ol", { class: "incidents" }),
    deeds = deedList("Decisions about this job");
  const noIncidents = empty("No failure is on record here."),
    noDeeds = empty("Nothing has had to be decided.");
  const there = h(
    "div",
    {},
    section("Ranks", ranks.root),
    section("Rounds and attempts", drawn),
    h("div", { class: "two" }, section("Where time went", spent), section("Incidents", incidents, noIncidents)),
    section("Decisions", deeds, noDeeds),
  );
  const root = h(
    "div",
    {},
    crumbs(h("a", { href: "#/" }, "Fleet"), "Job"),
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, name, " ", parts.state), parts.lead, parts.facts, parts.acts),
    parts.problem,
    there,
  );

  let record = null;
  function paint() {
    const job = fleet.jobs.get(name);
    there.hidden = parts.state.hidden = parts.acts.hidden = !job;
    if (!job) return say(parts.lead, "No job of that name is known.");
    paintBadge(parts.state, job.outcome || job.state);
    say(
      parts.lead,
      `Round ${job.round}, attempt ${job.attempt}, on ${many(job.nodes.length, "node")}` +
        `${job.spares.length ? `, ${many(job.spares.length, "spare")}` : ""}`,
    );
    parts.facts.replaceChildren(
      facts([
        job.waits ? ["Waits", job.waits] : null,
        job.is_open ? ["Unauthenticated", "whoever reaches it and knows its name can join it: give its nodes --token-file"] : null,
        ["Nodes", listed(job.nodes)],
        ["Spares", listed(job.spares)],
        ["Needs at least", many(job.least, "node")],
        ["Runs", number(job.lives.length)],
        job.lives.length ? ["This run since", when(job.lives[job.lives.length - 1].at_unix)] : null,
      ]),
    );
    for (const act of acts) act.allow(job.outcome ? "it has ended" : "");
    ranks.update();
    const own = newestDeeds((deed) => deed.job === name);
    paintDeeds(deeds, own);
    noDeeds.hidden = own.length > 0;
  }
  const draw = () =>
    record &&
    drawn.replaceChildren(
      timeline(
        record.rounds,
        newestDeeds((deed) => deed.job === name),
      ),
    );

  const closed = new AbortController();
  let asked = -Infinity,
    asking = false;
  async function read() {
    if (asking || closed.signal.aborted) return;
    [asked, asking] = [performance.now(), true];
    try {
      record = await get(`/api/jobs/${encodeURIComponent(name)}`, closed.signal);
      keep(record.deeds);
      const opened = drawn.querySelector("details")?.open;
      draw();
      if (opened) drawn.querySelector("details").open = true;
      spent.replaceChildren(goodputBar(record.goodput));
      keyed(
        incidents,
        record.incidents.toSorted((one, other) => other.at_unix - one.at_unix),
        (one) => one.id,
        () => h("li"),
        (item, one) =>
          item.replaceChildren(
            h("a", { href: place("jobs", name, "incidents", one.id) }, one.cause || "no cause was found"),
            h(
              "p",
              { class: "faint" },
              one.rank < 0 ? "" : `rank ${one.rank} `,
              one.node ? ["on ", nodeLink(one.node), " · "] : "",
              when(one.at_unix),
            ),
          ),
      );
      noIncidents.hidden = record.incidents.length > 0;
      parts.problem.replaceChildren();
    } catch (problem) {
      if (!closed.signal.aborted && problem.status !== 404) parts.problem.replaceChildren(failed(problem));
    }
    asking = false;
  }
  let due = true;
  function tick() {
    ranks.tick();
    const age = performance.now() - asked;
    if ((due && age > AGAIN_MS) || (!fleet.jobs.get(name)?.outcome && age > SLOWLY_MS)) {
      due = false;
      read();
    }
  }
  paint();
  tick();
  return {
    root,
    title: `Job ${name}`,
    tick,
    close: () => closed.abort(),
    update(changes) {
      const about = changes.jobs.has(name) || [...changes.deeds].some((id) => fleet.deeds.get(id)?.job === name);
      if (changes.all || about) due = true;
      if (changes.all || about) paint();
      else if ([...changes.nodes].some((node) => fleet.nodes.get(node)?.jobs.some((one) => one.job === name) ?? true))
        ranks.update();
    },
  };
}

const MOST = 8;
function listed(names) {
  if (!names.length) return "";
  const alike = shared(names);
  const some = names.slice(0, MOST).map((name) => h("a", { href: place("nodes", name), title: name }, short(name, alike)));
  const rest = names.length > MOST ? ` and ${number(names.length - MOST)} more` : "";
  return h("span", {}, pattern(alike) && `${pattern(alike)}: `, commas(some), rest);
}

function buttons(name) {
  const path = (verb) => `/api/jobs/${encodeURIComponent(name)}/${verb}`;
  return [
    button("Restart", {
      path: path("restart"),
      what: `Restart all ranks of ${name}?`,
      text: "All ranks are stopped and started again on the same nodes.",
    }),
    button("Stop", {
      path: path("stop"),
      grave: true,
      what: `Stop ${name}?`,
      text: "All ranks are stopped, and the job ends.",
    }),
  ];
}
