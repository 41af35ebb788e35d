// One subscription: its consumers, its backlog, and what operators do with it. Of a partitioned topic it is
// all of its partitions together: what is done is done in each of them.

import { ask, each, get, isAtRest, json, restingStats, topicPath, wordsOf } from "./api.js";
import { actionButton } from "./dialogs.js";
import { disconnectButton } from "./disconnecting.js";
import { field, h, identity, say, section, visible } from "./dom.js";
import { amount, count, many, rate, time } from "./format.js";
import { peekList } from "./messages.js";
import { crumbsOf, fullName, topicView } from "./names.js";
import { PARTITIONS_MAX } from "./parts.js";
import { plot } from "./plot.js";
import { poll } from "./polling.js";
import { adviceFor, hoarding, HOARDING_ADVICE, isStalled, stalled } from "./reasons.js";
import { link, state, table } from "./table.js";
import { stateOf, subscriptionView } from "./topic.js";
import { duration } from "./units.js";

const EVERY_MS = 3000;
const PARTITIONS_AT_ONCE = 4;
const UNITS = [["seconds", 1], ["minutes", 60], ["hours", 3600], ["days", 86_400]];

export function showSubscription({ frame, parts, signal }) {
  const [domain, tenant, namespace, topicName, name] = parts;
  const topic = { domain, tenant, namespace, name: topicName };
  topicPath(topic, "subscription", name); // Refuses names that cannot be asked about.
  const content = h("div", {}, h("p", { class: "quiet" }, "Loading."));
  frame({
    title: name,
    crumbs: crumbsOf(topic, { text: name, href: subscriptionView(topic, name) }),
    content,
  });
  start({ topic, name, content, signal });
}

async function start(shown) {
  const { topic, content, signal } = shown;
  let partitions = 0;
  try {
    partitions = (await get(`${topicPath(topic, "partitions")}?checkAllowAutoCreation=false`, { signal })).partitions;
  } catch (error) {
    if (signal.aborted) return;
    if (error.status !== 404) {
      content.replaceChildren(h("p", { class: "refused", role: "alert" }, wordsOf(error)));
      return;
    }
  }
  if (!signal.aborted) show({ ...shown, partitions });
}

function consumerTable({ topic, name, partitions, known, after }) {
  return table({
    label: "Consumers",
    key: (row) => `${row.address}/${row.consumerName}/${row.connectedSince}`,
    empty: "No consumer is connected: the backlog grows until one comes.",
    columns: [
      { title: "Consumer", text: (row) => row.consumerName || "(no name)", value: (row) => row.consumerName },
      { title: "Out", number: true, text: (row) => rate(row.msgRateOut), value: (row) => row.msgRateOut },
      { title: "Acked", number: true, text: (row) => rate(row.messageAckRate), value: (row) => row.messageAckRate },
      { title: "Redelivered", number: true, text: (row) => rate(row.msgRateRedeliver), value: (row) => row.msgRateRedeliver },
      { title: "Permits", number: true, text: (row) => count(row.availablePermits), value: (row) => row.availablePermits },
      { title: "Unacked", number: true, text: (row) => count(row.unackedMessages), value: (row) => row.unackedMessages },
      { title: "First held", text: (row) => heldBy(row), value: (row) => row.firstHeld?.seconds },
      { title: "Last acked", text: (row) => time(row.lastAckedTimestamp), value: (row) => row.lastAckedTimestamp },
      { title: "State", draw: (row, cell) => state(cell, stateOfConsumer(row, known.hoarders)) },
      { title: "Address", text: (row) => row.address, value: (row) => row.address },
      { title: "Client", text: (row) => `${row.clientVersion || "unknown"}, since ${time(row.connectedSince)}`, value: (row) => row.connectedSince },
      { title: "Action", node: (row) => disconnectButton({ topic, kind: "consumer", name: row.consumerName, subscription: name, after,
        // A client has another address at each broker that has partitions.
        address: partitions && row.consumerName ? "" : row.address }) },
    ],
  });
}

/** The first entry that a consumer has not acknowledged, and for how long at least; a dash: none for so long as a
 * minute or so. Entries behind it may have been held for longer. */
