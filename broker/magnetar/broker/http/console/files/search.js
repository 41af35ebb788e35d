// Finds namespaces and topics by a part of their names: suggestions for the box in the bar, and a view with
// all that was found. Names are learned from the same lists as everybody reads, a bounded number of them,
// and kept for a minute.

import { each, get, path, wordsOf } from "./api.js";
import { h, say, visible } from "./dom.js";
import { many } from "./format.js";
import { fullName, parseTopic, topicView, view, wholeOf } from "./names.js";
import { link, table } from "./table.js";

const KEPT_MS = 60_000;
const NAMESPACES_MAX = 200;
const TOPICS_MAX = 20_000;
const AT_ONCE = 4;
const SUGGESTED = 12;

let known = null; // {at, names: [{text, href}], isCut}
let learning = null;

/** All names that this user may see: {names: [{text, href}], isCut}. `isCut`: there are more. */
async function names() {
  if (known && Date.now() - known.at < KEPT_MS) return known;
  learning ||= learn().finally(() => { learning = null; });
  return learning;
}

/** Forget the names: somebody else looks. */
export function forgetNames() {
  known = null;
}

async function learn() {
  const tenants = await get(path("admin", "v2", "tenants"));
  const lists = await each(tenants, AT_ONCE, (tenant) =>
    allowed(() => get(path("admin", "v2", "namespaces", tenant))));
  const namespaces = lists.flat();
  const found = namespaces.map((name) => ({ text: name, href: view("namespace", ...name.split("/")) }));
  let isCut = namespaces.length > NAMESPACES_MAX;
  const topics = new Map();
  await each(namespaces.slice(0, NAMESPACES_MAX), AT_ONCE, async (name) => {
    if (topics.size >= TOPICS_MAX) {
      isCut = true;
      return;
    }
    for (const full of await allowed(() => get(`${path("admin", "v2", "namespaces", ...name.split("/"))}/topics?mode=ALL`))) {
      const topic = parseTopic(full);
      if (!topic) continue;
      const one = wholeOf(topic) || topic; // Partitions are found in their topic.
      topics.set(fullName(one), { text: textOf(one), href: topicView(one) });
    }
  });
  known = { at: Date.now(), names: [...found, ...topics.values()], isCut };
  return known;
}

const textOf = (topic) => (topic.domain === "persistent" ? `${topic.tenant}/${topic.namespace}/${topic.name}` : fullName(topic));

/** What this user may not see is not found. */
async function allowed(work) {
  try {
    return await work();
  } catch (error) {
    if (error.status === 403 || error.status === 404) return [];
    throw error;
  }
}

/** Those that contain every word, names that begin with it or end in it first. */
export function matching(all, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const rank = (name) => {
    const last = name.split("/").at(-1);
    return last === words[0] ? 0 : last.startsWith(words[0]) ? 1 : 2;
  };
  return all.map((one) => [one.text.toLowerCase(), one])
    .filter(([name]) => words.every((word) => name.includes(word)))
    .sort(([one], [other]) => rank(one) - rank(other) || one.length - other.length || (one < other ? -1 : 1))
    .map(([, one]) => one);
}

/** Have a box suggest names while somebody types. */
export function suggest(input) {
  const list = h("datalist", { id: "suggestions" });
  input.setAttribute("list", list.id);
  input.after(list);
  let last = "";
  input.addEventListener("input", async () => {
    const text = input.value.trim();
    last = text;
    if (!text) {
      list.replaceChildren();
      return;
    }
    try {
      const { names: all } = await names();
      if (text === last) list.replaceChildren(...matching(all, text).slice(0, SUGGESTED).map((one) => h("option", { value: one.text })));
    } catch {
      list.replaceChildren(); // Who may not list tenants types names in full.
    }
  });
}

/** The view of what was found. */
export function showSearch({ frame, parts, signal }) {
  const [text = ""] = parts;
  const note = h("p", { class: "told", role: "status" }, "Searching.");
  const list = table({
    label: "Found",
    key: (row) => row.href,
    empty: "No namespace and no topic has a name with these words.",
    columns: [{ title: "Name", node: (row) => link(row.href, row.text), value: (row) => row.text }],
  });
  visible(list.node, false);
  frame({ title: `Search: ${text}`, content: [note, list.node] });
  names().then(({ names: all, isCut }) => {
    if (signal.aborted) return;
    const found = matching(all, text);
    if (found.length === 1) {
      location.replace(found[0].href);
      return;
    }
    visible(list.node, true);
    list.update(found);
    say(note, `${many(found.length, "name")} found.${isCut ? ` Only the topics of ${NAMESPACES_MAX} namespaces were looked at.` : ""}`);
  }, (error) => {
    if (!signal.aborted) say(note, `${wordsOf(error)} Give the whole name: tenant/namespace or tenant/namespace/topic.`);
  });
}
