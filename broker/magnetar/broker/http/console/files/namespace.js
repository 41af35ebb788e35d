// The topics of a namespace: found by name, sorted, a page at a time. One request brings a row of every topic
// that is in use; what that does not have, topics at rest and numbers of partitions, is asked for where it is
// in sight.

import { each, get, isAtRest, json, path, topicPath, wordsOf } from "./api.js";
import { tell } from "./dialogs.js";
import { field, h, identity, say, section, visible } from "./dom.js";
import { bytes, count, many, rate } from "./format.js";
import { fullName, parseTopic, topicView, view, wholeOf } from "./names.js";
import { showPermissions, showPolicies } from "./policies.js";
import { poll } from "./polling.js";
import { scalableView } from "./scalable.js";
import { link, state, table } from "./table.js";
import { stalled } from "./reasons.js";

const PAGE = 25;
const STATS_EVERY_MS = 4000;
const NAMES_EVERY_MS = 15_000;
const AT_ONCE = 4;
const AT_REST_EVERY_MS = 30_000;

const TABS = [["", "Topics"], ["policies", "Policies"], ["permissions", "Permissions"]];

export function showNamespace({ frame, parts, signal }) {
  const [tenant, namespace, tab = ""] = parts;
  path("admin", "v2", "namespaces", tenant, namespace); // Refuses names that cannot be asked about.
  const tabs = h("nav", { class: "tabs", "aria-label": "Of this namespace" }, TABS.map(([key, text]) =>
    h("a", { href: view("namespace", tenant, namespace, ...(key ? [key] : [])), "aria-current": key === tab ? "page" : null }, text)));
  const content = h("div", {});
  frame({
    title: `${tenant}/${namespace}`,
    crumbs: [{ text: tenant, href: view("tenants") }, { text: namespace, href: view("namespace", tenant, namespace) }],
    content: [tabs, content],
  });
  const show = { policies: showPolicies, permissions: showPermissions }[tab] || showTopics;
  show({ tenant, namespace, content, signal });
}

