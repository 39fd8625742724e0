// Are we told what happens? The stream of server-sent events, begun again for as long as the page is open.
//
// Read by fetch, not by EventSource: that hides the beats by which a connection that is only silent is told from one that is
// dead, and does not say why it was refused.

import { setClock } from "./store.js";

const SILENCE_MS = 25_000; // beats come each 10 s
const FIRST_WAIT_MS = 300,
  LAST_WAIT_MS = 10_000;

// `said(event, value)`; `link(state, text)`: open · lost · login. Never returns.
export async function live(said, link) {
  let wait = FIRST_WAIT_MS;
  for (;;) {
    try {
      await follow((event, value) => {
        wait = FIRST_WAIT_MS;
        said(event, value);
      }, link);
      link("lost", "the stream ended");
    } catch (problem) {
      if (problem.status === 401) link("login", "");
      else link("lost", problem.message);
    }
    await pause(wait * (0.7 + 0.6 * Math.random())); // not all pages at once
    wait = Math.min(2 * wait, LAST_WAIT_MS);
  }
}

async function follow(said, link) {
  const ended = new AbortController();
  let watch = 0;
  const alive = () => {
    clearTimeout(watch);
    watch = setTimeout(() => ended.abort(new Error("nothing was heard for 25 s")), SILENCE_MS);
  };
  alive();
  try {
    const answer = await fetch("/api/live", {
      signal: ended.signal,
      cache: "no-store",
      headers: { Accept: "text/event-stream" },
    });
    if (!answer.ok) throw Object.assign(new Error(await refusal(answer)), { status: answer.status });
    setClock(answer.headers.get("Date"));
    const words = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "",
      silent = "";
    for (;;) {
      const { value, done } = await words.read();
      if (done) return;
      alive();
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const { event, text } = parsed(block);
        const value = text ? JSON.parse(text) : null;
        silent = event === "silent" ? value.error : value ? "" : silent; // the supervisor's, though its web server lives
        if (value && !silent) said(event, value);
        link(silent ? "lost" : "open", silent);
      }
    }
  } finally {
    clearTimeout(watch);
    ended.abort();
  }
}

function parsed(block) {
  let event = "message";
  const lines = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) lines.push(line.slice(5).replace(/^ /, ""));
  }
  return { event, text: lines.join("\n") };
}

// Back on the network, or on the screen again: no need to wait longer.
function pause(ms) {
  return new Promise((resume) => {
    const go = () => {
      clearTimeout(timer);
      removeEventListener("online", go);
      document.removeEventListener("visibilitychange", go);
      resume();
    };
    const timer = setTimeout(go, ms);
    addEventListener("online", go);
    document.addEventListener("visibilitychange", go);
  });
}

// The sentence of an answer that is no success.
export async function refusal(answer) {
  try {
    const { error, hint } = await answer.json();
    return hint ? `${error} (${hint})` : error;
  } catch {
    return `the supervisor's web server answered ${answer.status}`;
  }
}

export async function get(path, signal) {
  const answer = await fetch(path, { signal, cache: "no-store" });
  if (!answer.ok) throw Object.assign(new Error(await refusal(answer)), { status: answer.status });
  return answer.json();
}

export async function post(path, value) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(value),
  });
  if (!answer.ok) throw Object.assign(new Error(await refusal(answer)), { status: answer.status });
  return answer.json();
}
