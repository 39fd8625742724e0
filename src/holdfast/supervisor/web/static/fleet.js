// Fleet: which nodes are there, how are they, what runs on them, and what was decided last?

import { remember } from "./address.js";
import { h, keyed, place, say, set } from "./dom.js";
import { Grid } from "./grid.js";
import { badge, choice, deedList, empty, filterField, jobLink, mark, paintBadge, paintDeeds, section, table } from "./parts.js";
import { fleet, newestDeeds } from "./store.js";
import { byName, many, NODE_STATES, number, span, STATES } from "./words.js";

const NEWEST = 6;
const GROUPS = {
  domain: (node) => node.domain || "no domain",
  state: (node) => node.state,
  job: (node) => node.jobs[0]?.job || "no job",
};

export function open(_, query) {
  const given = query.get("by");
  const seen = {
    text: query.get("text") ?? "",
    states: new Set((query.get("state") ?? "").split(",").filter((state) => STATES.includes(state))),
    by: Object.hasOwn(GROUPS, given ?? "") ? given : recall(),
  };
  const parts = {
    chips: new Map(),
    strip: h("div", { class: "strip", "aria-hidden": "true" }),
    lead: h("p", { class: "lead" }),
  };
  const peek = h("p", { class: "peek", id: "peek" }, "Point at a node, or go there with the arrow keys.");
  const grid = new Grid({
    label: "Nodes",
    keyOf: (node) => node.name,
    names: true,
    groupOf: GROUPS[seen.by],
    paint: paintNode,
    peek: (node) => paintPeek(peek, node),
    empty: "No node has been heard of yet.",
  });
  function refilter() {
    remember({ text: seen.text, state: [...seen.states].join(","), by: seen.by === recall() ? "" : seen.by });
    grid.filter((node) => wanted(node, seen));
  }
  const filter = filterField(
    "Filter by name, reason, job",
    (text) => {
      seen.text = text;
      refilter();
    },
    seen.text,
  );
  const by = choice(
    "Group nodes by",
    Object.keys(GROUPS).map((name) => [name, `by ${name}`]),
    (name) => {
      localStorage.setItem("group", name);
      seen.by = name;
      refilter();
      grid.regroup(GROUPS[name]);
    },
    seen.by,
  );
  const chips = h(
    "div",
    { class: "chips", role: "group", "aria-label": "Show only nodes that are" },
    STATES.map((state) => {
      const count = h("b", {}, "0");
      const chip = h(
        "button",
        { type: "button", class: "chip", "aria-pressed": String(seen.states.has(state)), "data-look": state, title: NODE_STATES[state] },
        mark(state),
        `${state} `,
        count,
      );
      chip.addEventListener("click", () => {
        if (!seen.states.delete(state)) seen.states.add(state);
        set(chip, "aria-pressed", seen.states.has(state));
        refilter();
      });
      parts.chips.set(state, { chip, count, bar: parts.strip.appendChild(h("span", { "data-look": state })) });
      return chip;
    }),
  );
  const jobs = h("tbody");
  const noJobs = empty("No job has been heard of.");
  const deeds = deedList("Newest decisions");
  const noDeeds = empty("Nothing has had to be decided.");
  const root = h(
    "div",
    { class: "fleet" },
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Fleet"), parts.lead),
    h(
      "section",
      { class: "card nodes", "aria-label": "Nodes" },
      h("div", { class: "bar" }, h("h2", {}, "Nodes"), filter, by),
      parts.strip,
      chips,
      peek,
      grid.root,
    ),
    h(
      "div",
      { class: "two" },
      section("Jobs", table("Jobs", ["Job", "State", "Round", "Attempt", "Nodes", "Ranks", "Spares"], jobs), noJobs),
      section("Newest decisions", deeds, noDeeds, h("p", {}, h("a", { href: "#/decisions" }, "All decisions"))),
    ),
  );

  function update(changes) {
    if (changes.all) grid.set([...fleet.nodes.values()]);
    else {
      const names = [...changes.nodes];
      grid.change(
        names.map((name) => fleet.nodes.get(name)).filter(Boolean),
        names.filter((name) => !fleet.nodes.has(name)),
      );
    }
    if (changes.all || changes.nodes.size) counts(parts);
    if (changes.all || changes.jobs.size) {
      keyed(jobs, [...fleet.jobs.values()].sort(byEnd), (job) => job.name, jobRow, paintJob);
      noJobs.hidden = fleet.jobs.size > 0;
    }
    if (changes.all || changes.deeds.size) {
      paintDeeds(deeds, newestDeeds().slice(0, NEWEST));
      noDeeds.hidden = fleet.deeds.size > 0;
    }
  }
  grid.wanted = (node) => wanted(node, seen);
  update({ all: true });
  return { root, title: "Fleet", update };
}