function showTopics({ tenant, namespace, content, signal }) {
  const where = path("admin", "v2", "namespaces", tenant, namespace);
  let names = [];
  let wholes = new Set();
  let page = 0;
  const stats = new Map();
  const asked = new Map(); // when a topic at rest was last asked for
  let isRefused = false;

  const search = h("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: () => turn(0) });
  const list = table({
    label: `Topics of ${tenant}/${namespace}`,
    key: (row) => row.full,
    empty: "No topic of this name. A topic appears when a client publishes or subscribes to it, or by the form below.",
    columns: [
      { title: "Topic", node: (row) => named(row), value: (row) => row.topic.name },
      { title: "Partitions", number: true, text: (row) => (row.isWhole ? count(of(row).partitions) : "–"), value: (row) => of(row).partitions },
      { title: "In", number: true, text: (row) => rate(of(row).in), value: (row) => of(row).in },
      { title: "Out", number: true, text: (row) => rate(of(row).out), value: (row) => of(row).out },
      { title: "Backlog", number: true, text: (row) => count(of(row).backlog), value: (row) => of(row).backlog },
      { title: "Stored", number: true, text: (row) => bytes(of(row).stored), value: (row) => of(row).stored },
      { title: "Producers", number: true, text: (row) => count(of(row).producers), value: (row) => of(row).producers },
      { title: "Subscriptions", number: true, text: (row) => count(of(row).subscriptions), value: (row) => of(row).subscriptions },
      { title: "Flow", draw: (row, cell) => state(cell, flowOf(of(row))), value: (row) => flowOf(of(row))[1] },
    ],
    onsort: () => turn(0),
  });
  const stuck = h("input", { type: "checkbox", id: identity("stuck"), onchange: () => turn(0) });
  const total = h("p", { class: "told", role: "status" });
  const position = h("span", { role: "status" });
  const back = h("button", { type: "button", onclick: () => turn(page - 1) }, "Back");
  const next = h("button", { type: "button", onclick: () => turn(page + 1) }, "Next");
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const partitions = h("input", { type: "number", min: 0, max: 1000, value: "0" });
  const form = h("form", { class: "controls", onsubmit: create },
    field("Name", name), field("Partitions (0: none)", partitions),
    h("button", { class: "primary" }, "Create"));
  const scalable = h("ul", { class: "inline" });
  const scalables = section("Scalable topics", scalable);
  scalables.hidden = true;
  content.replaceChildren(
      h("div", { class: "controls" }, field("Find a topic", search),
        h("p", { class: "check" }, stuck, h("label", { for: stuck.id }, "Only what needs a person")),
        h("div", { class: "pager" }, back, position, next)),
      list.node,
      total,
      scalables,
      section("Create a topic", form));

  const of = (row) => stats.get(row.full) || {};
  const shown = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = names.filter((row) => words.every((word) => row.full.toLowerCase().includes(word)));
    return list.sorted(stuck.checked ? found.filter((row) => of(row).stalled?.length) : found);
  };
  const inSight = () => shown().slice(page * PAGE, (page + 1) * PAGE);

  function turn(to) {
    page = to;
    update();
    lookAtStats();
  }

  function update() {
    const rows = shown();
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    page = Math.min(Math.max(0, page), pages - 1);
    say(position, rows.length ? `${count(page * PAGE + 1)} to ${count(Math.min(rows.length, (page + 1) * PAGE))} of ${count(rows.length)}` : "none");
    back.disabled = page === 0;
    next.disabled = page >= pages - 1;
    visible(back.parentElement, rows.length > PAGE || Boolean(search.value) || stuck.checked);
    list.update(rows.slice(page * PAGE, (page + 1) * PAGE));
    say(total, totalOf(names.map(of)));
  }

  async function create(event) {
    event.preventDefault();
    const topic = { domain: "persistent", tenant, namespace, name: name.value.trim() };
    const wanted = Number(partitions.value);
    if (topic.name.includes("/")) {
      tell(`A topic name has no "/": that parts tenant, namespace and topic.`, true);
      return;
    }
    try {
      if (wanted > 0) await json("PUT", topicPath(topic, "partitions"), { body: wanted });
      else await json("PUT", topicPath(topic), { body: {} });
      tell(`${topic.name} is there.`);
      name.value = "";
      lookAtNames();
    } catch (error) {
      tell(`${topic.name} was not created. ${wordsOf(error)}`, true);
    }
  }

  /** Ask for all topics at once; returns the names of those in use. */
  async function lookAtAll() {
    let found;
    try {
      found = await get(path("magnetar", "v1", "namespaces", tenant, namespace, "topics"), { signal });
    } catch (error) {
      if (error.status !== 403) throw error;
      isRefused = true; // Who may not see all of them may see one and another.
      return new Set();
    }
    const rows = new Map();
    for (const row of found.topics) {
      const topic = parseTopic(row.topic);
      const whole = topic && wholeOf(topic);
      const full = whole && wholes.has(fullName(whole)) ? fullName(whole) : row.topic;
      rows.set(full, [...(rows.get(full) || []), row]);
    }
    for (const row of names)
      if (rows.has(row.full)) stats.set(row.full, { ...summaryOf(rows.get(row.full)), partitions: of(row).partitions });
      else if (of(row).in !== undefined && !found.leftOut) for (const kept of [stats, asked]) kept.delete(row.full); // at rest by now
    return new Set(rows.keys());
  }

  function tellScalable(found) {
    visible(scalables, found.length > 0);
    const text = found.join("\n");
    if (scalable.dataset.shown === text) return;
    scalable.dataset.shown = text;
    scalable.replaceChildren(...found.map((full) => {
      const topic = parseTopic(full.replace(/^topic:/, "persistent:"));
      return h("li", {}, topic ? link(scalableView(tenant, namespace, topic.name), topic.name) : full);
    }));
  }

  const lookAtNames = poll(signal, NAMES_EVERY_MS, async () => {
    const lists = await Promise.all([
      get(`${where}/topics?mode=ALL`, { signal }),
      get(path("admin", "v2", "persistent", tenant, namespace, "partitioned"), { signal }),
      get(path("admin", "v2", "non-persistent", tenant, namespace, "partitioned"), { signal }),
    ]);
    names = rowsOf(lists[0], [...lists[1], ...lists[2]]);
    wholes = new Set([...lists[1], ...lists[2]]);
    tellScalable(await get(path("admin", "v2", "scalable", tenant, namespace), { signal }).catch((error) => {
      if (![403, 404, 503].includes(error.status)) throw error;
      return []; // They are switched off, or not for this user.
    }));
    const known = new Set(names.map((row) => row.full));
    for (const kept of [stats, asked]) for (const full of kept.keys()) if (!known.has(full)) kept.delete(full);
    update();
    lookAtStats();
  });

  const lookAtStats = poll(signal, STATS_EVERY_MS, async () => {
    const inUse = isRefused ? new Set() : await lookAtAll();
    const now = Date.now();
    const isDue = (row) => isRefused || (row.isWhole && of(row).partitions === undefined)
      || !(inUse.has(row.full) || now - asked.get(row.full) < AT_REST_EVERY_MS);
    await each(inSight().filter(isDue), AT_ONCE, async (row) => {
      asked.set(row.full, now);
      try {
        stats.set(row.full, summary(await get(statsPath(row), { signal })));
      } catch (error) {
        if (signal.aborted || error.status === 0 || error.status === 401) throw error;
        stats.set(row.full, { error: wordsOf(error) });
      }
    });
    update();
  });
}

