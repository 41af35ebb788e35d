// The cluster: who serves, who stores, whether every copy is there.

import { each, get, wordsOf, path } from "./api.js";
import { h, say, section, visible } from "./dom.js";
import { amount, bytes, count, many, percent, rate, time } from "./format.js";
import { parseTopic, topicView, view } from "./names.js";
import { plot, remember } from "./plot.js";
import { poll } from "./polling.js";
import { adviceFor, HOARDING_ADVICE } from "./reasons.js";
import { diskNeeds, diskRows, diskTable, metadataFacts, metadataNeeds } from "./servers.js";
import { link, state, table } from "./table.js";

const EVERY_MS = 4000;
const SLOW_SHOWN = 50;
const LARGEST_SHOWN = 10;
const ONE_DISK = "A message is confirmed when one disk has it: if that disk is lost, the message may be lost. "
  + "For more copies: --bookies 3 (standalone, cluster) or --quorum 3,3,2.";

export function showCluster({ frame, signal }) {
  const health = tile("This broker");
  const brokersTile = tile("Brokers");
  const bookiesTile = tile("Bookies");
  const copies = tile("Missing copies");
  const messages = plot("Messages", [
    { name: "in", key: "cluster/in", format: rate },
    { name: "out", key: "cluster/out", format: rate },
  ]);
  const volume = plot("Bytes", [
    { name: "in", key: "cluster/bytes-in", format: (value) => `${bytes(value)}/s` },
    { name: "out", key: "cluster/bytes-out", format: (value) => `${bytes(value)}/s` },
  ]);
  const needs = table({
    label: "What needs a person",
    key: (row) => row.key,
    empty: "Nothing: every subscription with a backlog is being delivered, and every server answers.",
    columns: [
      { title: "Where", node: (row) => whereOf(row) },
      { title: "What", draw: (row, cell) => state(cell, [row.kind, row.text]), value: (row) => row.text },
      { title: "What to do", text: (row) => row.advice || "–" },
      { title: "Backlog", number: true, text: (row) => count(row.backlog), value: (row) => row.backlog },
    ],
  });
  const largest = table({
    label: "Largest backlogs",
    key: (row) => row.topic,
    empty: "No loaded topic has a backlog.",
    columns: [
      { title: "Topic", node: (row) => link(topicView(parseTopic(row.topic)), row.topic), value: (row) => row.topic },
      { title: "Most of it in", text: (row) => row.subscription, value: (row) => row.subscription },
      { title: "Entries", number: true, text: (row) => count(row.msgBacklog), value: (row) => row.msgBacklog },
      { title: "Stored", number: true, text: (row) => bytes(row.storageSize), value: (row) => row.storageSize },
    ],
  });
  const events = table({
    label: "Last events",
    key: (row) => `${row.at_ms} ${row.kind} ${row.name} ${row.text}`,
    empty: "No server came or went since this broker began.",
    columns: [
      { title: "When", text: (row) => time(row.at_ms), value: (row) => row.at_ms },
      { title: "Server", text: (row) => `${row.kind} ${row.name}`, value: (row) => row.name },
      { title: "What", draw: (row, cell) => state(cell, [/^went|read-only|leaving$/.test(row.text) ? "warn" : "ok", row.text]) },
    ],
  });
  const needsTrouble = h("p", { class: "refused", hidden: true });
  const oneDisk = h("p", { class: "told", hidden: true }, h("span", { class: "state warn" }, ONE_DISK));
  const brokers = table({
    label: "Brokers",
    key: (row) => row.broker_id,
    empty: "No broker is registered. This one may have lost its lease: look at its log.",
    columns: [
      { title: "Broker", text: (row) => row.name },
      { title: "Role", text: (row) => roleOf(row) },
      { title: "Topics", number: true, text: (row) => count(row.load.topics) },
      { title: "Connections", number: true, text: (row) => count(row.load.connections) },
      { title: "In", number: true, text: (row) => rate(sum(row.load, "msg_rate_in")) },
      { title: "Out", number: true, text: (row) => rate(sum(row.load, "msg_rate_out")) },
      { title: "Processor", number: true, text: (row) => percent(row.load.cpu_percent) },
      { title: "Memory", number: true, text: (row) => bytes(row.load.memory_bytes) },
      { title: "Address", text: (row) => row.native_url },
      { title: "Release", text: (row) => row.version },
    ],
  });
  const bookies = table({
    label: "Bookies",
    key: (row) => row.id,
    empty: "No bookie is registered, so nothing can be stored. Start one: magnetar bookie.",
    columns: [
      { title: "Bookie", text: (row) => row.id },
      { title: "State", draw: (row, cell) => state(cell, stateOfBookie(row)) },
      { title: "Address", text: (row) => row.address || "–" },
      { title: "Rack", text: (row) => row.rack || "–" },
      { title: "Zone", text: (row) => row.zone || "–" },
    ],
  });
  const slow = table({
    label: "Slow moments",
    key: (row) => `${row.ended_ms} ${row.kind} ${row.milliseconds} ${row.cause}`,
    empty: "Nothing took long in this process lately.",
    columns: [
      { title: "Ended", text: (row) => time(row.ended_ms) },
      { title: "What", text: (row) => row.kind },
      { title: "Took", number: true, text: (row) => `${amount(row.milliseconds)} ms` },
      { title: "About", text: (row) => row.cause || "–" },
    ],
  });
  const recovery = h("p", { class: "told" }, "Loading.");
  const brokersTrouble = h("p", { class: "refused", hidden: true });
  const bookiesTrouble = h("p", { class: "refused", hidden: true });
  const disks = diskTable();
  const disksTrouble = h("p", { class: "refused", hidden: true });
  const metadata = metadataFacts();
  const metadataTrouble = h("p", { class: "refused", hidden: true });
  const slowTrouble = h("p", { class: "refused", hidden: true });
  frame({
    title: "Cluster",
    content: [
      h("div", { class: "tiles" }, health.node, brokersTile.node, bookiesTile.node, copies.node),
      section("What needs a person", [needsTrouble, oneDisk, needs.node]),
      h("div", { class: "plots" }, messages.node, volume.node),
      section("Largest backlogs", [largest.node]),
      section("Brokers", [brokersTrouble, brokers.node]),
      section("Bookies", [bookiesTrouble, bookies.node]),
      section("Disks of bookies", [disksTrouble, disks.node]),
      section("Re-replication", [recovery]),
      section("Metadata store, as this broker sees it", [metadataTrouble, metadata.node]),
      section("Last events", [events.node]),
      section("Slow moments of this broker", [slowTrouble, slow.node]),
    ],
  });

  // Of this broker alone: where there are several, the plots of the cluster begin now.
  let isSeeded = false;

  poll(signal, EVERY_MS, async () => {
    const looks = [lookAtHealth, lookAtBrokers, lookAtBookies, lookAtSlow, lookAtNeeds, lookAtDisks, lookAtMetadata];
    const [well, known, stored, late, urgent, space, store] = await each(looks, looks.length, (look) => look(signal));
    refused(needsTrouble, urgent.error);
    if (urgent.needs) {
      visible(oneDisk, urgent.needs.quorum?.ack === 1);
      needs.update([
        ...(store.metadata ? metadataNeeds(store.metadata) : []),
        ...diskNeeds(space.disks || []),
        ...allNeeds(urgent.needs, known.brokers || [], stored),
      ]);
      events.update(urgent.needs.events);
      largest.update(urgent.needs.largest.slice(0, LARGEST_SHOWN));
    }
    health.set(well.status === "ok" ? "ok" : "not well", well.status === "ok" ? "ok" : "bad",
      well.status === "ok" ? `${many(well.topics, "topic")}, ${many(well.connections, "connection")}` : well.status);
    refused(brokersTrouble, known.error);
    refused(bookiesTrouble, stored.error);
    refused(slowTrouble, late.error);
    refused(disksTrouble, space.error);
    refused(metadataTrouble, store.error);
    if (late.moments) slow.update(late.moments);
    if (space.disks) disks.update(diskRows(space.disks));
    if (store.metadata) metadata.update(store.metadata);
    if (known.brokers) {
      const here = known.brokers;
      for (const broker of here) if (broker.is_self) broker.load.connections = well.connections ?? broker.load.connections;
      brokers.update(here);
      if (!isSeeded && here.length === 1)
        remember("/magnetar/v1/history", [[messages, ["msgRateIn", "msgRateOut"]], [volume, ["msgThroughputIn", "msgThroughputOut"]]], signal);
      isSeeded = true;
      const draining = here.filter((each) => each.draining).length;
      brokersTile.set(count(here.length), draining ? "warn" : "ok", draining ? `${draining} leaving` : "all serving");
      const total = (field) => here.reduce((all, each) => all + sum(each.load, field), 0);
      messages.push([total("msg_rate_in"), total("msg_rate_out")]);
      volume.push([total("bytes_rate_in"), total("bytes_rate_out")]);
    } else {
      brokersTile.set("–", "", "not shown to you");
    }
    if (stored.bookies) {
      const reasons = new Map((space.disks || []).map((each) => [each.id, each.read_only_reasons.join(", ")]));
      bookies.update(stored.bookies.map((each) => ({ ...each, reasons: reasons.get(each.id) || "" })));
      const writable = stored.bookies.filter((each) => each.state === "writable").length;
      const rest = stored.bookies.length - writable;
      bookiesTile.set(`${writable}`, rest || !writable ? "bad" : "ok", rest ? `${rest} not writable` : "all writable");
      tellRecovery(stored.recovery, stored.bookies, copies, recovery);
    } else {
      bookiesTile.set("–", "", "not shown to you");
      copies.set("–", "", "not shown to you");
      say(recovery, "Not shown to you: it takes a super user.");
    }
  });
}

