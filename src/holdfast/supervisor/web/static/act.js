// How does somebody act from here? With a question first, and a reason for the record. Roles are the server's to hold: that
// buttons are off only spares people the refusal.

import { h, say, set } from "./dom.js";
import { post } from "./live.js";
import { fleet } from "./store.js";

const $ = (id) => document.getElementById(id);

// `button("Drain", {grave, what: "Drain node a?", text: what will happen, path})` → {root, allow}
// `allow(why not)`: empty where it may be done.
export function button(label, { what, text, path, grave = false }) {
  const said = h("p", { class: "said", role: "status" });
  const made = h("button", { type: "button", class: grave ? "grave" : null }, label);
  made.addEventListener("click", async () => {
    const reason = await ask(label, what, text, async (given) => say(said, (await post(path, { reason: given })).text));
    if (reason !== null) made.focus();
  });
  function allow(why) {
    const mayNot = fleet.role === "read" ? "your role may look, and not act" : why;
    made.disabled = Boolean(mayNot);
    set(made, "title", mayNot || null);
    set(made, "aria-description", mayNot || null);
  }
  return { root: h("div", { class: "action" }, made, said), allow };
}

// The dialog stays open while it is refused, and says why.
function ask(label, what, text, act) {
  const dialog = $("ask"),
    yes = $("ask-yes"),
    reason = $("ask-reason");
  say($("ask-title"), what);
  say($("ask-text"), text);
  say($("ask-error"), "");
  say(yes, label);
  reason.value = "";
  yes.disabled = false;
  dialog.showModal();
  reason.focus();
  return new Promise((resolve) => {
    const over = new AbortController();
    const close = (value) => {
      over.abort();
      dialog.close();
      resolve(value);
    };
    const { signal } = over;
    dialog.addEventListener("cancel", () => close(null), { signal });
    $("ask-no").addEventListener("click", () => close(null), { signal });
    dialog.querySelector("form").addEventListener(
      "submit",
      async (event) => {
        event.preventDefault();
        yes.disabled = true;
        try {
          await act(reason.value.trim());
          close(reason.value);
        } catch (problem) {
          say($("ask-error"), problem.message);
          yes.disabled = false;
        }
      },
      { signal },
    );
  });
}
