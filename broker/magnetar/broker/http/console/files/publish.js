// Publish one message, through the broker's WebSocket interface: the topic may be anywhere.

import { get, path, token, topicPath, wordsOf } from "./api.js";
import { tell } from "./dialogs.js";
import { draft } from "./draft.js";
import { field, h, say, section, visible } from "./dom.js";
import { fullName, topicView } from "./names.js";
import { newestSchema } from "./schemas.js";
import { link } from "./table.js";

const TIMEOUT_MS = 20_000;
const PAYLOAD_BYTES_MAX = 4 << 20;
const NUMBERS = ["BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE"];
/** What is to be written for a schema whose values have a text. */
const TAKES = {
  AVRO: "Write JSON: it is encoded by the schema.",
  JSON: "Write JSON, an object.",
  STRING: "Write text.",
  ...Object.fromEntries(NUMBERS.map((type) => [type, "Write one value: it is encoded by the schema."])),
};

/** The tab "Publish". */
export function showPublish({ topic, content, signal }) {
  const payload = h("textarea", { rows: 8, spellcheck: "false", class: "code" });
  const format = h("select", {}, [["text", "text"], ["json", "JSON, checked"], ["hex", "bytes in hex"], ["base64", "bytes in base64"]].map(
    ([value, text]) => h("option", { value }, text)));
  const key = h("input", { autocomplete: "off", spellcheck: "false" });
  const properties = h("textarea", { rows: 3, spellcheck: "false", class: "code" });
  const trouble = h("p", { class: "refused", role: "alert", hidden: true });
  const send = h("button", { class: "primary" }, "Publish");
  const last = h("p", { class: "told", role: "status" });
  const schemaNote = h("p", { class: "quiet", hidden: true });
  const form = h("form", { class: "sheet", onsubmit: submit },
    schemaNote,
    field("Payload", payload),
    h("div", { class: "controls" }, field("Payload format", format), field("Key", key, "Messages with a key stay in order, and in one partition.")),
    field("Properties", properties, "One per line: name=value"),
    trouble, h("div", { class: "actions" }, send), last);
  content.replaceChildren(section("Publish a message", form));
  const again = draft.take(fullName(topic));
  if (again) {
    payload.value = again.payload;
    format.value = again.format;
    key.value = again.key;
    properties.value = again.properties;
    say(last, `Filled in from message ${again.id} of ${again.from}. It stays where it is.`);
  }
  warnOfSchema();

  async function warnOfSchema() {
    try {
      const schema = await newestSchema(topic, signal);
      if (!schema) return;
      visible(schemaNote, true);
      say(schemaNote, `The topic has a schema (${schema.type}). ${TAKES[schema.type] || "Its values have no text: publish bytes that are encoded already."} Bytes in hex and base64 go out as they are.`);
    } catch {
      // None that may be seen: nothing to warn of.
    }
  }

  async function submit(event) {
    event.preventDefault();
    visible(trouble, false);
    send.disabled = true;
    try {
      const message = { payload: encoded(payload.value, format.value), properties: pairs(properties.value) };
      if (key.value) message.key = key.value;
      const id = await publish(topic, message, ["text", "json"].includes(format.value));
      say(last, `Published as ${id}.`);
      if (topic.domain === "persistent")
        last.append(" ", link(topicView(topic, "messages"), "Look at it"));
      tell("The message is stored.");
    } catch (error) {
      if (signal.aborted) return;
      say(trouble, `Not published: ${error.status === undefined ? error.message : wordsOf(error)}`);
      visible(trouble, true);
    } finally {
      send.disabled = false;
    }
  }
}

