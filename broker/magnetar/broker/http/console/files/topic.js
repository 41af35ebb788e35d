// One topic: what flows, why nothing flows, and what can be done with it. Its other tabs have files
// of their own.

import { ask, get, isAtRest, json, restingStats, topicPath, wordsOf } from "./api.js";
import { actionButton, tell } from "./dialogs.js";
import { disconnectButton } from "./disconnecting.js";
import { field, h, identity, say, section, visible } from "./dom.js";
import { amount, backlogOf, bytes, count, many, rate, throughput } from "./format.js";
import { showMessages } from "./messages.js";
import { crumbsOf, fullName, namespaceView, parseTopic, topicView, view } from "./names.js";
import { plot, remember, spark } from "./plot.js";
import { showTopicPolicies } from "./policies.js";
import { poll } from "./polling.js";
import { showPublish } from "./publish.js";
import { hoarding, isStalled, publishTrouble, stalled } from "./reasons.js";
import { showSchemas } from "./schemas.js";
import { showStorage } from "./storage.js";
import { link, state, table } from "./table.js";
import { duration } from "./units.js";

const EVERY_MS = 3000;
const TABS = [
  ["", "Overview"],
  ["messages", "Messages"],
  ["publish", "Publish"],
  ["schema", "Schema"],
  ["policies", "Policies"],
  ["storage", "Storage"],
];

export function showTopic({ frame, parts, signal }) {
  const [domain, tenant, namespace, name, tab = ""] = parts;
  const topic = { domain, tenant, namespace, name };
  topicPath(topic); // Refuses names that cannot be asked about.
  const content = h("div", {}, h("p", { class: "quiet" }, "Loading."));
  const tabs = h("nav", { class: "tabs", "aria-label": "Of this topic" }, TABS.map(([key, text]) =>
    h("a", { href: key ? topicView(topic, key) : topicView(topic), "aria-current": key === tab ? "page" : null }, text)));
  frame({ title: name, crumbs: crumbsOf(topic), content: [tabs, content] });
  start({ topic, tab, content, signal });
}

async function start({ topic, tab, content, signal }) {
  let partitions = 0;
  try {
    const metadata = await get(`${topicPath(topic, "partitions")}?checkAllowAutoCreation=false`, { signal });
    partitions = metadata.partitions;
  } catch (error) {
    if (signal.aborted) return;
    // 404: a topic without partitions that does not exist; the view says so with its own words.
    if (error.status !== 404) {
      content.replaceChildren(h("p", { class: "refused", role: "alert" }, wordsOf(error)));
      return;
    }
  }
  const shown = { topic, partitions, content, signal };
  if (tab === "publish") showPublish(shown);
  else if (tab === "schema") showSchemas(shown);
  else if (tab === "policies") showTopicPolicies(shown);
  else if (partitions && !tab) showPartitioned(shown);
  else {
    const show = { messages: showMessages, storage: showStorage }[tab] || showPlain;
    if (partitions) show(shown);
    else whenLoaded(shown, () => show(shown));
  }
}

/** Show a topic once it is loaded. Nobody has it loaded by looking at it: that may be its end. */
export function whenLoaded({ topic, content, signal }, show) {
  const waiting = ending(signal);
  const look = poll(waiting.signal, EVERY_MS, async () => {
    let stats;
    try {
      stats = await restingStats(topic, { signal });
    } catch (error) {
      if (error.status === 404 || error.status === 403) absent(topic, content, error, () => look());
      throw error;
    }
    content.querySelector(".absent")?.remove();
    if (!isAtRest(stats)) {
      waiting.abort();
      show();
    } else {
      if (!content.querySelector(".at-rest")) content.replaceChildren(notice, kept, section("Actions", actions(topic, 0, () => look())));
      tellKept(kept, stats.atRest);
    }
  });
  const kept = h("ul", { class: "told" });
  const load = actionButton("Load it", {
    work: () => get(topicPath(topic, "stats"), { signal }),
    done: `${topic.name} is loaded.`,
    after: () => look(),
  });
  const notice = h("div", { class: "empty at-rest" },
    h("p", {}, h("strong", {}, "The topic is at rest."), " Nobody uses it, and no broker has it loaded. Load it to look into it. ",
      "Without a subscription, a loaded topic that nobody uses is deleted after a while, where the policies of its namespace say so (inactive topics)."),
    load);
}

