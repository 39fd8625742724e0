// Which page is shown, and what keeps it true? The stream feeds the store, the store tells the page what has changed.

import * as decisions from "./decisions.js";
import { h, say, set } from "./dom.js";
import * as fleetPage from "./fleet.js";
import * as history from "./history.js";
import * as incident from "./incident.js";
import * as job from "./job.js";
import { get, live, post, refusal } from "./live.js";
import * as node from "./node.js";
import { badge, tickTimes } from "./parts.js";
import { change, fleet, listen, replace } from "./store.js";
import { clock, many, NODE_STATES, span } from "./words.js";

const NEWS_MS = 4000; // a screen reader is told of changes at most so often
const MOST_NEWS = 3;

const $ = (id) => document.getElementById(id);
const main = $("main");
let page = null,
  link = { state: "waiting", since: Date.now(), why: "" };

// --- pages ---------------------------------------------------------------------------------------------------------------

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try {
    parts = path.split("/").map(decodeURIComponent);
  } catch {
    parts = ["?"];
  }
  const [first, ...rest] = parts;
  const found =
    first === ""
      ? fleetPage
      : first === "decisions"
        ? decisions
        : first === "history"
          ? history
          : first === "nodes"
            ? node
            : first === "jobs" && rest[1] === "incidents"
              ? incident
              : first === "jobs"
                ? job
                : null;
  return {
    open: () => (found ? found.open(rest, new URLSearchParams(query)) : missing()),
    name: found === fleetPage ? "fleet" : first,
  };
}

const missing = () => ({
  root: h(
    "div",
    { class: "head" },
    h("h1", { tabindex: "-1" }, "There is no such page"),
    h("a", { href: "#/" }, "To the fleet"),
  ),
  title: "No such page",
  update() {},
});

function go(moved) {
  page?.close?.();
  if (!fleet.about) {
    page = null;
    if (main.querySelector(".login")) return; // what is asked for is shown after it
    return main.replaceChildren(h("p", { class: "faint", id: "waiting" }, "Waiting for the supervisor…"));
  }
  const { open, name } = route();
  page = open();
  main.replaceChildren(page.root);
  document.title = `${page.title} – Holdfast`;
  for (const anchor of document.querySelectorAll("nav [data-page]"))
    set(anchor, "aria-current", anchor.dataset.page === name ? "page" : null);
  if (moved) {
    scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

// --- what is heard -------------------------------------------------------------------------------------------------------

const states = new Map();
let news = [],
  said = 0;

listen((changes) => {
  if (changes.all && !page) go(false);
  else page?.update(changes);
  for (const name of changes.all ? fleet.nodes.keys() : changes.nodes) {
    const state = fleet.nodes.get(name)?.state ?? "gone";
    if (!changes.all && states.get(name) !== state) news.push(`${name} is ${state}`);
    states.set(name, state);
  }
});

function heard(event, value) {
  if (event === "change") change(value);
  else if (event === "fleet") {
    replace(value);
    get("/api/role").then(
      (permission) => {
        mayDo(permission.role);
        $("logout").hidden = !permission.logged_in;
      },
      () => {},
    ); // who may not act is refused in any case
  }
}

function mayDo(role) {
  if (fleet.role === role) return;
  fleet.role = role;
  page?.update({ all: true, nodes: new Set(), jobs: new Set(), deeds: new Set() });
}

function tellNews() {
  if (!news.length || Date.now() - said < NEWS_MS) return;
  say(
    $("news"),
    news.length > MOST_NEWS
      ? `${many(news.length, "node")} changed: ${news.slice(0, MOST_NEWS).join(", ")} and others`
      : news.join(", "),
  );
  [news, said] = [[], Date.now()];
}

function linked(state, why = "") {
  if (state === "open") link = { state, since: Date.now(), why };
  else if (state !== link.state) link = { state, since: link.since, why };
  if (state === "login" && !main.querySelector(".login")) {
    page?.close?.();
    page = fleet.about = null;
    $("logout").hidden = true;
    main.replaceChildren($("login").content.cloneNode(true));
    main.querySelector("form").addEventListener("submit", login);
    $("token").focus();
  }
  showLink();
}

async function login(event) {
  event.preventDefault();
  const form = event.target,
    problem = form.querySelector("[role=alert]");
  say(problem, ""); // the same again is told again
  try {
    const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    if (answer.ok) return location.reload();
    say(problem, await refusal(answer));
  } catch {
    say(problem, "the supervisor's web server does not answer");
  }
  form.elements.token.select();
}

const tabs = new BroadcastChannel("logout"); // who logs out is to be seen in no other tab either
tabs.addEventListener("message", () => location.reload());

async function logout() {
  try {
    await post("/logout", {});
  } catch {
    return; // that it does not answer is shown already
  }
  tabs.postMessage("");
  location.reload();
}
$("logout").addEventListener("click", logout);

function showLink() {
  const sign = $("link"),
    stale = $("stale");
  set(sign, "data-state", link.state);
  set(document.documentElement, "data-link", link.state);
  const lost = link.state === "lost";
  stale.hidden = !lost || !fleet.about;
  say(
    sign,
    { open: "live", lost: fleet.about ? "no connection" : "no supervisor", login: "log in", waiting: "connecting" }[link.state],
  );
  if (lost) {
    // said to a screen reader once, not each second
    say(
      stale.firstElementChild,
      `No connection since ${clock(link.since / 1000)}: what is shown is as it was then. ${link.why}`,
    );
    say(stale.lastElementChild, ` (${span((Date.now() - link.since) / 1000)})`);
  }
  if (lost && $("waiting")) say($("waiting"), `Waiting for the supervisor… ${link.why}`);
}

// --- keys ----------------------------------------------------------------------------------------------------------------

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  if (event.key === "?") $("help").showModal();
  else if (event.key === "/" && main.querySelector(".filter")) {
    event.preventDefault();
    main.querySelector(".filter").select();
    main.querySelector(".filter").focus();
  }
});
$("help-button").addEventListener("click", () => $("help").showModal());
$("signs").append(...Object.entries(NODE_STATES).map(([state, words]) => h("li", {}, badge(state), " ", words)));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

addEventListener("hashchange", () => go(true));
setInterval(() => {
  tickTimes(main);
  page?.tick?.();
  tellNews();
  if (link.state === "lost") showLink();
}, 1000);
go(false);
live(heard, linked);