const STATES = {
  writable: ["ok", "writable"],
  readonly: ["warn", "read-only"],
  lost: ["bad", "not registered"],
};

function stateOfBookie(row) {
  const [kind, text] = STATES[row.state] || ["bad", row.state];
  return [kind, row.state === "readonly" && row.reasons ? `${text}: ${row.reasons}` : text];
}

function tile(title) {
  const value = h("b", {}, "–");
  const note = h("span", {}, "Loading.");
  const node = h("div", { class: "tile" }, h("h2", {}, title), value, note);
  return {
    node,
    set(text, kind, words) {
      say(value, text);
      say(note, words);
      node.className = `tile ${kind}`;
    },
  };
}

function refused(node, error) {
  visible(node, Boolean(error));
  if (error) say(node, wordsOf(error));
}

/** Without what this token may not see: the rest of the view is shown all the same. */
async function lookAt(work) {
  try {
    return await work();
  } catch (error) {
    if (error.status === 403) return { error };
    throw error;
  }
}

async function lookAtHealth(signal) {
  try {
    return await get("/health", { signal });
  } catch (error) {
    if (error.status !== 503) throw error;
    return { status: error.message };
  }
}

const lookAtBrokers = (signal) => lookAt(async () => {
  const [brokers, own] = await Promise.all([
    get("/magnetar/v1/brokers", { signal }),
    get(path("admin", "v2", "broker-stats", "load-report"), { signal }),
  ]);
  for (const broker of brokers) {
    broker.load ||= {};
    if (broker.is_self) broker.load = ownLoad(own, broker.load);
  }
  return { brokers };
});