/** What is stored of a topic at rest, in words. */
function tellKept(list, stored) {
  if (!stored) return;
  const lines = [`${bytes(stored.storageSize)} are stored.`];
  for (const [name, each] of Object.entries(stored.subscriptions))
    lines.push(`Subscription ${name} has a backlog of ${each.isUpperBound ? "at most " : ""}${many(each.msgBacklog, "entry", "entries")}, ${bytes(each.backlogSize)}.`);
  const text = lines.join("\n");
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...lines.map((line) => h("li", {}, line)));
}

/** A signal of its own for a part of a view, which ends with the view's. */
function ending(signal) {
  const own = new AbortController();
  signal.addEventListener("abort", () => own.abort(), { signal: own.signal });
  return own;
}

/** The parts that both kinds of topics have. */
/** How a topic is copied to other clusters; nothing where it is not. */
function replicationSection() {
  const list = table({
    label: "Copies to other clusters",
    key: (row) => row.cluster,
    empty: "The topic is copied nowhere.",
    columns: [
      { title: "Cluster", text: (row) => row.cluster, value: (row) => row.cluster },
      { title: "State", draw: (row, cell) => state(cell, row.problem ? ["warn", row.problem] : row.connected ? ["ok", "connected"] : ["warn", "not connected"]) },
      { title: "Backlog", number: true, text: (row) => count(row.replicationBacklog), value: (row) => row.replicationBacklog },
      { title: "Behind by", number: true, text: (row) => duration(row.replicationDelayInSeconds ?? NaN), value: (row) => row.replicationDelayInSeconds },
      { title: "Sent", number: true, text: (row) => rate(row.msgRateOut), value: (row) => row.msgRateOut },
      { title: "Received", number: true, text: (row) => rate(row.msgRateIn), value: (row) => row.msgRateIn },
      { title: "Expired", number: true, text: (row) => rate(row.msgRateExpired), value: (row) => row.msgRateExpired },
    ],
  });
  const node = section("Copies to other clusters", list.node);
  node.hidden = true;
  return {
    node,
    update(stats) {
      const rows = Object.entries(stats.replication || {}).map(([cluster, each]) => ({ cluster, ...each }));
      visible(node, rows.length > 0);
      list.update(rows);
    },
  };
}

function overview({ topic, content, signal }, { action, of, rows }) {
  const messages = plot("Messages", [
    { name: "in", key: `${fullName(topic)}/in`, format: rate },
    { name: "out", key: `${fullName(topic)}/out`, format: rate },
  ]);
  const volume = plot("Bytes", [
    { name: "in", key: `${fullName(topic)}/bytes-in`, format: throughput },
    { name: "out", key: `${fullName(topic)}/bytes-out`, format: throughput },
  ]);
  const backlog = plot("Backlog of all subscriptions", [{ name: "entries", key: `${fullName(topic)}/backlog`, format: amount }]);
  remember(topicPath(topic, "history"), [
    [messages, ["msgRateIn", "msgRateOut"]],
    [volume, ["msgThroughputIn", "msgThroughputOut"]],
    [backlog, ["msgBacklog"]],
  ], signal);
  const facts = factList(["Owner", "Stored", "Published", "Delivered", "Producers", "Subscriptions"]);
  const why = h("ul", { class: "why" });
  const flow = section("Why nothing flows", why);
  flow.hidden = true;
  const copies = replicationSection();
  content.replaceChildren(h("div", { class: "plots" }, messages.node, volume.node, backlog.node), flow, facts.node, copies.node, ...rows);
  return (stats, isTerminated) => {
    const subscriptions = Object.values(stats.subscriptions || {});
    messages.push([stats.msgRateIn, stats.msgRateOut]);
    volume.push([stats.msgThroughputIn, stats.msgThroughputOut]);
    backlog.push([subscriptions.reduce((sum, each) => sum + Math.max(0, each.msgBacklog), 0)]);
    facts.set({
      Owner: stats.ownerBroker || "–",
      Stored: bytes(stats.storageSize),
      Published: many(stats.msgInCounter, "message"),
      Delivered: many(stats.msgOutCounter, "message"),
      Producers: count((stats.publishers || []).length),
      Subscriptions: count(subscriptions.length),
    });
    copies.update(stats);
    tellWhy(topic, why, stats, isTerminated);
    visible(flow, why.children.length > 0);
  };
}

