// What do several pages show alike? A state, a moment, a decision, a list of facts.

import { h, keyed, place, say, set } from "./dom.js";
import { actWords, ago, lookOf, many, moment, onlyNew } from "./words.js";

export const mark = (look) => h("span", { class: "mark", "data-look": look, "aria-hidden": "true" });

export function badge(state) {
  const made = h("span", { class: "badge" }, mark(""), h("span", {}));
  paintBadge(made, state);
  return made;
}

export function paintBadge(made, state, look = lookOf(state)) {
  set(made, "data-look", look);
  set(made.firstChild, "data-look", look);
  say(made.lastChild, state);
}

// Kept true by `tickTimes`.
export const when = (unix) =>
  h("time", { datetime: new Date(unix * 1000).toISOString(), title: moment(unix), "data-at": unix }, ago(unix));

export function tickTimes(root) {
  for (const time of root.querySelectorAll("time[data-at]")) say(time, ago(Number(time.dataset.at)));
}

export const nodeLink = (name) => (name ? h("a", { href: place("nodes", name) }, name) : null);
export const jobLink = (name) => (name ? h("a", { href: place("jobs", name) }, name) : null);
export const commas = (elements) => elements.flatMap((element, at) => (at ? [", ", element] : [element]));

// [[name, element or text], …]
export const facts = (rows) =>
  h(
    "dl",
    { class: "facts" },
    rows.filter((row) => row && row[1] !== "").map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );

export function section(title, ...children) {
  const heading = h("h2", {}, title);
  return h("section", { "aria-label": title, class: "card" }, heading, ...children);
}

export const table = (label, heads, rows) =>
  h(
    "div",
    { class: "wide", tabindex: "0", role: "group", "aria-label": label },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((head) => h("th", { scope: "col" }, head)),
        ),
      ),
      rows,
    ),
  );

export const empty = (text) => h("p", { class: "faint" }, text);

// The newest first. `deeds(list, values)` again paints only what has changed.
export const deedList = (label) => h("ol", { class: "deeds", "aria-label": label });

export function paintDeeds(list, deeds) {
  keyed(
    list,
    deeds,
    (deed) => deed.id,
    () => h("li", { class: "deed" }),
    paintDeed,
  );
}

function paintDeed(item, deed) {
  const about = [nodeLink(deed.node), jobLink(deed.job)].filter(Boolean);
  const steps = h(
    "ol",
    {},
    deed.done.map((step) => h("li", {}, step)),
  );
  const head = [h("strong", { class: "act", "data-act": deed.act }, actWords(deed.act)), h("span", {}, commas(about))];
  set(item, "data-trouble", deed.trouble);
  const [seen, reason, outcome] = onlyNew(deed.seen, deed.reason, deed.outcome);
  item.replaceChildren(
    h("p", { class: "deed-head" }, head, h("span", { class: "tag" }, deed.trouble), when(deed.at_unix)),
    h("p", {}, seen),
    h("p", { class: "faint" }, reason, deed.policy && ` (policy ${deed.policy})`),
    outcome || !deed.outcome
      ? h("p", { class: outcome ? "outcome" : "faint" }, outcome ? `→ ${outcome}` : "→ nothing is known yet of what came of it")
      : "",
  );
  if (deed.done.length)
    item.append(h("details", {}, h("summary", {}, `What was done (${many(deed.done.length, "step")})`), steps));
}

// Something that stands on a page of its own, asked of the API.
export const failed = (problem) => h("p", { class: "problem", role: "alert" }, problem.message);

export const crumbs = (...trail) =>
  h(
    "nav",
    { "aria-label": "Where this is", class: "crumbs" },
    trail.flatMap((one, at) => (at ? [h("span", { "aria-hidden": "true" }, "›"), one] : [one])),
  );

// A field by which a page is filtered: `/` goes there.
export function filterField(label, changed, value = "") {
  const field = h("input", {
    type: "search",
    class: "filter",
    placeholder: label,
    "aria-label": label,
    "aria-keyshortcuts": "/",
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => changed(field.value.trim().toLowerCase()),
    onkeydown: (event) => {
      if (event.key !== "Escape" || !field.value) return;
      field.value = "";
      changed("");
    },
  });
  field.value = value;
  return field;
}

export function choice(label, options, changed, value = "") {
  const field = h(
    "select",
    { "aria-label": label, onchange: () => changed(field.value) },
    options.map(([name, words]) => h("option", { value: name }, words)),
  );
  field.value = value;
  return field;
}
