// A look at messages, which stay where they are: the newest of a topic, or what a subscription gets
// next. A look is bounded: some entries at a time, and of each no more than a part of its payload.

import { ApiError, ask, each, get, path, topicPath, wordsOf } from "./api.js";
import { messagesOf, shown } from "./decode.js";
import { field, h, say, section } from "./dom.js";
import { bytes, many, time } from "./format.js";
import { topicView } from "./names.js";
import { link } from "./table.js";

const ENTRIES = 10;
const AT_ONCE = 3;
const BODY_BYTES_MAX = 1 << 20;
const MESSAGES_OF_ENTRY_MAX = 100;
const PREVIEW = 120;

/** The tab "Messages". */
export function showMessages({ topic, partitions, content, signal }) {
  if (topic.domain !== "persistent") {
    content.replaceChildren(h("p", { class: "empty" }, "The topic keeps no messages: there is nothing to look at."));
  } else if (partitions) {
    const links = Array.from({ length: Math.min(partitions, 1000) }, (_, index) => {
      const part = { ...topic, name: `${topic.name}-partition-${index}` };
      return h("li", {}, link(topicView(part, "messages"), String(index)));
    });
    content.replaceChildren(section("Messages of which partition?", h("ul", { class: "inline" }, links)));
  } else {
    content.replaceChildren(section("Newest messages", peekList({ topic, signal })));
  }
}

/** A list with buttons to go on. subscription: what it gets next; else the topic's newest. */
export function peekList({ topic, subscription = "", signal }) {
  const list = h("ol", { class: "messages" });
  const note = h("p", { class: "quiet", role: "status" });
  const format = h("select", { onchange: () => draw() },
    ["auto", "json", "avro", "text", "hex"].map((kind) => h("option", { value: kind }, kind === "auto" ? "as it is" : kind.toUpperCase())));
  const again = h("button", { type: "button", onclick: () => look(0) }, "Look again");
  const back = h("button", { type: "button", onclick: () => look(first - ENTRIES) }, subscription ? "Before" : "Newer");
  const next = h("button", { type: "button", onclick: () => look(first + ENTRIES) }, subscription ? "Further" : "Older");
  const schemas = new Map();
  let first = 0;
  let entries = [];
  let isFull = false;

  const where = (number) => subscription
    ? topicPath(topic, "subscription", subscription, "position", number)
    : `${topicPath(topic, "examinemessage")}?initialPosition=latest&messagePosition=${number}`;

  async function look(from) {
    first = Math.max(0, from);
    for (const button of [again, back, next]) button.disabled = true;
    say(note, "Looking.");
    try {
      const numbers = Array.from({ length: ENTRIES }, (_, index) => first + index + 1);
      let isEnd = false;
      const found = await each(numbers, AT_ONCE, async (number) => {
        const entry = isEnd ? null : await read(where(String(number)), signal);
        isEnd ||= entry === null;
        return entry;
      });
      // What is published meanwhile moves the others: one may have been seen twice.
      const known = new Set();
      entries = found.filter((entry) => entry && !known.has(entry.id) && known.add(entry.id));
      isFull = !isEnd;
      await learnSchemas();
      draw();
      tell();
    } catch (error) {
      if (signal.aborted) return;
      entries = [];
      isFull = false;
      list.replaceChildren();
      say(note, wordsOf(error));
    }
    again.disabled = false;
    back.disabled = first === 0;
    next.disabled = !isFull;
  }

  function tell() {
    const messages = entries.reduce((sum, entry) => sum + entry.messages.length, 0);
    if (entries.length) say(note, `${many(entries.length, "entry", "entries")} with ${many(messages, "message")}${subscription ? ", the next one first" : ", the newest first"}.`);
    else if (first > 0) say(note, "There are no more.");
    else say(note, subscription ? "Nothing waits: everything is acknowledged." : "The topic is empty: publish a message, or connect a producer.");
  }

  async function learnSchemas() {
    const versions = new Set(entries.map((entry) => entry.schemaVersion));
    await each([...versions].filter((version) => !schemas.has(version)), 2, async (version) => {
      const base = ["admin", "v2", "schemas", topic.tenant, topic.namespace, topic.name.replace(/-partition-\d+$/, ""), "schema"];
      try {
        schemas.set(version, await get(version === "" ? path(...base) : path(...base, version), { signal }));
      } catch (error) {
        if (signal.aborted) throw error;
        schemas.set(version, null); // None, or none that may be seen: the bytes speak for themselves.
      }
    });
  }

  function draw() {
    const open = new Set([...list.querySelectorAll("details[open]")].map((one) => one.dataset.id));
    list.replaceChildren(...entries.flatMap((entry) => entry.messages.slice(0, MESSAGES_OF_ENTRY_MAX).map((message, index) =>
      drawMessage(entry, message, index, format.value, schemas.get(entry.schemaVersion) || null, open))));
  }

  look(0);
  return h("div", {}, h("div", { class: "controls" }, field("Show payloads", format), h("div", { class: "pager" }, again, back, next)), note, list);
}