/** The row of a topic, out of one request for the whole namespace; of its partitions, if it has some. */
function summaryOf(rows) {
  const sum = (what) => rows.reduce((all, row) => all + row[what], 0);
  return {
    in: sum("msgRateIn"),
    out: sum("msgRateOut"),
    backlog: sum("msgBacklog"),
    stored: sum("storageSize"),
    producers: Math.max(...rows.map((row) => row.producers)),
    subscriptions: Math.max(...rows.map((row) => row.subscriptions)),
    stalled: rows.flatMap((row) => row.troubles.map((each) => ({ name: each.subscription, text: each.text }))),
  };
}

/** All topics of a namespace in a sentence. */
function totalOf(found) {
  const known = found.filter((each) => each.in !== undefined);
  const sum = (what) => known.reduce((all, each) => all + (each[what] || 0), 0);
  const troubled = known.filter((each) => each.stalled?.length).length;
  return `${many(found.length, "topic")}, ${count(known.length)} in use: ${rate(sum("in"))} in, ${rate(sum("out"))} out, a backlog of ${many(sum("backlog"), "entry", "entries")}. ${troubled ? `${many(troubled, "topic needs", "topics need")} a person.` : "None needs a person."}`;
}

const statsPath = (row) =>
  row.isWhole ? `${topicPath(row.topic, "partitioned-stats")}?perPartition=true&onlyLoaded=true` : `${topicPath(row.topic, "stats")}?onlyLoaded=true`;

/** A row per topic: partitions are in the row of their topic. */
export function rowsOf(all, wholes) {
  const known = new Set(wholes);
  const rows = wholes.map((full) => ({ full, topic: parseTopic(full), isWhole: true }));
  for (const full of all) {
    const topic = parseTopic(full);
    if (!topic) continue;
    const whole = wholeOf(topic);
    if (whole && known.has(fullName(whole))) continue;
    rows.push({ full, topic, isWhole: false });
  }
  return rows.sort((one, other) => (one.full < other.full ? -1 : 1));
}

function summary(found) {
  if (isAtRest(found)) {
    const resting = Object.values(found.atRest?.subscriptions || {});
    return {
      isAtRest: true,
      partitions: found.metadata?.partitions,
      backlog: found.atRest && resting.reduce((sum, each) => sum + each.msgBacklog, 0),
      stored: found.atRest?.storageSize,
      subscriptions: found.atRest && resting.length,
    };
  }
  const subscriptions = Object.values(found.subscriptions || {});
  return {
    in: found.msgRateIn,
    out: found.msgRateOut,
    backlog: subscriptions.reduce((sum, each) => sum + Math.max(0, each.msgBacklog), 0),
    stored: found.storageSize,
    producers: (found.publishers || []).length,
    subscriptions: subscriptions.length,
    partitions: found.metadata?.partitions,
    stalled: stalled(found),
  };
}

function flowOf(known) {
  if (known.error) return ["bad", known.error];
  if (known.isAtRest) return ["", "at rest: nobody uses it"];
  if (known.in === undefined) return ["", "…"];
  if (known.stalled.length) return ["warn", `${known.stalled[0].name}: ${known.stalled[0].text}`];
  if (known.in > 0 || known.out > 0) return ["ok", "flows"];
  return ["", known.backlog ? "backlog, being delivered" : "quiet"];
}

function named(row) {
  const text = row.topic.domain === "persistent" ? row.topic.name : `${row.topic.name} (keeps nothing)`;
  return link(topicView(row.topic), text);
}