const lookAtNeeds = (signal) => lookAt(async () => ({ needs: await get("/magnetar/v1/attention", { signal }) }));

/** Everything that needs a person, the worst first: servers, then what lies in the way of messages. */
function allNeeds(found, brokers, stored) {
  const rows = found.unanswered.map((id) => ({
    key: `broker ${id}`, where: id, kind: "bad", text: "the broker does not answer",
    advice: "Look at its process and its log. Its topics move to others when its lease ends.",
  }));
  for (const each of stored.bookies || [])
    if (each.state !== "writable")
      rows.push({
        key: `bookie ${each.id}`, where: each.id, kind: each.state === "readonly" ? "warn" : "bad",
        text: each.state === "readonly" ? "the bookie takes no more data" : "the bookie is not registered",
        advice: each.state === "readonly" ? "Its disks are full: free some room, or add a bookie." : "Start it again; if its data are lost, magnetar admin bookies recover.",
      });
  if (stored.recovery?.ledgers_lost)
    rows.push({ key: "lost", where: "ledgers", kind: "bad", text: `${many(stored.recovery.ledgers_lost, "ledger")} with entries that no bookie has`, advice: "Bring lost bookies back." });
  for (const broker of brokers)
    if (broker.draining) rows.push({ key: `draining ${broker.name}`, where: broker.name, kind: "warn", text: "the broker is leaving", advice: "Nothing to do if it was told to." });
  const kinds = [["hoarding", HOARDING_ADVICE], ["quota", "Have the consumers catch up, raise the quota, or delete the subscription if nobody needs it."], ["unsubscribed", "Subscribe to it, set a retention, or delete it."], ["stuck", null]];
  for (const [kind, advice] of kinds)
    for (const each of found[kind] || [])
      rows.push({
        ...each, key: `${kind} ${each.topic} ${each.subscription} ${each.consumer}`, kind: "warn",
        advice: advice ?? adviceFor(each.code),
      });
  return rows;
}