function recall() {
  const kept = localStorage.getItem("group");
  return kept in GROUPS ? kept : "domain";
}

function wanted(node, { text, states }) {
  if (states.size && !states.has(node.state)) return false;
  return (
    !text ||
    `${node.name} ${node.domain} ${node.reason} ${node.jobs.map((job) => job.job).join(" ")}`.toLowerCase().includes(text)
  );
}

const stepOf = (node) => Math.max(-1, ...node.jobs.flatMap((job) => job.ranks.map((rank) => rank.step ?? -1)));
const sickDevices = (node) => node.devices.filter((device) => device.state !== "fit");

function inWords(node) {
  const step = stepOf(node);
  return [
    node.reason,
    node.jobs.map((job) => `${job.job}, round ${job.round}`).join("; "),
    step >= 0 ? `step ${number(step)}` : "",
    sickDevices(node).length ? many(sickDevices(node).length, "device is not fit", "devices are not fit") : "",
    node.linked ? "" : "no link",
  ]
    .filter(Boolean)
    .join(" · ");
}

function paintNode(link, node) {
  if (!link.firstChild) {
    link.append(mark(""), h("span", { class: "name" }, node.name));
    set(link, "href", place("nodes", node.name));
    set(link, "title", node.name);
  }
  set(link, "data-look", node.state);
  set(link.firstChild, "data-look", node.state);
  set(link, "aria-label", [node.name, node.state, node.reason].filter(Boolean).join(", "));
}

function paintPeek(peek, node) {
  peek.replaceChildren(badge(node.state), " ", h("b", {}, node.name), " ", inWords(node));
}

function counts({ chips, lead }) {
  const by = Object.fromEntries(STATES.map((state) => [state, 0]));
  for (const node of fleet.nodes.values()) by[node.state] = (by[node.state] ?? 0) + 1;
  for (const [state, { count, bar, chip }] of chips) {
    say(count, number(by[state]));
    bar.style.flexGrow = by[state];
    chip.classList.toggle("none", !by[state]);
  }
  const sick = by.unfit + by.lost + by.draining + by.suspect;
  const running = [...fleet.jobs.values()].filter((job) => !job.outcome).length;
  say(
    lead,
    `${many(fleet.nodes.size, "node")}, ${sick ? `${number(sick)} of which ${sick === 1 ? "needs" : "need"} a look` : "all well"}; ` +
      `${many(running, "job runs", "jobs run")}; policy ${fleet.about?.policy ?? "?"}` +
      (Number.isFinite(fleet.about?.replacement_s) ? `; another node comes within ${span(fleet.about.replacement_s)}` : ""),
  );
}

const byEnd = (one, other) => Boolean(one.outcome) - Boolean(other.outcome) || byName(one.name, other.name);

const jobRow = (job) =>
  h(
    "tr",
    {},
    h("th", { scope: "row" }, jobLink(job.name)),
    h("td", {}, badge("")),
    [1, 2, 3, 4, 5].map(() => h("td", { class: "number" })),
  );

function paintJob(row, job) {
  const cells = row.children;
  paintBadge(cells[1].firstChild, job.outcome || job.state);
  for (const [at, value] of [job.round, job.attempt, job.nodes.length, job.ranks, job.spares.length].entries())
    say(cells[at + 2], number(value));
}
