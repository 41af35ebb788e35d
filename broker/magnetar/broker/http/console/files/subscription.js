// One subscription: its consumers, its backlog, and what operators do with it.

import { ask, isAtRest, json, restingStats, topicPath } from "./api.js";
import { state } from "./cluster.js";
import { actionButton } from "./dialogs.js";
import { field, h, identity, say, section, visible } from "./dom.js";
import { amount, count, many, rate, time } from "./format.js";
import { peekList } from "./messages.js";
import { crumbsOf, fullName, topicView } from "./names.js";
import { plot } from "./plot.js";
import { poll } from "./polling.js";
import { adviceFor, isStalled } from "./reasons.js";
import { link, table } from "./table.js";
import { stateOf, subscriptionView } from "./topic.js";

const EVERY_MS = 3000;

export function showSubscription({ frame, parts, signal }) {
  const [domain, tenant, namespace, topicName, name] = parts;
  const topic = { domain, tenant, namespace, name: topicName };
  const where = topicPath(topic, "subscription", name);
  const out = plot("Delivered", [{ name: "messages", key: `${fullName(topic)}/${name}/out`, format: rate }]);
  const backlog = plot("Backlog", [{ name: "entries", key: `${fullName(topic)}/${name}/backlog-plot`, format: amount }]);
  const flow = h("p", { class: "told", role: "status" }, "Loading.");
  const consumers = table({
    label: "Consumers",
    key: (row) => `${row.address}/${row.consumerName}/${row.connectedSince}`,
    empty: "No consumer is connected: the backlog grows until one comes.",
    columns: [
      { title: "Consumer", text: (row) => row.consumerName || "(no name)" },
      { title: "Out", number: true, text: (row) => rate(row.msgRateOut) },
      { title: "Sent again", number: true, text: (row) => rate(row.msgRateRedeliver) },
      { title: "Permits", number: true, text: (row) => count(row.availablePermits) },
      { title: "Unacknowledged", number: true, text: (row) => count(row.unackedMessages) },
      { title: "State", draw: (row, cell) => state(cell, row.blockedConsumerOnUnackedMsgs ? ["warn", "has too many unacknowledged"] : row.availablePermits > 0 ? ["ok", "wants messages"] : ["", "asks for none"]) },
      { title: "Since", text: (row) => time(row.connectedSince) },
      { title: "Address", text: (row) => row.address },
      { title: "Client", text: (row) => row.clientVersion || "–" },
    ],
  });
  const facts = h("dl", { class: "facts" });
  const trouble = h("p", { class: "refused", role: "alert", hidden: true });
  const content = [
    trouble,
    h("div", { class: "plots" }, out.node, backlog.node),
    section("What happens", flow),
    facts,
    section("Consumers", consumers.node),
    section("Actions", actions({ topic, name, where, after: () => look() })),
  ];
  const next = h("div", {});
  if (domain === "persistent") content.push(section("Next messages", next));
  frame({
    title: name,
    crumbs: crumbsOf(topic, { text: name, href: subscriptionView(topic, name) }),
    content,
  });

  const look = poll(signal, EVERY_MS, async () => {
    const stats = await restingStats(topic, { signal });
    if (isAtRest(stats)) {
      visible(trouble, true);
      trouble.replaceChildren("The topic is at rest: nobody uses it, and no broker has it loaded. ", link(topicView(topic), "To the topic, to have it loaded"));
      say(flow, "Nothing: the topic is at rest.");
      return;
    }
    const found = Object.hasOwn(stats.subscriptions, name) ? stats.subscriptions[name] : null;
    visible(trouble, !found);
    for (const each of content.slice(1)) visible(each, Boolean(found));
    if (!found) {
      trouble.replaceChildren(`The topic has no subscription ${name} (any more). `, link(topicView(topic), "To the topic"));
      return;
    }
    if (!next.firstChild) next.append(peekList({ topic, subscription: name, signal }));
    out.push([found.msgRateOut]);
    backlog.push([found.msgBacklog]);
    consumers.update(found.consumers || []);
    const [, words] = stateOf(found);
    say(flow, isStalled(found) || (found.whyIdleText && !(found.msgRateOut > 0))
      ? `Nothing is delivered just now: ${found.whyIdleText}. ${found.msgBacklog > 0 ? adviceFor(found.whyIdle) : ""}`
      : `${words[0].toUpperCase()}${words.slice(1)}.`);
    tellFacts(facts, {
      Type: found.type || "–",
      Kept: found.isDurable ? "yes" : "no: it goes with its consumer",
      Backlog: found.backlogMessagesEstimate >= 0
        ? `about ${many(found.backlogMessagesEstimate, "message")} in ${many(found.msgBacklog, "entry", "entries")}`
        : many(found.msgBacklog, "entry", "entries"),
      Unacknowledged: many(found.unackedMessages, "message"),
      Delayed: many(found.msgDelayed, "entry", "entries"),
      Expired: many(found.totalMsgExpired, "entry", "entries"),
      "Active consumer": found.activeConsumerName || "–",
    });
  });
}

function tellFacts(list, facts) {
  const text = JSON.stringify(facts);
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...Object.entries(facts).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function actions({ topic, name, where, after }) {
  if (topic.domain !== "persistent") return h("p", { class: "empty" }, "The topic keeps nothing: there is nothing to skip or to move.");
  const skipped = h("input", { type: "number", min: 1, max: 1_000_000, value: "1" });
  const to = h("input", { type: "datetime-local", step: 1 });
  const skip = actionButton("Skip", {
    isDanger: true,
    question: () => ({
      title: `Skip ${many(Number(skipped.value), "entry", "entries")}?`,
      text: `The oldest of the backlog of ${name} are acknowledged without being delivered. The subscription never gets them.`,
      action: "Skip",
    }),
    work: () => ask("POST", `${where}/skip/${Math.floor(Number(skipped.value))}`),
    done: "Skipped.",
    after,
  });
  const reset = actionButton("Reset", {
    isDanger: true,
    question: () => ({
      title: `Move ${name} to ${to.value ? time(to.value) : "…"}?`,
      text: "Consumers are disconnected and go on there: what was published since comes again, what lies before is passed.",
      action: "Reset",
    }),
    work() {
      const when = new Date(to.value).getTime();
      if (Number.isNaN(when)) throw new Error("give a time first");
      return json("POST", `${where}/resetcursor/${when}`);
    },
    done: "The subscription was moved.",
    after,
  });
  const clear = actionButton("Clear the backlog", {
    isDanger: true,
    question: () => ({
      title: `Clear the backlog of ${name}?`,
      text: "Everything that waits is acknowledged without being delivered. The subscription never gets it.",
      action: "Clear",
    }),
    work: () => ask("POST", `${where}/skip_all`),
    done: "The backlog is cleared.",
    after,
  });
  let force;
  const remove = actionButton("Delete", {
    isDanger: true,
    question() {
      force = h("input", { type: "checkbox", id: identity("force") });
      return {
        title: `Delete the subscription ${name}?`,
        text: "Its place in the topic is gone; messages that only it has kept go with it.",
        action: "Delete",
        typed: name,
        options: [h("p", { class: "check" }, force, h("label", { for: force.id }, "Also if consumers are connected"))],
      };
    },
    work: () => ask("DELETE", `${where}${force.checked ? "?force=true" : ""}`),
    done: `The subscription ${name} was deleted.`,
    after: () => { location.hash = topicView(topic); },
  });
  return h("div", { class: "controls" },
    h("div", { class: "joined" }, field("Entries to skip", skipped), skip),
    h("div", { class: "joined" }, field("Go on at", to), reset),
    clear, remove);
}