function whereOf(row) {
  if (!row.topic) return h("span", {}, row.where);
  const topic = parseTopic(row.topic);
  if (!topic) return h("span", {}, row.topic);
  const name = `${topic.tenant}/${topic.namespace}/${topic.name}`;
  return row.subscription
    ? link(view("subscription", topic.domain, topic.tenant, topic.namespace, topic.name, row.subscription), `${name} / ${row.subscription}`)
    : link(topicView(topic), name);
}

const lookAtSlow = (signal) => lookAt(async () => ({
  moments: await get(`/magnetar/v1/slow?limit=${SLOW_SHOWN}`, { signal }),
}));

const lookAtDisks = (signal) => lookAt(async () => ({ disks: await get("/magnetar/v1/bookies/disks", { signal }) }));

const lookAtMetadata = (signal) => lookAt(async () => ({ metadata: await get("/magnetar/v1/metadata", { signal }) }));

const lookAtBookies = (signal) => lookAt(() => get("/magnetar/v1/bookies", { signal }));

/** The load of the broker that was asked, as of now; that of others is what they reported last. */
function ownLoad(report, reported) {
  return {
    topics: report.numTopics,
    connections: reported.connections,
    cpu_percent: report.cpu.usage,
    memory_bytes: report.memory.usage * 1024 * 1024,
    bundles: {
      all: {
        msg_rate_in: report.msgRateIn,
        msg_rate_out: report.msgRateOut,
        bytes_rate_in: report.msgThroughputIn,
        bytes_rate_out: report.msgThroughputOut,
      },
    },
  };
}

const sum = (load, field) => Object.values(load.bundles || {}).reduce((all, each) => all + (each[field] || 0), 0);

function roleOf(row) {
  const roles = [];
  if (row.is_self) roles.push("this one");
  if (row.is_leader) roles.push("leader");
  if (row.draining) roles.push("leaving");
  return roles.join(", ") || "–";
}

function tellRecovery(recovery, bookies, copies, told) {
  const waiting = recovery.ledgers_waiting;
  const lost = recovery.ledgers_lost;
  copies.set(amount(waiting + lost), lost ? "bad" : waiting ? "warn" : "ok",
    lost ? `${many(lost, "ledger")} without any copy of some entries` : waiting ? "ledgers wait for copies" : "every ledger has its copies");
  const who = recovery.auditor
    ? `${recovery.auditor} looks for missing copies.`
    : bookies.length > 1
      ? "Nobody looks for missing copies: start magnetar autorecovery."
      : "Nobody looks for missing copies. A single bookie has nowhere to copy to.";
  const parts = [who];
  if (!recovery.enabled) parts.push("Re-replication is switched off: magnetar admin recovery enable switches it on.");
  parts.push(waiting ? `${many(waiting, "ledger")} waiting for copies.` : "No ledger is known to lack a copy.");
  if (lost) parts.push(`${many(lost, "ledger")} with entries that no bookie has: bring lost bookies back.`);
  say(told, parts.join(" "));
}
