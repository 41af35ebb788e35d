// What is asked and what is told: confirmations before anything that destroys, the token, outcomes.
// Dialogs are the browser's own: they keep the focus, and Escape means no.

import { wordsOf } from "./api.js";
import { field, h, identity } from "./dom.js";

const NOTICES_MAX = 4;

/** Tell how something went. Errors stay until they are closed. */
export function tell(text, isError = false) {
  const log = document.getElementById("notices");
  const notice = h("div", { class: isError ? "notice error" : "notice" }, h("p", {}, text),
    h("button", { type: "button", "aria-label": "Close", onclick: () => notice.remove() }, "×"));
  log.append(notice);
  while (log.children.length > NOTICES_MAX) log.firstElementChild.remove();
  if (!isError) setTimeout(() => notice.remove(), 8000);
}

function open(title, content, buttons) {
  const heading = h("h2", { id: identity("dialog") }, title);
  const form = h("form", { method: "dialog" }, heading, content, h("div", { class: "buttons" }, buttons));
  const dialog = h("dialog", { "aria-labelledby": heading.id }, form);
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, form };
}

/**
 * Ask before something is done. typed: what must be typed first, for what cannot be undone. options:
 * nodes with controls. Returns whether to do it.
 */
export function confirm({ title, text, action, typed = "", options = [], isDanger = true }) {
  return new Promise((answer) => {
    const proof = h("input", { autocomplete: "off", spellcheck: "false" });
    const yes = h("button", { value: "yes", class: isDanger ? "danger" : "primary", disabled: Boolean(typed) }, action);
    const no = h("button", { value: "no", formnovalidate: true, autofocus: !typed }, "Cancel");
    const content = [h("p", {}, text), ...options];
    if (typed) {
      content.push(field(`Type ${typed} to go on`, proof));
      proof.addEventListener("input", () => { yes.disabled = proof.value !== typed; });
    }
    const { dialog } = open(title, content, [no, yes]);
    if (typed) proof.focus();
    dialog.addEventListener("close", () => {
      dialog.remove();
      answer(dialog.returnValue === "yes" && (!typed || proof.value === typed));
    });
  });
}

let isAsking = false;

/** Ask for a token; resolves to it, "" for none, or null if it stays as it is. */
export function askToken(current, why) {
  if (isAsking) return Promise.resolve(null);
  isAsking = true;
  return new Promise((answer) => {
    const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", value: current });
    const content = [
      h("p", { role: why ? "alert" : null }, why || "Requests are sent with this token: the broker decides by its role."),
      field("Token", input, "A JSON Web Token. It is kept in this tab until the tab is closed."),
    ];
    const buttons = [
      h("button", { value: "no", formnovalidate: true }, "Cancel"),
      current ? h("button", { value: "forget", formnovalidate: true }, "Forget it") : null,
      h("button", { value: "yes", class: "primary" }, "Use it"),
    ];
    const { dialog, form } = open("Who are you?", content, buttons);
    // Enter means the last button, not the first.
    form.addEventListener("submit", (event) => {
      if (event.submitter?.value === "no" && document.activeElement === input) {
        event.preventDefault();
        dialog.close("yes");
      }
    });
    input.focus();
    dialog.addEventListener("close", () => {
      isAsking = false;
      dialog.remove();
      if (dialog.returnValue === "yes") answer(input.value.trim().replace(/^Bearer\s+/i, ""));
      else answer(dialog.returnValue === "forget" ? "" : null);
    });
  });
}

/** A button that asks, does, and tells. `question` is for `confirm`; null: it asks nothing. `name`: what a
 * reader of the screen hears, where the label alone does not say what it is about. */
export function actionButton(label, { question = null, work, done, after = () => {}, isDanger = false, name = null, title = null }) {
  const button = h("button", { type: "button", class: isDanger ? "danger" : null, "aria-label": name, title, onclick: click }, label);

  async function click() {
    if (question && !(await confirm(question()))) return;
    button.disabled = true;
    try {
      const outcome = await work();
      tell(typeof done === "function" ? done(outcome) : done);
      after();
    } catch (error) {
      tell(`${label}: ${wordsOf(error)}`, true);
    } finally {
      button.disabled = false;
    }
  }

  return button;
}
