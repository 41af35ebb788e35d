// A look at messages, which stay where they are: those of a topic from any place on, or what a subscription
// gets next. A look is bounded: some entries at a time, and of each no more than a part of its payload.

import { ApiError, ask, each, get, path, topicPath, wordsOf } from "./api.js";
import { messagesOf, shown, strictText } from "./decode.js";
import { tell } from "./dialogs.js";
import { draft } from "./draft.js";
import { field, h, say, section, visible } from "./dom.js";
import { bytes, many, time } from "./format.js";
import { fullName, parseTopic, topicView, wholeOf } from "./names.js";
import { placesOf } from "./places.js";
import { poll } from "./polling.js";
import { link } from "./table.js";

const ENTRIES = 10;
const AT_ONCE = 3;
const BODY_BYTES_MAX = 1 << 20;
const MESSAGES_OF_ENTRY_MAX = 100;
const MESSAGES_MAX = 200;
const PREVIEW = 120;
/** Entries that one press of a button looks through for what is wanted. */
const SEARCHED = 300;
const FOUND_MAX = 50;
const FOLLOW_EVERY_MS = 1500;

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
    content.replaceChildren(section("Messages", browse({ topic, signal })));
  }
}

const formatChoice = (draw) => h("select", { onchange: draw },
  ["auto", "json", "avro", "text", "hex"].map((kind) => h("option", { value: kind }, kind === "auto" ? "as it is" : kind.toUpperCase())));

