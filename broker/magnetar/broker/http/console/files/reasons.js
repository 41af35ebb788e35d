// Why nothing flows: the broker names the reason of each subscription (`whyIdle`); here is what can
// be done about it, and what of the topic itself stands in the way.

import { many } from "./format.js";

const ADVICE = {
  no_consumer: "Start a consumer, or delete the subscription if nobody needs it: it keeps messages from going.",
  nothing_new: "The consumers have everything and have not acknowledged it: see how many each of them holds.",
  no_permits: "The consumers are slow or stuck: look at what they do with the messages they have.",
  not_writable: "The network or the consumers do not take what is sent: look there.",
  consumers_unacked: "Have the consumers acknowledge, or raise max unacknowledged messages per consumer.",
  subscription_unacked: "Have the consumers acknowledge, or raise max unacknowledged messages per subscription.",
  rate_limit: "Raise the dispatch rate of the topic, subscription or namespace if this is too slow.",
  delayed: "Nothing to do: messages come when they are due.",
  reading: "If this lasts, look at the bookies.",
  draining: "The former consumer of these keys must acknowledge or disconnect first.",
  no_owner: "Consumers name their hash ranges themselves, and these do not cover all: start the missing one.",
  look_ahead: "Find the slow consumer: the messages of its keys hold up the others.",
  choosing: "Nothing to do: this takes a moment.",
  unreadable: "Bring back the bookies that have these entries; magnetar admin subscriptions skip-unreadable gives them up.",
  paused: "If this lasts, look at the broker's log.",
};

/** Between two messages these are what anybody finds who looks: no trouble while something flows. */
const MOMENTARY = new Set(["nothing_new", "reading", "choosing", "not_writable", "paused"]);

/** Nothing is wrong with these: messages that are not due yet are delivered when they are. */
const NEEDS_NOBODY = new Set(["nothing_left", "delayed"]);

/** Whether a subscription has something to deliver and does not. */
export function isStalled(subscription) {
  const code = subscription.whyIdle;
  if (!code || NEEDS_NOBODY.has(code) || !(subscription.msgBacklog > 0)) return false;
  return !(MOMENTARY.has(code) && subscription.msgRateOut > 0);
}

/** What to do about consumers that take messages and acknowledge none. */
export const HOARDING_ADVICE = "Look at what this consumer does: nobody else gets the messages that it holds. To take them from it, end it, or disconnect it (the button of the consumer): others get them then.";

/** Who of a subscription holds messages and acknowledges none, in words; empty: nobody. */
export function hoarding(subscription) {
  const held = new Map((subscription.consumers || []).map((each) => [each.consumerName, each.unackedMessages]));
  return (subscription.hoarders || []).map((name) =>
    `consumer ${name || "without a name"} holds ${many(held.get(name), "message")} and acknowledges none`);
}

/** The subscriptions of a topic, or of its partitions, that have a backlog and deliver nothing, and those
 * whose consumers hoard. */
export function stalled(stats) {
  const found = [];
  const parts = stats.partitions && typeof stats.partitions === "object" ? Object.entries(stats.partitions) : [["", stats]];
  for (const [part, each] of parts)
    for (const [name, subscription] of Object.entries(each.subscriptions || {})) {
      for (const text of hoarding(subscription))
        found.push({ part, name, code: `hoarding ${text.split(" holds ")[0]}`, text, backlog: subscription.msgBacklog, advice: HOARDING_ADVICE });
      if (isStalled(subscription))
        found.push({
          part,
          name,
          code: subscription.whyIdle,
          text: subscription.whyIdleText,
          backlog: subscription.msgBacklog,
          advice: ADVICE[subscription.whyIdle] || "",
        });
    }
  return found;
}

export const adviceFor = (code) => ADVICE[code] || "";

/** What of a topic keeps publishers from publishing, in words. */
export function publishTrouble(stats, isTerminated) {
  const found = [];
  if (isTerminated) found.push("The topic is terminated: nothing more can be published to it.");
  if (stats.backlogQuotaLimitSize > 0 && stats.backlogSize >= stats.backlogQuotaLimitSize)
    found.push("The backlog quota is used up: producers are refused, or the oldest messages are dropped, as the policy says.");
  if (stats.publishRateLimitedTimes > 0)
    found.push(`Publishers were held up by the publish rate ${many(stats.publishRateLimitedTimes, "time")} since the topic was loaded.`);
  if (stats.waitingPublishers > 0)
    found.push(`${many(stats.waitingPublishers, "producer")} waiting for an exclusive producer to leave.`);
  return found;
}