function factList(names) {
  const values = new Map(names.map((name) => [name, h("dd", {}, "–")]));
  const node = h("dl", { class: "facts" }, names.map((name) => h("div", {}, h("dt", {}, name), values.get(name))));
  return {
    node,
    set(given) {
      for (const [name, text] of Object.entries(given)) say(values.get(name), text);
    },
  };
}

function tellWhy(topic, list, stats, isTerminated) {
  const lines = [
    ...publishTrouble(stats, isTerminated).map((text) => ({ key: text, text })),
    ...stalled(stats).map((each) => ({ ...each, key: `${each.part}/${each.name}/${each.code}` })),
  ];
  const text = JSON.stringify(lines);
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...lines.map((line) => {
    if (!line.name) return h("li", {}, line.text);
    const where = line.part ? parseTopic(line.part) : topic;
    return h("li", {}, link(subscriptionView(where, line.name), line.part ? `${where.name} / ${line.name}` : line.name),
      ` (${many(line.backlog, "entry", "entries")}): `, h("strong", {}, line.text), ". ", line.advice);
  }));
}

export const subscriptionView = (topic, name) =>
  view("subscription", topic.domain, topic.tenant, topic.namespace, topic.name, name);

function subscriptionTable(topic) {
  const sparks = new WeakMap();
  return table({
    label: "Subscriptions",
    key: (row) => row.name,
    empty: "No subscription: what is published is kept only if the retention of the namespace says so. Create one below, or connect a consumer.",
    columns: [
      { title: "Subscription", node: (row) => link(subscriptionView(topic, row.name), row.name), value: (row) => row.name },
      { title: "Type", text: (row) => row.type || "–", value: (row) => row.type },
      { title: "Consumers", number: true, text: (row) => count((row.consumers || []).length), value: (row) => (row.consumers || []).length },
      { title: "Out", number: true, text: (row) => rate(row.msgRateOut), value: (row) => row.msgRateOut },
      {
        title: "Backlog",
        number: true,
        value: (row) => row.msgBacklog,
        draw(row, cell) {
          if (!sparks.has(cell)) {
            const drawn = spark();
            const number = h("span", {});
            cell.append(drawn.node, number);
            sparks.set(cell, { drawn, number });
          }
          const { drawn, number } = sparks.get(cell);
          say(number, backlogOf(row));
          number.title = many(row.msgBacklog, "entry", "entries");
          drawn.push(`${fullName(topic)}/${row.name}/backlog`, row.msgBacklog);
        },
      },
      { title: "Unacknowledged", number: true, text: (row) => count(row.unackedMessages), value: (row) => row.unackedMessages },
      { title: "Acknowledged", number: true, text: (row) => rate(row.messageAckRate), value: (row) => row.messageAckRate },
      { title: "State", draw: (row, cell) => state(cell, stateOf(row)) },
    ],
  });
}

/** What a subscription does, in words. */
export function stateOf(row) {
  if (isStalled(row)) return ["warn", row.whyIdleText];
  const held = hoarding(row);
  if (held.length) return ["warn", held[0]];
  if (row.msgRateOut > 0 || (row.msgBacklog > 0 && !row.whyIdle)) return ["ok", "delivers"];
  return ["", row.whyIdleText || "quiet"];
}

const named = (subscriptions) =>
  Object.entries(subscriptions || {}).map(([name, each]) => ({ name, ...each })).sort((one, other) => (one.name < other.name ? -1 : 1));

