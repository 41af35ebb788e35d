// The button that disconnects one client. It keeps nobody out, and says so: clients of the protocol reconnect.

import { json, path } from "./api.js";
import { actionButton } from "./dialogs.js";
import { many } from "./format.js";

const RETURNS = "and reconnects by itself after a moment, as official clients do.";
const FOLLOWS = {
  consumer: `Its client is told so (CLOSE_CONSUMER) ${RETURNS} What it has not acknowledged is delivered again, perhaps to `
    + "another consumer. To keep it out, take its permission away.",
  producer: `Its client is told so (CLOSE_PRODUCER) ${RETURNS} It sends again what is not confirmed: without deduplication, `
    + "such a message may be stored twice.",
};

/** kind: "consumer" or "producer". subscription: of a consumer. Of a partitioned topic, the client is
 * disconnected from every partition. */
export function disconnectButton({ topic, kind, name, address, subscription, after }) {
  const who = name || address;
  return actionButton("Disconnect", {
    name: `Disconnect ${kind} ${who}`,
    title: `Its client ${RETURNS.replace("and ", "")}`,
    isDanger: true,
    question: () => ({ title: `Disconnect the ${kind} ${who}?`, text: FOLLOWS[kind], action: "Disconnect" }),
    work: () => json("POST", path("magnetar", "v1", "topics", topic.domain, topic.tenant, topic.namespace, topic.name, `${kind}s`, "disconnect"), {
      body: { [kind]: name || "", address: address || "", ...(subscription ? { subscription } : {}) },
    }),
    done: (answer) => `${many(answer.disconnected, kind)} disconnected: the client reconnects.`,
    after,
  });
}