/** A list of messages: what was read is given to `show`, with the schemas that it needs. */
function messageList(topic, signal) {
  const node = h("ol", { class: "messages" });
  const schemas = new Map();
  const format = formatChoice(() => draw());
  let items = [];

  async function learn(entries) {
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

  const schemaOf = (entry) => schemas.get(entry.schemaVersion) || null;

  function draw() {
    const open = new Set([...node.querySelectorAll("details[open]")].map((one) => one.dataset.id));
    node.replaceChildren(...items.map(({ entry, message, index }) =>
      drawMessage(topic, entry, message, index, format.value, schemaOf(entry), open)));
  }

  return {
    node,
    format,
    learn,
    schemaOf,
    show(given) {
      items = given;
      draw();
    },
    get items() {
      return items;
    },
  };
}

const itemsOf = (entry) => entry.messages.slice(0, MESSAGES_OF_ENTRY_MAX).map((message, index) => ({ entry, message, index }));

/** What a subscription gets next, with buttons to go on. */
export function peekList({ topic, subscription, signal }) {
  const list = messageList(topic, signal);
  const note = h("p", { class: "quiet", role: "status" });
  const again = h("button", { type: "button", onclick: () => look(0) }, "Look again");
  const back = h("button", { type: "button", onclick: () => look(first - ENTRIES) }, "Before");
  const next = h("button", { type: "button", onclick: () => look(first + ENTRIES) }, "Further");
  let first = 0;

  async function look(from) {
    first = Math.max(0, from);
    for (const button of [again, back, next]) button.disabled = true;
    say(note, "Looking.");
    let isFull = false;
    try {
      const numbers = Array.from({ length: ENTRIES }, (_, index) => first + index + 1);
      let isEnd = false;
      const found = await each(numbers, AT_ONCE, async (number) => {
        const entry = isEnd ? null : await read(topicPath(topic, "subscription", subscription, "position", String(number)), signal);
        isEnd ||= entry === null;
        return entry;
      });
      // What is acknowledged meanwhile moves the others: one may have been seen twice.
      const known = new Set();
      const entries = found.filter((entry) => entry && !known.has(entry.id) && known.add(entry.id));
      isFull = !isEnd;
      await list.learn(entries);
      list.show(entries.flatMap(itemsOf));
      say(note, entries.length ? `${toldOf(entries)}, the next one first.` : first > 0 ? "There are no more." : "Nothing waits: everything is acknowledged.");
    } catch (error) {
      if (signal.aborted) return;
      list.show([]);
      say(note, wordsOf(error));
    }
    again.disabled = false;
    back.disabled = first === 0;
    next.disabled = !isFull;
  }

  look(0);
  return h("div", {}, h("div", { class: "controls" }, field("Show payloads", list.format), h("div", { class: "pager" }, again, back, next)), note, list.node);
}

const toldOf = (entries) =>
  `${many(entries.length, "entry", "entries")} with ${many(entries.reduce((sum, entry) => sum + entry.messages.length, 0), "message")}`;

/** Messages of a topic from any place on, those that are wanted among them, and new ones as they come. */
function browse({ topic, signal }) {
  const list = messageList(topic, signal);
  const note = h("p", { class: "quiet", role: "status" });
  const start = startOf();
  const wanted = wantedOf();
  const search = h("button", { class: "primary" }, "Search");
  const form = h("form", { class: "controls", onsubmit: (event) => { event.preventDefault(); begin(); } },
    start.nodes, wanted.nodes, search);
  const again = h("button", { type: "button", onclick: () => begin() }, "Look again");
  const back = h("button", { type: "button", onclick: () => go(turned.slice(0, -1)) }, "Newer");
  const next = h("button", { type: "button", onclick: () => go([...turned, ahead]) }, "Older");
  const follow = h("button", { type: "button", "aria-pressed": "false", onclick: () => toggle() }, "Follow new messages");
  let isDown = true; // the newest first
  let turned = []; // where each page so far began
  let ahead = null;
  let following = null;

  async function begin() {
    stop();
    lock();
    try {
      const places = await placesOf(topic, signal);
      isDown = start.isDown();
      const first = await start.first(places, topic, signal);
      say(back, isDown ? "Newer" : "Back");
      say(next, isDown ? "Older" : "Further");
      await go([first], places);
    } catch (error) {
      fail(error);
    }
  }

  function lock() {
    for (const button of [again, back, next, search]) button.disabled = true;
    say(note, "Looking.");
  }

  function fail(error) {
    if (signal.aborted) return;
    list.show([]);
    say(note, error instanceof ApiError ? wordsOf(error) : error.message);
    again.disabled = search.disabled = false;
  }

  async function go(pages, given = null) {
    lock();
    try {
      const places = given || await placesOf(topic, signal);
      turned = pages;
      await look(places, places.indexOf(pages.at(-1)));
    } catch (error) {
      fail(error);
    }
    if (signal.aborted) return;
    again.disabled = search.disabled = false;
    back.disabled = turned.length < 2;
    next.disabled = ahead === null;
  }

  async function look(places, from) {
    const isWanted = wanted.filter();
    const step = isDown ? -1 : 1;
    const entries = [];
    let found = [];
    let at = from;
    let seen = 0;
    const isDone = () => (isWanted
      ? seen >= SEARCHED || found.length >= FOUND_MAX
      : entries.length >= ENTRIES || found.length >= MESSAGES_MAX);
    while (places.has(at) && !isDone()) {
      const left = isWanted ? SEARCHED - seen : ENTRIES - entries.length;
      const indexes = Array.from({ length: Math.min(AT_ONCE, left) }, (_, index) => at + step * index).filter(places.has);
      const read3 = (await each(indexes, AT_ONCE, (index) => readAt(topic, places.at(index), signal))).filter(Boolean);
      await list.learn(read3);
      const items = read3.flatMap(itemsOf);
      found.push(...(isWanted ? items.filter(({ entry, message }) => isWanted(entry, message, list.schemaOf(entry))) : items));
      entries.push(...read3);
      seen += indexes.length;
      at += step * indexes.length;
      if (isWanted) say(note, `Looked through ${many(seen, "entry", "entries")}: ${many(found.length, "message")} found.`);
    }
    ahead = places.has(at) ? places.at(at) : null;
    list.show(found);
    say(note, summary(entries, found, seen, Boolean(isWanted)));
  }

  function summary(entries, found, seen, isSearch) {
    const order = isDown ? "the newest first" : "the oldest first";
    if (isSearch) return `${many(found.length, "message")} found in ${many(seen, "entry", "entries")}, ${order}.${ahead ? ` "${next.textContent}" searches on.` : " There are no more entries."}`;
    if (entries.length) return `${toldOf(entries)}, ${order}.`;
    return turned.length > 1 || !isDown ? "There are no more." : "The topic is empty: publish a message, or connect a producer.";
  }

  function stop() {
    following?.abort();
    following = null;
    follow.setAttribute("aria-pressed", "false");
  }

  function toggle() {
    if (following) {
      stop();
      return;
    }
    following = new AbortController();
    signal.addEventListener("abort", () => following?.abort(), { signal: following.signal });
    follow.setAttribute("aria-pressed", "true");
    for (const button of [back, next]) button.disabled = true;
    list.show([]);
    tail(following.signal);
  }

  /** New messages, the newest first, as many as fit. */
  function tail(own) {
    const isWanted = wanted.filter();
    let last = null;
    let passed = 0;
    say(note, "Waiting for new messages.");
    poll(own, FOLLOW_EVERY_MS, async () => {
      const places = await placesOf(topic, own);
      const end = places.total;
      if (last === null) last = end ? places.at(end - 1) : { ledgerId: -1, entryId: -1 };
      const begin = places.indexAfter(last);
      const first = Math.max(begin, end - FOUND_MAX);
      passed += first - begin;
      const indexes = Array.from({ length: end - first }, (_, index) => first + index);
      if (!indexes.length) return;
      const entries = (await each(indexes, AT_ONCE, (index) => readAt(topic, places.at(index), own))).filter(Boolean);
      await list.learn(entries);
      if (own.aborted) return;
      last = places.at(end - 1);
      const items = entries.flatMap(itemsOf).filter(({ entry, message }) => !isWanted || isWanted(entry, message, list.schemaOf(entry)));
      list.show([...items.reverse(), ...list.items].slice(0, MESSAGES_MAX));
      say(note, `New messages, the newest first; at most ${MESSAGES_MAX} are kept here.${passed ? ` ${many(passed, "entry was", "entries were")} passed: they came faster than they can be shown.` : ""}`);
    });
  }

  begin();
  return h("div", {}, form,
    h("div", { class: "controls" }, field("Show payloads", list.format), follow, h("div", { class: "pager" }, again, back, next)),
    note, list.node);
}

/** Where to begin: the newest or the oldest message, a time, or a message. */
function startOf() {
  const kind = h("select", { onchange: () => choose() },
    [["newest", "the newest"], ["oldest", "the oldest"], ["time", "a time"], ["id", "a message"]].map(([value, text]) => h("option", { value }, text)));
  const when = h("input", { type: "datetime-local", step: 1 });
  const id = h("input", { autocomplete: "off", spellcheck: "false", placeholder: "ledger:entry" });
  const at = field("Time", when);
  const message = field("Message id", id);
  function choose() {
    visible(at, kind.value === "time");
    visible(message, kind.value === "id");
  }
  choose();
  return {
    nodes: [field("Begin at", kind), at, message],
    isDown: () => kind.value === "newest",
    async first(places, topic, signal) {
      if (kind.value === "newest") return places.at(places.total - 1);
      if (kind.value === "oldest") return places.at(0);
      if (kind.value === "id") {
        const match = /^(\d{1,15}):(\d{1,15})(:.*)?$/.exec(id.value.trim());
        if (!match) throw new Error("A message id is ledger:entry, as 17:3.");
        return { ledgerId: Number(match[1]), entryId: Number(match[2]) };
      }
      const ms = new Date(when.value).getTime();
      if (Number.isNaN(ms)) throw new Error("Give a time first.");
      return get(topicPath(topic, "messageid", String(ms)), { signal });
    },
  };
}

/** What messages are wanted, by key, property and text. filter(): null, all are. */
function wantedOf() {
  const box = () => h("input", { type: "search", autocomplete: "off", spellcheck: "false" });
  const [key, property, text] = [box(), box(), box()];
  property.placeholder = "name or name=value";
  return {
    nodes: [field("Key has", key), field("Property", property), field("Payload has", text)],
    filter() {
      const [keyPart, pair, part] = [key.value, property.value.trim(), text.value.toLowerCase()];
      if (!keyPart && !pair && !part) return null;
      const [name, value] = pair.includes("=") ? [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)] : [pair, null];
      return (entry, message, schema) =>
        (!keyPart || message.key.includes(keyPart))
        && (!pair || message.properties.some(([its, has]) => its === name && (value === null || has === value)))
        && (!part || (!entry.isEncrypted && !message.isNull && shown(message.payload, "auto", schema).text.toLowerCase().includes(part)));
    },
  };
}