function showPlain(shown) {
  const { topic, signal } = shown;
  const shownHere = ending(signal);
  const subscriptions = subscriptionTable(topic);
  const producers = table({
    label: "Producers",
    key: (row) => `${row.address}/${row.producerId}/${row.producerName}`,
    empty: "No producer is connected.",
    columns: [
      { title: "Producer", text: (row) => row.producerName },
      { title: "Access", text: (row) => row.accessMode },
      { title: "In", number: true, text: (row) => rate(row.msgRateIn) },
      { title: "Bytes in", number: true, text: (row) => throughput(row.msgThroughputIn) },
      { title: "Average size", number: true, text: (row) => bytes(row.averageMsgSize) },
      { title: "Address", text: (row) => row.address },
      { title: "Client", text: (row) => row.clientVersion || "–" },
      { title: "Action", node: (row) => disconnectButton({ topic, kind: "producer", name: row.producerName, address: row.address, after: () => look() }) },
    ],
  });
  const update = overview(shown, {
    rows: [
      section("Subscriptions", subscriptions.node),
      topic.domain === "persistent" ? newSubscription(topic, () => look()) : null,
      section("Producers", producers.node),
      section("Actions", actions(topic, 0, () => look())),
    ].filter(Boolean),
  });
  const look = poll(shownHere.signal, EVERY_MS, async () => {
    let stats;
    try {
      stats = await restingStats(topic, { signal });
    } catch (error) {
      if (error.status === 404 || error.status === 403) absent(topic, shown.content, error, () => look());
      throw error;
    }
    shown.content.querySelector(".absent")?.remove();
    if (isAtRest(stats)) {
      shownHere.abort();
      whenLoaded(shown, () => showPlain(shown));
      return;
    }
    const stored = topic.domain === "persistent"
      ? await get(topicPath(topic, "internalStats"), { signal }).catch((error) => { if (error.status === 403) return {}; throw error; })
      : {};
    update(stats, stored.state === "Terminated");
    subscriptions.update(named(stats.subscriptions));
    producers.update(stats.publishers || []);
  });
}

/** Tell that a topic is not there, or not shown to this user. It may have been there a minute ago. */
function absent(topic, content, error, look) {
  error.isTold = true;
  if (content.querySelector(".absent")) return;
  content.querySelector(".quiet")?.remove();
  const isGone = error.status === 404;
  const text = isGone
    ? `There is no topic ${topic.tenant}/${topic.namespace}/${topic.name}. It may have been deleted: topics without subscriptions are when nobody uses them for a while, unless the policies of the namespace say otherwise.`
    : wordsOf(error);
  const create = isGone && topic.domain === "persistent" ? actionButton("Create it", {
    work: () => json("PUT", topicPath(topic), { body: {} }),
    done: `${topic.name} is there.`,
    after: look,
  }) : null;
  content.prepend(h("div", { class: "refused absent", role: "alert" },
    h("p", {}, text, " ", link(namespaceView(topic), "To the topics of the namespace")), create));
}

function showPartitioned(shown) {
  const { topic, partitions, signal } = shown;
  const list = table({
    label: "Partitions",
    key: (row) => row.full,
    empty: "The partitions are not there yet: create them with magnetar admin topics create-missed-partitions.",
    columns: [
      { title: "Partition", node: (row) => link(topicView(row.topic), row.topic.name) },
      { title: "Owner", text: (row) => row.stats.ownerBroker || "–" },
      { title: "In", number: true, text: (row) => rate(row.stats.msgRateIn) },
      { title: "Out", number: true, text: (row) => rate(row.stats.msgRateOut) },
      { title: "Backlog", number: true, text: (row) => count(sumOf(row.stats.subscriptions, "msgBacklog")) },
      { title: "Stored", number: true, text: (row) => bytes(row.stats.storageSize) },
    ],
  });
  const subscriptions = subscriptionTable(topic);
  const update = overview(shown, {
    rows: [
      section(`${many(partitions, "partition")}`, list.node),
      section("Subscriptions of all partitions", subscriptions.node),
      topic.domain === "persistent" ? newSubscription(topic, () => look()) : null,
      section("Actions", actions(topic, partitions, () => look())),
    ].filter(Boolean),
  });
  const look = poll(signal, EVERY_MS, async () => {
    const stats = await get(`${topicPath(topic, "partitioned-stats")}?perPartition=true&onlyLoaded=true`, { signal });
    update(stats, false);
    const rows = Object.entries(stats.partitions || {}).map(([full, each]) => ({ full, topic: parseTopic(full), stats: each }));
    list.update(rows.sort((one, other) => indexOf(one) - indexOf(other)));
    subscriptions.update(named(stats.subscriptions));
  });
}