/** An entry; null: there is none at this place. */
async function read(where, signal) {
  let answer;
  try {
    answer = await ask("GET", where, { signal });
  } catch (error) {
    // 404: the backlog has not so many; 412: the topic has not.
    if (error instanceof ApiError && [404, 412].includes(error.status) && !/not found/i.test(error.message)) return null;
    throw error;
  }
  const { body, isCut } = await bounded(answer);
  const of = (name) => answer.headers.get(`x-pulsar-${name}`) || "";
  const entry = {
    id: of("message-id"),
    published: of("publish-time"),
    producer: of("producer-name"),
    compression: of("compression"),
    isEncrypted: of("is-encrypted") === "true",
    schemaVersion: versionOf(of("base64-schema-version-b64encoded")),
    size: body.length,
    isCut,
    trouble: "",
    messages: [],
  };
  try {
    entry.messages = messagesOf(answer.headers, body, isCut);
  } catch (error) {
    entry.trouble = error.message;
    entry.messages = [{ key: "", properties: [], eventTime: "", payload: body, isNull: false }];
  }
  return entry;
}

async function bounded(answer) {
  const reader = answer.body.getReader();
  const parts = [];
  let length = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    length += value.length;
    if (length > BODY_BYTES_MAX) {
      await reader.cancel();
      break;
    }
  }
  const body = new Uint8Array(Math.min(length, BODY_BYTES_MAX));
  let at = 0;
  for (const part of parts) {
    const fits = part.subarray(0, body.length - at);
    body.set(fits, at);
    at += fits.length;
  }
  return { body, isCut: length > BODY_BYTES_MAX };
}

/** The number of a schema's version: eight bytes, base64. */
function versionOf(text) {
  try {
    const raw = atob(text);
    if (raw.length !== 8) return "";
    return String([...raw].reduce((value, letter) => value * 256n + BigInt(letter.charCodeAt(0)), 0n));
  } catch {
    return "";
  }
}

function drawMessage(entry, message, index, format, schema, open) {
  const id = entry.messages.length > 1 ? `${entry.id}:${index}` : entry.id;
  const payload = entry.isEncrypted ? { kind: "encrypted", text: "The payload is encrypted: only its consumers can read it." }
    : message.isNull ? { kind: "no value", text: "(no value: a tombstone)" } : shown(message.payload, format, schema);
  const preview = payload.text.replace(/\s+/g, " ").slice(0, PREVIEW);
  const facts = [
    ["Published", time(entry.published)],
    ["Event time", message.eventTime ? time(message.eventTime) : ""],
    ["Producer", entry.producer],
    ["Key", message.key],
    ["Size", `${bytes(message.payload.length)}${entry.isCut ? " (the entry is longer, and cut here)" : ""}`],
    ["Compressed by", entry.compression === "NONE" ? "" : entry.compression],
    ["Schema version", entry.schemaVersion],
    ["Trouble", entry.trouble],
  ].filter(([, value]) => value);
  const pre = h("pre", { tabindex: "0", role: "region", "aria-label": `Payload of ${id}` }, payload.text);
  const details = h("details", { "data-id": id, open: open.has(id) },
    h("summary", {},
      h("span", { class: "id" }, id), " ", h("span", { class: "when" }, time(entry.published)), " ",
      message.key ? h("span", { class: "key-of" }, message.key) : null, " ",
      h("span", { class: "kind" }, payload.kind), " ", h("span", { class: "preview" }, preview)),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    message.properties.length
      ? h("dl", { class: "facts properties", "aria-label": "Properties" }, message.properties.slice(0, 200).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))
      : null,
    pre);
  return h("li", {}, details);
}
