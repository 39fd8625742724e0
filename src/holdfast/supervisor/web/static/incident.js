// An incident: why did it fail, in one sentence; what speaks for it, where ranks stood, and what they had written?

import { h } from "./dom.js";
import { get } from "./live.js";
import { crumbs, facts, failed, jobLink, nodeLink, section, when } from "./parts.js";
import { many, ranges } from "./words.js";

const NO_LOG = "No log of a rank that failed is here: it was not kept (--tee 3 keeps it), or is on another host.";
const OPEN = 3; // so many groups and logs are open at first

export function open([job, , id]) {
  const body = h("div", {}, h("p", { class: "faint" }, "reading…"));
  const title = h("h1", { tabindex: "-1" }, "Incident");
  const root = h("div", {}, crumbs(h("a", { href: "#/" }, "Fleet"), jobLink(job), "Incident"), body);
  body.prepend(title);
  const closed = new AbortController();
  get(`/api/jobs/${encodeURIComponent(job)}/incidents/${encodeURIComponent(id)}`, closed.signal).then(
    (incident) => body.replaceChildren(...shown(incident, title, job)),
    (problem) => closed.signal.aborted || body.replaceChildren(title, failed(problem)),
  );
  return { root, title: `Incident in ${job}`, update: () => {}, close: () => closed.abort() };
}

function shown(incident, title, job) {
  title.textContent = incident.cause || "No cause was found";
  return [
    h(
      "div",
      { class: "head" },
      h("p", { class: "over" }, "Incident"),
      title,
      facts([
        ["When", when(incident.at_unix)],
        ["Node", incident.node ? nodeLink(incident.node) : ""],
        ["Rank", incident.rank < 0 ? "" : String(incident.rank)],
        ["Class", incident.kind],
        ["Confidence", `${Math.round(100 * incident.confidence)} %`],
        ["What was done", incident.decision || ""],
      ]),
    ),
    incident.errors.length
      ? section(
          "Errors",
          incident.errors.map((error, at) =>
            h(
              "details",
              { open: at < OPEN, class: "group-of" },
              h("summary", {}, h("b", {}, `rank ${error.rank}`), " ", error.what),
              error.traceback.length
                ? h("pre", { tabindex: "0" }, error.traceback.join("\n"))
                : h("p", { class: "faint" }, "It could write no traceback."),
            ),
          ),
        )
      : null,
    section(
      "Evidence",
      incident.evidence.length
        ? h(
            "ul",
            { class: "evidence" },
            incident.evidence.map((line) => h("li", {}, line)),
          )
        : h("p", { class: "faint" }, "none"),
    ),
    incident.groups.length
      ? section(
          "Stacks",
          h("p", { class: "faint" }, `${many(incident.groups.length, "group")} of ranks that stood at the same place`),
          incident.groups.map((group, at) =>
            h(
              "details",
              { open: at < OPEN, class: "group-of" },
              h(
                "summary",
                {},
                h("b", {}, group.where),
                h("span", { class: "tag" }, `${many(group.ranks.length, "rank")}: ${ranges(group.ranks)}`),
              ),
              h("pre", { tabindex: "0" }, group.stack.join("\n")),
            ),
          ),
        )
      : null,
    incident.logs.length
      ? section(
          "Logs",
          incident.logs.map((log, at) =>
            h(
              "details",
              { open: at < OPEN, class: "group-of" },
              h("summary", {}, h("b", {}, `rank ${log.rank}`), " ", h("code", {}, log.path)),
              h("pre", { tabindex: "0" }, log.lines.join("\n")),
              h("p", {}, h("a", { href: logOf(job, incident.id, log.rank) }, `The log of rank ${log.rank}`)),
            ),
          ),
        )
      : section("Logs", h("p", { class: "faint" }, NO_LOG)),
  ].filter(Boolean);
}

const logOf = (job, id, rank) => `/api/jobs/${encodeURIComponent(job)}/incidents/${encodeURIComponent(id)}/logs/${rank}`;