const indexOf = (row) => Number(/(\d+)$/.exec(row.topic.name)?.[1] || 0);
const sumOf = (subscriptions, what) => Object.values(subscriptions || {}).reduce((sum, each) => sum + Math.max(0, each[what]), 0);

function newSubscription(topic, after) {
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const from = h("select", {}, h("option", { value: "latest" }, "the end"), h("option", { value: "earliest" }, "the first message"));
  const form = h("form", { class: "controls", onsubmit: submit }, field("New subscription", name), field("Start position", from),
    h("button", {}, "Create"));
  async function submit(event) {
    event.preventDefault();
    const first = { ledgerId: -1, entryId: -1 };
    try {
      const body = from.value === "earliest" ? first : undefined;
      await json("PUT", topicPath(topic, "subscription", name.value.trim()), { body });
      tell(`Subscription ${name.value.trim()} is there.`);
      name.value = "";
      after();
    } catch (error) {
      tell(`The subscription was not created. ${wordsOf(error)}`, true);
    }
  }
  return form;
}

function actions(topic, partitions, after) {
  const kept = topic.domain === "persistent";
  const buttons = [
    actionButton("Unload", {
      question: () => ({
        title: `Unload ${topic.name}?`,
        text: "The broker closes the topic. The next client that uses it loads it again, perhaps at another broker. Clients reconnect by themselves; nothing is lost.",
        action: "Unload",
        isDanger: false,
      }),
      work: () => json("PUT", topicPath(topic, "unload")),
      done: `${topic.name} was unloaded.`,
      after,
    }),
  ];
  if (kept)
    buttons.push(
      actionButton("Compact", {
        question: () => ({
          title: `Compact ${topic.name}?`,
          text: "The newest message of each key is written once more, for consumers that read compacted topics. Nothing is lost: others read on as before.",
          action: "Compact",
          isDanger: false,
        }),
        work: () => json("PUT", topicPath(topic, "compaction")),
        done: `${topic.name} is being compacted.`,
        after,
      }),
      actionButton("Terminate", {
        isDanger: true,
        question: () => ({
          title: `Terminate ${topic.name}?`,
          text: "Nothing can be published to it any more, ever. Consumers read to the end, and are notified there.",
          action: "Terminate",
          typed: topic.name,
        }),
        work: () => json("POST", topicPath(topic, "terminate", ...(partitions ? ["partitions"] : []))),
        done: `${topic.name} is terminated.`,
        after,
      }),
    );
  buttons.push(deleteButton(topic, partitions));
  return h("div", { class: "actions" }, buttons);
}

function deleteButton(topic, partitions) {
  let force;
  const where = topicPath(topic, ...(partitions ? ["partitions"] : []));
  return actionButton("Delete", {
    isDanger: true,
    question() {
      force = h("input", { type: "checkbox", id: identity("force") });
      return {
        title: `Delete ${topic.name}?`,
        text: `All of its messages${partitions ? `, in ${many(partitions, "partition")},` : ""} and subscriptions are gone for good.`,
        action: "Delete",
        typed: topic.name,
        options: [h("p", { class: "check" }, force, h("label", { for: force.id }, "Also if clients are connected or subscriptions exist"))],
      };
    },
    work: () => ask("DELETE", `${where}${force.checked ? "?force=true" : ""}`),
    done: `${topic.name} was deleted.`,
    after: () => { location.hash = namespaceView(topic); },
  });
}