const heldBy = ({ firstHeld }) => (firstHeld ? `${firstHeld.messageId} for at least ${duration(firstHeld.seconds)}` : "–");

function stateOfConsumer(row, hoarders) {
  if (hoarders.includes(row.consumerName)) return ["warn", "hoards: acknowledges none"];
  if (row.blockedConsumerOnUnackedMsgs) return ["warn", "has too many unacknowledged"];
  return row.availablePermits > 0 ? ["ok", "wants messages"] : ["", "asks for none"];
}

function show({ topic, name, partitions, content, signal }) {
  const known = { hoarders: [] };
  const out = plot("Delivered", [{ name: "messages", key: `${fullName(topic)}/${name}/out`, format: rate }]);
  const backlog = plot("Backlog", [{ name: "entries", key: `${fullName(topic)}/${name}/backlog-plot`, format: amount }]);
  const flow = h("p", { class: "told", role: "status" }, "Loading.");
  const consumers = consumerTable({ topic, name, partitions, known, after: () => look() });
  const facts = h("dl", { class: "facts" });
  const trouble = h("p", { class: "refused", role: "alert", hidden: true });
  const next = h("div", {});
  const body = h("div", { hidden: true },
    h("div", { class: "plots" }, out.node, backlog.node),
    section("What happens", flow),
    facts,
    section("Consumers", consumers.node),
    section("Actions", actions({ topic, name, partitions, after: () => look() })),
    topic.domain === "persistent" ? section("Next messages", next) : null);
  content.replaceChildren(trouble, body);
  const where = partitions
    ? `${topicPath(topic, "partitioned-stats")}?perPartition=true&onlyLoaded=true`
    : null;

  const look = poll(signal, EVERY_MS, async () => {
    const stats = await (where ? get(where, { signal }) : restingStats(topic, { signal }));
    if (isAtRest(stats)) {
      visible(trouble, true);
      trouble.replaceChildren("The topic is at rest: nobody uses it, and no broker has it loaded. ", link(topicView(topic), "Open the topic to load it"));
      visible(body, false);
      return;
    }
    const found = Object.hasOwn(stats.subscriptions, name) ? stats.subscriptions[name] : null;
    visible(trouble, !found);
    visible(body, Boolean(found));
    if (!found) {
      trouble.replaceChildren(`The topic has no subscription ${name} (any more). `, link(topicView(topic), "To the topic"));
      return;
    }
    if (!next.firstChild) next.append(partitions > PARTITIONS_MAX ? partitionLinks(topic, name, partitions) : peekList({ topic, subscription: name, partitions, signal }));
    out.push([found.msgRateOut]);
    backlog.push([found.msgBacklog]);
    known.hoarders = found.hoarders || [];
    consumers.update(found.consumers || []);
    say(flow, partitions ? happensInParts(stats, name, partitions) : happens(found));
    tellFacts(facts, {
      Type: found.type || "–",
      Kept: found.isDurable ? "yes" : "no: it goes with its consumer",
      Backlog: found.backlogMessagesEstimate >= 0
        ? `${found.backlogMessages >= 0 ? "" : "about "}${many(found.backlogMessagesEstimate, "message")} in ${many(found.msgBacklog, "entry", "entries")}`
        : many(found.msgBacklog, "entry", "entries"),
      Unacknowledged: many(found.unackedMessages, "message"),
      Acknowledged: rate(found.messageAckRate),
      Delayed: `${many(found.msgDelayed, "entry", "entries")}${found.nextDelayedTime ? `; the next is due ${time(found.nextDelayedTime)}` : ""}`,
      Expired: many(found.totalMsgExpired, "entry", "entries"),
      "Active consumer": found.activeConsumerName || "–",
    });
  });
}

/** What a subscription does, and what keeps it from doing more, in sentences. */
function happens(found) {
  const [, words] = stateOf(found);
  const idle = isStalled(found) || (found.whyIdleText && !(found.msgRateOut > 0));
  const parts = [idle
    ? `Nothing is delivered just now: ${found.whyIdleText}. ${found.msgBacklog > 0 ? adviceFor(found.whyIdle) : ""}`
    : `${words[0].toUpperCase()}${words.slice(1)}.`];
  const held = hoarding(found);
  if (held.length) parts.push(`But ${held.join("; ")}. ${HOARDING_ADVICE}`);
  return parts.join(" ");
}

