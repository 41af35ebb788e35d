// The console of a Magnetar broker: one page, a view per address behind the #. This file knows which
// view is for which address, and what stands around them.

import { onLate, onUnknown, token, wordsOf } from "./api.js";
import { showCluster } from "./cluster.js";
import { askToken, tell } from "./dialogs.js";
import { h, say, visible } from "./dom.js";
import { parseTopic, topicView, view } from "./names.js";
import { onTrouble, pause } from "./polling.js";
import { showNamespace } from "./namespace.js";
import { showSubscription } from "./subscription.js";
import { showTenants } from "./tenants.js";
import { showTopic } from "./topic.js";

const VIEWS = {
  "": { show: showCluster, nav: "cluster" },
  tenants: { show: showTenants, nav: "tenants" },
  namespace: { show: showNamespace, nav: "tenants" },
  topic: { show: showTopic, nav: "tenants" },
  subscription: { show: showSubscription, nav: "tenants" },
};

const main = document.getElementById("main");
const trouble = document.getElementById("trouble");
let current = null;
let isFirst = true;

/** The frame of a view: the way here, its heading, a place for its actions, its content. */
function frame({ title, crumbs = [], actions = [], content = [] }) {
  const heading = h("h1", { tabindex: "-1" }, title);
  const way = crumbs.length
    ? h("nav", { "aria-label": "Where you are", class: "crumbs" },
        h("ol", {}, crumbs.map(({ text, href }, index) =>
          h("li", {}, h("a", { href, "aria-current": index === crumbs.length - 1 ? "page" : null }, text)))))
    : null;
  main.replaceChildren(...[way,
    h("div", { class: "head top" }, heading, h("div", { class: "actions" }, actions)),
    ...[content].flat()].filter(Boolean));
  document.title = `${title} – Magnetar`;
  // Whoever reads by keyboard or by ear is taken to what is new.
  if (!isFirst) heading.focus();
  isFirst = false;
  window.scrollTo(0, 0);
}

function show() {
  current?.abort();
  current = new AbortController();
  visible(trouble, false);
  let parts;
  try {
    parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    parts = ["?"];
  }
  const [name, ...rest] = parts;
  const found = VIEWS[name];
  for (const each of document.querySelectorAll("[data-nav]")) {
    if (each.dataset.nav === found?.nav) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  try {
    if (!found) throw new Error("there is no such view");
    found.show({ frame, parts: rest, signal: current.signal });
  } catch (error) {
    frame({ title: "Nothing to show", content: h("p", { class: "empty" }, wordsOf(error), " ",
      h("a", { href: "#/" }, "Back to the cluster")) });
  }
}

window.addEventListener("hashchange", (event) => {
  if (new URL(event.newURL).hash === "#main") return;
  show();
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

document.getElementById("go").addEventListener("submit", (event) => {
  event.preventDefault();
  const input = document.getElementById("go-to");
  const text = input.value.trim();
  const topic = parseTopic(text);
  const namespace = /^([^/]+)\/([^/]+)$/.exec(text);
  if (topic) location.hash = topicView(topic);
  else if (namespace) location.hash = view("namespace", namespace[1], namespace[2]);
  else if (text) tell(`${text} is neither tenant/namespace nor tenant/namespace/topic.`, true);
  if (topic || namespace) input.value = "";
});

const live = document.getElementById("live");
live.addEventListener("click", () => {
  const isLive = live.getAttribute("aria-pressed") !== "true";
  live.setAttribute("aria-pressed", String(isLive));
  say(live, isLive ? "Live" : "Paused");
  pause(!isLive);
});

onTrouble.add((error, waitMs) => {
  visible(trouble, Boolean(error));
  if (error) say(trouble, `${wordsOf(error).replace(/[.]?$/, ".")} Trying again in ${Math.round(waitMs / 1000)} s.`);
});

onLate.add((seconds) => {
  visible(trouble, true);
  say(trouble, `The broker has not answered for ${seconds} s: what is shown is old. Waiting.`);
});

const credentials = document.getElementById("credentials");

async function changeToken(why) {
  const given = await askToken(token.get(), why);
  if (given === null) return;
  token.set(given);
  isDeclined = false;
  told();
  show();
}

function told() {
  say(credentials, token.get() ? "Token set" : "Token");
}

let isDeclined = false;
onUnknown.add((error) => {
  if (isDeclined) return;
  isDeclined = true; // Who says no once is not asked again and again; the button is there.
  changeToken(error.words);
});
credentials.addEventListener("click", () => changeToken(""));

told();
show();