/** The entry at a place; null: there is none, as where a topic was trimmed meanwhile. */
async function readAt(topic, place, signal) {
  return read(topicPath(topic, "ledger", String(place.ledgerId), "entry", String(place.entryId)), signal);
}

/** An entry; null: there is none at this place. */
async function read(where, signal) {
  let answer;
  try {
    answer = await ask("GET", where, { signal });
  } catch (error) {
    // 404: the backlog has not so many, or no entry is at that place.
    if (error instanceof ApiError && error.status === 404 && !/not found/i.test(error.message)) return null;
    throw error;
  }
  const { body, isCut } = await bounded(answer);
  const of = (name) => answer.headers.get(`x-pulsar-${name}`) || "";
  const entry = {
    id: of("message-id"),
    published: of("publish-time"),
    stored: of("broker-entry-metadata-timestamp"),
    /** Of the first message; not a number if the entry has no index. */
    index: parseInt(of("broker-entry-metadata-index"), 10) - Math.max(1, Number(of("num-batch-message"))) + 1,
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

function drawMessage(topic, entry, message, index, format, schema, open) {
  const id = entry.messages.length > 1 ? `${entry.id}:${index}` : entry.id;
  const payload = entry.isEncrypted ? { kind: "encrypted", text: "The payload is encrypted: only its consumers can read it." }
    : message.isNull ? { kind: "no value", text: "(no value: a tombstone)" } : shown(message.payload, format, schema);
  const preview = payload.text.replace(/\s+/g, " ").slice(0, PREVIEW);
  const facts = [
    ["Index", Number.isNaN(entry.index) ? "" : String(entry.index + index)],
    ["Published", time(entry.published)],
    ["Stored", entry.stored ? time(entry.stored) : ""],
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
    pre,
    deeds(topic, entry, message, id, payload));
  return h("li", {}, details);
}

/** What can be done with a message that was looked at. */
function deeds(topic, entry, message, id, payload) {
  const whole = !entry.isCut && !entry.isEncrypted && !message.isNull && !entry.trouble;
  return h("div", { class: "actions" },
    h("button", { type: "button", onclick: () => copy(payload.text) }, "Copy"),
    whole ? h("button", { type: "button", onclick: () => download(id, message.payload) }, "Download") : null,
    whole ? h("button", { type: "button", onclick: () => publishAgain(topic, message, id, payload) }, "Publish again") : null);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages that came over plain HTTP from elsewhere have no clipboard but by this way of former times.
    const box = h("textarea", { value: text, "aria-hidden": "true" });
    document.body.append(box);
    box.select();
    const isDone = document.execCommand("copy");
    box.remove();
    if (!isDone) {
      tell("The browser does not let this page copy.", true);
      return;
    }
  }
  tell("Copied.");
}

function download(id, payload) {
  const address = URL.createObjectURL(new Blob([payload], { type: "application/octet-stream" }));
  h("a", { href: address, download: `message-${id.replaceAll(":", "-")}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** Properties that tell of a message's way into a retry or dead letter topic, not of the message. */
const OF_THE_WAY = new Set(["REAL_TOPIC", "REAL_SUBSCRIPTION", "ORIGIN_MESSAGE_ID", "RECONSUMETIMES", "DELAY_TIME",
  "EXCEPTION", "EXCEPTION_MESSAGE"]);

/** Fill in the form that publishes, for the topic that a dead letter came from, else for this one. */
function publishAgain(topic, message, id, payload) {
  const real = parseTopic(new Map(message.properties).get("REAL_TOPIC") || "") || topic;
  const target = wholeOf(real) || real;
  const text = strictText(message.payload);
  draft.fill(fullName(target), {
    id,
    from: fullName(topic),
    key: message.key,
    properties: message.properties.filter(([name]) => !OF_THE_WAY.has(name)).map(([name, value]) => `${name}=${value}`).join("\n"),
    ...(payload.kind === "avro" ? { format: "json", payload: payload.text }
      : text !== null ? { format: payload.kind === "json" ? "json" : "text", payload: text }
        : { format: "hex", payload: [...message.payload].map((byte) => byte.toString(16).padStart(2, "0")).join(" ") }),
  });
  location.hash = topicView(target, "publish");
}