/** The same of a partitioned topic: which partition stands still, and why. */
function happensInParts(stats, name, partitions) {
  const still = stalled(stats).filter((each) => each.name === name);
  const found = stats.subscriptions[name];
  if (!still.length) return found.msgRateOut > 0 ? "Delivers in all partitions that have a backlog." : "Nothing waits that could be delivered.";
  const [{ part, text, advice }] = still;
  return `In ${many(still.length, "partition")} of ${count(partitions)} something is in the way. Partition ${part.replace(/^.*-partition-/, "")}: ${text}. ${advice}`;
}

function partitionLinks(topic, name, partitions) {
  const links = Array.from({ length: Math.min(partitions, 1000) }, (_, index) =>
    h("li", {}, link(subscriptionView({ ...topic, name: `${topic.name}-partition-${index}` }, name), String(index))));
  return h("div", {}, h("p", { class: "told" }, "Of which partition?"), h("ul", { class: "inline" }, links));
}

function tellFacts(list, facts) {
  const text = JSON.stringify(facts);
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...Object.entries(facts).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** Do something to the subscription in every partition, or in the topic if it has none. Returns what came of
 * each. All are tried; then the first refusal is thrown, with the number of those that were not refused. */
async function inEach(topic, partitions, work) {
  if (!partitions) return [await work(topic)];
  const refusals = [];
  const found = await each(Array.from({ length: partitions }, (_, index) => index), PARTITIONS_AT_ONCE, async (index) => {
    try {
      return await work({ ...topic, name: `${topic.name}-partition-${index}` });
    } catch (error) {
      refusals.push({ index, error });
      return null;
    }
  });
  if (refusals.length) {
    const { index, error } = refusals[0];
    error.message = `partition ${index}: ${error.message}; ${partitions - refusals.length} of ${many(partitions, "partition")} did it`;
    throw error;
  }
  return found;
}

/** {ledgerId, entryId} of what messages are called here. Throws with words for whoever typed it. */
function placeOf(text) {
  const match = /^(\d{1,15}):(\d{1,15})(:.*)?$/.exec(text.trim());
  if (!match) throw new Error("a message id is ledger:entry, as 17:3.");
  return { ledgerId: Number(match[1]), entryId: Number(match[2]) };
}

function actions({ topic, name, partitions, after }) {
  if (topic.domain !== "persistent") return h("p", { class: "empty" }, "The topic keeps nothing: there is nothing to skip or to move.");
  const about = { topic, name, partitions, after, inAll: partitions ? ` in all of ${many(partitions, "partition")}` : "" };
  const counted = h("p", { class: "told", role: "status" });
  return h("div", {},
    h("div", { class: "controls" },
      skipping(about), moving(about), expiring(about)),
    h("div", { class: "controls" }, counting(about, counted), clearing(about), removing(about)), counted);
}

function skipping({ topic, name, partitions, after, inAll }) {
  const skipped = h("input", { type: "number", min: 1, max: 1_000_000, value: "1" });
  const button = actionButton("Skip", {
    isDanger: true,
    question: () => ({
      title: `Skip ${many(Number(skipped.value), "entry", "entries")}${partitions ? " in each partition" : ""}?`,
      text: `The oldest of the backlog of ${name} are acknowledged without being delivered. The subscription never gets them.`,
      action: "Skip",
    }),
    work: () => inEach(topic, partitions, (one) => ask("POST", topicPath(one, "subscription", name, "skip", String(Math.floor(Number(skipped.value)))))),
    done: `Skipped${inAll}.`,
    after,
  });
  return h("div", { class: "joined" }, field(partitions ? "Entries to skip in each partition" : "Entries to skip", skipped), button);
}

function moving({ topic, name, partitions, after, inAll }) {
  const to = h("input", { type: "datetime-local", step: 1 });
  const id = h("input", { autocomplete: "off", spellcheck: "false", placeholder: "ledger:entry" });
  const places = [["time", "a time"], ["begin", "the beginning"], ["end", "the end"]];
  if (!partitions) places.push(["id", "a message"]);
  const kind = h("select", { onchange: () => choose() }, places.map(([value, text]) => h("option", { value }, text)));
  const at = field("Time", to);
  const message = field("Message id", id);
  function choose() {
    visible(at, kind.value === "time");
    visible(message, kind.value === "id");
  }
  choose();
  const words = () => ({ time: to.value ? time(to.value) : "…", begin: "the beginning", end: "the end", id: id.value || "…" })[kind.value];
  const button = actionButton("Reset", {
    isDanger: true,
    question: () => ({
      title: `Move ${name} to ${words()}${inAll}?`,
      text: kind.value === "end"
        ? "Everything that waits is passed without being delivered."
        : "Consumers are disconnected and go on there: what was published since comes again, what lies before is passed.",
      action: "Reset",
    }),
    work() {
      const where = (one, ...rest) => topicPath(one, "subscription", name, ...rest);
      if (kind.value === "time") {
        const when = new Date(to.value).getTime();
        if (Number.isNaN(when)) throw new Error("give a time first");
        return json("POST", where(topic, "resetcursor", String(when)));
      }
      if (kind.value === "end") return ask("POST", where(topic, "skip_all"));
      const place = kind.value === "id" ? placeOf(id.value) : { ledgerId: -1, entryId: -1 };
      return inEach(topic, partitions, (one) => json("POST", where(one, "resetcursor"), { body: place }));
    },
    done: "The subscription was moved.",
    after,
  });
  return h("div", { class: "joined" }, field("Reset to", kind), at, message, button);
}

function expiring({ topic, name, after, inAll }) {
  const value = h("input", { type: "number", min: 1, max: 1_000_000, value: "1" });
  const unit = h("select", {}, UNITS.map(([text]) => h("option", { value: text }, text)));
  unit.value = "hours";
  const seconds = () => Math.floor(Number(value.value)) * new Map(UNITS).get(unit.value);
  const button = actionButton("Expire", {
    isDanger: true,
    question: () => ({
      title: `Expire what is older than ${value.value} ${unit.value}${inAll}?`,
      text: `Those messages of the backlog of ${name} are acknowledged without being delivered.`,
      action: "Expire",
    }),
    work: () => ask("POST", topicPath(topic, "subscription", name, "expireMessages", String(seconds()))),
    done: "Older messages expire now.",
    after,
  });
  return h("div", { class: "joined" }, field("Expire what is older than", value), field("Unit", unit), button);
}

function counting({ topic, name, partitions }, told) {
  return actionButton("Count the messages", {
    work: async () => {
      const parts = await inEach(topic, partitions, (one) => json("POST", topicPath(one, "subscription", name, "analyzeBacklog")));
      const sum = (what) => parts.reduce((all, part) => all + part[what], 0);
      const isCut = parts.some((part) => part.aborted);
      const text = `${isCut ? "At least " : ""}${many(sum("messages"), "message")} in ${many(sum("entries"), "entry", "entries")} wait.${isCut ? " There are more: a count stops after backlog_analysis_entries_max entries." : ""}`;
      say(told, text);
      return text;
    },
    done: (text) => text,
  });
}

function clearing({ topic, name, after, inAll }) {
  return actionButton("Clear the backlog", {
    isDanger: true,
    question: () => ({
      title: `Clear the backlog of ${name}${inAll}?`,
      text: "Everything that waits is acknowledged without being delivered. The subscription never gets it.",
      action: "Clear",
    }),
    work: () => ask("POST", topicPath(topic, "subscription", name, "skip_all")),
    done: "The backlog is cleared.",
    after,
  });
}

function removing({ topic, name, inAll }) {
  let force;
  return actionButton("Delete", {
    isDanger: true,
    question() {
      force = h("input", { type: "checkbox", id: identity("force") });
      return {
        title: `Delete the subscription ${name}${inAll}?`,
        text: "Its place in the topic is gone; messages that only it has kept go with it.",
        action: "Delete",
        typed: name,
        options: [h("p", { class: "check" }, force, h("label", { for: force.id }, "Also if consumers are connected"))],
      };
    },
    work: () => ask("DELETE", `${topicPath(topic, "subscription", name)}${force.checked ? "?force=true" : ""}`),
    done: `The subscription ${name} was deleted.`,
    after: () => { location.hash = topicView(topic); },
  });
}