/** What was typed, as base64. Throws with words for whoever typed it. */
function encoded(text, format) {
  let bytes;
  if (format === "hex") {
    const digits = text.replace(/\s+|0x/g, "");
    if (!/^([0-9a-f]{2})*$/i.test(digits)) throw new Error("this is not hex: two digits for each byte are wanted.");
    bytes = Uint8Array.from(digits.match(/../g) || [], (pair) => parseInt(pair, 16));
  } else if (format === "base64") {
    try {
      bytes = Uint8Array.from(atob(text.replace(/\s+/g, "")), (letter) => letter.charCodeAt(0));
    } catch {
      throw new Error("this is not base64.");
    }
  } else {
    if (format === "json") {
      try {
        JSON.parse(text);
      } catch (error) {
        throw new Error(`this is not JSON: ${error.message}`);
      }
    }
    bytes = new TextEncoder().encode(text);
  }
  if (bytes.length > PAYLOAD_BYTES_MAX) throw new Error(`this is more than ${PAYLOAD_BYTES_MAX >> 20} MB.`);
  let letters = "";
  for (let at = 0; at < bytes.length; at += 8192) letters += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(letters);
}

function pairs(text) {
  const found = [];
  for (const line of text.split("\n")) {
    if (!line.trim()) continue;
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`a property is name=value, and this is not: ${line}`);
    found.push([line.slice(0, at), line.slice(at + 1)]);
  }
  return Object.fromEntries(found);
}

/** Publish, and wait until it is stored; text is encoded by the topic's schema. Returns the message id in words. */
function publish(topic, message, isText) {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const query = `?encodeBySchema=${isText}${token.get() ? `&token=${encodeURIComponent(token.get())}` : ""}`;
  const where = path("ws", "v2", "producer", topic.domain, topic.tenant, topic.namespace, topic.name);
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(`${scheme}://${location.host}${where}${query}`);
    const timer = setTimeout(() => end(() => reject(new Error(`no answer within ${TIMEOUT_MS / 1000} s; nobody knows whether it is stored. Look before you publish it again.`))), TIMEOUT_MS);
    let isOpen = false;
    let isDone = false;
    function end(how) {
      if (isDone) return;
      isDone = true;
      clearTimeout(timer);
      socket.close();
      how();
    }
    socket.onopen = () => {
      isOpen = true;
      socket.send(JSON.stringify(message));
    };
    socket.onmessage = (event) => {
      const answer = JSON.parse(event.data);
      if (answer.result === "ok") end(() => resolve(idOf(answer.messageId)));
      else end(() => reject(new Error(answer.errorMsg || answer.result)));
    };
    socket.onclose = () => end(() => {
      if (isOpen) reject(new Error("the broker ended the connection; nobody knows whether it is stored. Look before you publish it again."));
      else whyRefused(topic).then((words) => reject(new Error(words)), reject);
    });
  });
}

/** A browser does not tell why a WebSocket was refused: the topic is asked instead. */
async function whyRefused(topic) {
  try {
    const { partitions } = await get(topicPath(topic, "partitions"));
    if (!partitions && topic.domain === "persistent") {
      const stored = await get(topicPath(topic, "internalStats"));
      if (stored.state === "Terminated") return "the topic is terminated.";
    }
  } catch (error) {
    if (error.status !== undefined) return wordsOf(error);
  }
  return "the broker refuses a producer here. You may not publish to the topic, its backlog quota is used up, another producer has it for itself, or WebSockets are switched off (MAGNETAR_BROKER_WEBSOCKET). Its log says which.";
}

/** ledger:entry of Pulsar's message id: base64 of MessageIdData with ledger 1 and entry 2. */
function idOf(text) {
  try {
    const raw = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const numbers = {};
    let at = 0;
    const varint = () => {
      let value = 0n;
      for (let shift = 0n; at < raw.length; shift += 7n) {
        const byte = raw[at++];
        value |= BigInt(byte & 0x7f) << shift;
        if (byte < 0x80) break;
      }
      return value;
    };
    while (at < raw.length) {
      const tag = Number(varint());
      if (tag & 7) break;
      numbers[tag >> 3] = varint();
    }
    return `${numbers[1]}:${numbers[2]}`;
  } catch {
    return text;
  }
}
