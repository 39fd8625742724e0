// A node: how is it, since when and why, what runs there, what is wrong with its devices, and what can be done about it?

import { button } from "./act.js";
import { h, keyed, say } from "./dom.js";
import { get } from "./live.js";
import { badge, crumbs, deedList, empty, facts, jobLink, paintBadge, paintDeeds, section, table, when } from "./parts.js";
import { fleet, keep, newestDeeds, swapOf } from "./store.js";
import { actWords, moment, NODE_STATES, ranges } from "./words.js";

const HISTORY = 100;

export function open([name]) {
  const [drain, uncordon] = buttons(name);
  const parts = {
    facts: h("div"),
    state: badge(""),
    why: h("p", { class: "lead" }),
    acts: h("div", { class: "row" }, drain.root, uncordon.root),
  };
  const devices = h("tbody"),
    jobs = h("tbody"),
    history = h("ol", { class: "history" });
  const none = {
    devices: empty("No device has had trouble."),
    jobs: empty("Nothing runs here."),
    deeds: empty("Nothing was ever decided about it."),
  };
  const deeds = deedList("Decisions about this node");
  const there = h(
    "div",
    {},
    h(
      "div",
      { class: "two" },
      section("Jobs here", table("Jobs here", ["Job", "State", "Round", "Ranks"], jobs), none.jobs),
      section("Devices", table("Devices", ["Device", "State", "Xid", "Reason", "Since"], devices), none.devices),
    ),
    h("div", { class: "two" }, section("History", history), section("Decisions", deeds, none.deeds)),
  );
  const root = h(
    "div",
    {},
    crumbs(h("a", { href: "#/" }, "Fleet"), "Node"),
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, name, " ", parts.state), parts.why, parts.facts, parts.acts),
    there,
  );

  let older = [];
  function paint() {
    const node = fleet.nodes.get(name);
    there.hidden = parts.state.hidden = parts.acts.hidden = !node;
    if (!node) return say(parts.why, "No node of that name has ever been heard of.");
    paintBadge(parts.state, node.state);
    say(parts.why, node.reason || NODE_STATES[node.state]);
    const swap = swapOf(name);
    parts.facts.replaceChildren(
      facts([
        ["Held against it", node.standing === "fit" ? "nothing" : node.standing],
        ["By", node.by],
        ["Domain", node.domain || "not known"],
        ["Link", node.linked ? "up" : "none"],
        node.reported_at_unix ? ["Last report", when(node.reported_at_unix)] : null,
        node.repair ? ["Repair", repairWords(node.repair)] : null,
        swap ? ["Swap", `${swap.step}${swap.spare ? `: ${swap.spare} takes over` : ""}`] : null,
      ]),
    );
    const held = node.standing !== "fit" && node.standing !== "suspect";
    drain.allow(held && !node.repair ? `it is ${node.standing} already` : "");
    uncordon.allow(node.standing === "fit" && !node.repair ? "nothing is held against it" : "");
    keyed(
      jobs,
      node.jobs,
      (job) => job.job,
      () => h("tr"),
      (row, job) =>
        row.replaceChildren(
          h("th", { scope: "row" }, jobLink(job.job)),
          h("td", {}, job.state),
          h("td", { class: "number" }, String(job.round)),
          h("td", {}, job.ranks.length ? ranges(job.ranks.map((rank) => rank.rank)) : "none"),
        ),
    );
    keyed(
      devices,
      node.devices,
      (device) => device.name,
      () => h("tr"),
      (row, device) =>
        row.replaceChildren(
          h("th", { scope: "row" }, device.name),
          h("td", {}, badge(device.state)),
          h("td", { class: "number" }, device.xid ? String(device.xid) : "–"),
          h("td", {}, device.reason),
          h("td", {}, device.at_unix ? when(device.at_unix) : "–"),
        ),
    );
    none.jobs.hidden = node.jobs.length > 0;
    none.devices.hidden = node.devices.length > 0;
    const before = older.filter((change) => change.at_unix < (node.history[0]?.at_unix ?? Infinity));
    keyed(
      history,
      [...before, ...node.history, ...node.devices.flatMap(ofDevice)]
        .sort((one, other) => one.at_unix - other.at_unix)
        .slice(-HISTORY)
        .reverse(),
      (change) => `${change.at_unix} ${change.device} ${change.state}`,
      (change) => h("li", {}, badge(change.state), " ", change.device, " ", when(change.at_unix), h("p", {}, change.reason)),
      () => {},
    );
    const own = newestDeeds((deed) => deed.node === name);
    paintDeeds(deeds, own);
    none.deeds.hidden = own.length > 0;
  }
  paint();
  get(`/api/nodes/${encodeURIComponent(name)}`).then(
    (story) => {
      older = story.history;
      keep(story.deeds);
      paint();
    },
    () => {},
  ); // what the stream says is there all the same
  return {
    root,
    title: `Node ${name}`,
    update: (changes) => (changes.all || changes.nodes.has(name) || changes.deeds.size ? paint() : null),
  };
}

function repairWords(repair) {
  const waits = repair.waits ? `, waits for ${repair.waits}` : "";
  if (repair.act === "probation") return `on probation until ${moment(repair.until_unix)}${waits}`;
  return `${actWords(repair.act)}${repair.step === repair.act ? "" : ` (${repair.step})`}${waits}`;
}

const ofDevice = (device) => device.history.map((change) => ({ ...change, device: device.name }));

function buttons(name) {
  const path = (verb) => `/api/nodes/${encodeURIComponent(name)}/${verb}`;
  return [
    button("Drain", {
      grave: true,
      path: path("drain"),
      what: `Drain ${name}?`,
      text: "Its jobs exclude it, a spare takes over where one waits, and the scheduler gives it no more work.",
    }),
    button("Uncordon", {
      path: path("uncordon"),
      what: `Use ${name} again?`,
      text: "Nothing is held against it any more, and jobs may use it.",
    }),
  ];
}
