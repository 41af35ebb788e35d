// A look at messages, which stay where they are: those of a topic from any place on, or what a subscription
// gets next. A look is bounded: some entries at a time, and of each no more than a part of its payload.

import { ApiError, each, get, path, topicPath, wordsOf } from "./api.js";
import { shown, strictText } from "./decode.js";
import { actionButton, tell } from "./dialogs.js";
import { draft } from "./draft.js";
import { field, h, say, section, visible } from "./dom.js";
import { readAt } from "./entries.js";
import { bytes, many, time } from "./format.js";
import { fullName, parseTopic, partitionOf, topicView, wholeOf } from "./names.js";
import { backlogOf, PARTITIONS_MAX, sightOf } from "./parts.js";
import { poll } from "./polling.js";
import { newestSchema } from "./schemas.js";
import { link } from "./table.js";

const ENTRIES = 10;
const AT_ONCE = 3;
const MESSAGES_OF_ENTRY_MAX = 100;
const MESSAGES_MAX = 200;
const PREVIEW = 120;
/** Entries that one press of a button looks through for what is wanted. */
const SEARCHED = 300;
const FOUND_MAX = 50;
/** New messages of so many partitions are looked for at this pace; of more, more slowly: a look asks for each. */
const FOLLOW_EVERY_MS = 1500;
const FOLLOW_PARTITIONS = 10;

/** The tab "Messages". */
export function showMessages({ topic, partitions, content, signal }) {
  if (topic.domain !== "persistent") {
    content.replaceChildren(h("p", { class: "empty" }, "The topic keeps no messages: there is nothing to look at."));
  } else if (partitions > PARTITIONS_MAX) {
    const links = Array.from({ length: Math.min(partitions, 1000) }, (_, index) => {
      const part = { ...topic, name: `${topic.name}-partition-${index}` };
      return h("li", {}, link(topicView(part, "messages"), String(index)));
    });
    content.replaceChildren(section("Messages of which partition?",
      h("div", {}, h("p", { class: "told" }, `Topics with more than ${PARTITIONS_MAX} partitions are shown one partition at a time.`), h("ul", { class: "inline" }, links))));
  } else {
    content.replaceChildren(section("Messages", browse({ topic, partitions, signal })));
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
      try {
        schemas.set(version, version === "" ? await newestSchema(topic, signal)
          : await get(path("admin", "v2", "schemas", topic.tenant, topic.namespace, topic.name.replace(/-partition-\d+$/, ""), "schema", version), { signal }));
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
      drawMessage(entry, message, index, format.value, schemaOf(entry), open)));
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

/** What a subscription gets next, of one topic or of all its partitions, with buttons to go on. */
export function peekList({ topic, subscription, partitions, signal }) {
  const list = messageList(topic, signal);
  const note = h("p", { class: "quiet", role: "status" });
  const again = h("button", { type: "button", onclick: () => look([]) }, "Reload");
  const back = h("button", { type: "button", onclick: () => look(turned.slice(0, -1)) }, "Previous");
  const next = h("button", { type: "button", onclick: () => look([...turned, ahead]) }, "Next");
  let turned = []; // where each page so far began
  let ahead = null;

  async function look(pages) {
    for (const button of [again, back, next]) button.disabled = true;
    say(note, "Looking.");
    try {
      const sight = await backlogOf(topic, subscription, partitions, signal);
      turned = pages.length ? pages : [sight.oldest()];
      const reader = sight.reader(turned.at(-1), false, ENTRIES, signal);
      // What is acknowledged meanwhile moves the others: one may have been seen twice.
      const known = new Set();
      const entries = (await reader.take(ENTRIES)).filter((entry) => !known.has(entry.id) && known.add(entry.id));
      ahead = reader.next();
      await list.learn(entries);
      list.show(entries.flatMap(itemsOf));
      say(note, told(entries, sight.resting.length));
    } catch (error) {
      if (signal.aborted) return;
      ahead = null;
      list.show([]);
      say(note, wordsOf(error));
    }
    again.disabled = false;
    back.disabled = turned.length < 2;
    next.disabled = ahead === null;
  }

  function told(entries, resting) {
    const rest = resting ? ` ${many(resting, "partition")} with a backlog ${resting === 1 ? "is" : "are"} at rest, and not looked into.` : "";
    if (entries.length) return `${toldOf(entries)}, the next one first${partitions ? ", by the time of publishing" : ""}.${rest}`;
    return (turned.length > 1 ? "There are no more." : rest ? "Nothing else waits." : "Nothing waits: everything is acknowledged.") + rest;
  }

  look([]);
  return h("div", {}, h("div", { class: "controls" }, field("Show payloads", list.format), h("div", { class: "pager" }, again, back, next)), note, list.node);
}

const toldOf = (entries) =>
  `${many(entries.length, "entry", "entries")} with ${many(entries.reduce((sum, entry) => sum + entry.messages.length, 0), "message")}`;

/** Messages of a topic, or of all of its partitions, from any place on, those that are wanted among them, and
 * new ones as they come. */
function browse({ topic, partitions, signal }) {
  const list = messageList(topic, signal);
  const note = h("p", { class: "quiet", role: "status" });
  const start = startOf();
  const wanted = wantedOf();
  const search = h("button", { class: "primary" }, "Search");
  const form = h("form", { class: "controls", onsubmit: (event) => { event.preventDefault(); begin(); } },
    start.nodes, wanted.nodes, search);
  const again = h("button", { type: "button", onclick: () => begin() }, "Reload");
  const back = h("button", { type: "button", onclick: () => go(turned.slice(0, -1)) }, "Newer");
  const next = h("button", { type: "button", onclick: () => go([...turned, ahead]) }, "Older");
  const follow = h("button", { type: "button", "aria-pressed": "false", onclick: () => toggle() }, "Follow new messages");
  const resting = restingNote(() => begin());
  let isDown = true; // the newest first
  let turned = []; // where each page so far began
  let ahead = null;
  let following = null;

  async function begin() {
    stop();
    lock();
    try {
      const sight = await see(signal);
      isDown = start.isDown();
      const first = await start.first(sight, signal);
      say(back, isDown ? "Newer" : "Previous");
      say(next, isDown ? "Older" : "Next");
      await go([first], sight);
    } catch (error) {
      fail(error);
    }
  }

  async function see(until) {
    const sight = await sightOf(topic, partitions, until);
    resting.show(sight.resting);
    return sight;
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
      const sight = given || await see(signal);
      turned = pages;
      await look(sight, pages.at(-1));
    } catch (error) {
      fail(error);
    }
    if (signal.aborted) return;
    again.disabled = search.disabled = false;
    back.disabled = turned.length < 2;
    next.disabled = ahead === null;
  }

  async function look(sight, from) {
    const isWanted = wanted.filter();
    const reader = sight.reader(from, isDown, isWanted ? SEARCHED : ENTRIES, signal);
    const entries = [];
    const found = [];
    while (found.length < (isWanted ? FOUND_MAX : MESSAGES_MAX)) {
      const some = await reader.take(AT_ONCE);
      if (!some.length) break;
      await list.learn(some);
      const items = some.flatMap(itemsOf);
      found.push(...(isWanted ? items.filter(({ entry, message }) => isWanted(entry, message, list.schemaOf(entry))) : items));
      entries.push(...some);
      if (isWanted) say(note, `Looked through ${many(reader.looked, "entry", "entries")}: ${many(found.length, "message")} found.`);
    }
    ahead = reader.next();
    list.show(found);
    say(note, isWanted ? outcome(found, reader.looked) : summary(entries, sight));
  }

  const order = () => (isDown ? "the newest first" : "the oldest first");
  const outcome = (found, looked) =>
    `${many(found.length, "message")} found in ${many(looked, "entry", "entries")}, ${order()}.${ahead ? ` "${next.textContent}" searches on.` : " There are no more entries."}`;

  function summary(entries, sight) {
    if (entries.length) return `${toldOf(entries)}, ${order()}${partitions ? ", by the time of publishing" : ""}.`;
    if (turned.length > 1 || !isDown) return "There are no more.";
    return sight.resting.length ? "The partitions that are loaded are empty." : "The topic is empty: publish a message, or connect a producer.";
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
    const ends = new Map(); // the last entry of each part that was seen
    let isFirst = true;
    let passed = 0;
    say(note, "Waiting for new messages.");
    poll(own, FOLLOW_EVERY_MS * Math.max(1, (partitions || 0) / FOLLOW_PARTITIONS), async () => {
      const sight = await see(own);
      const news = sight.parts.map((part) => ({ ...part, begin: newFrom(part, ends, isFirst) })).filter(({ begin, places }) => begin < places.total);
      const fits = Math.max(1, Math.floor(FOUND_MAX / Math.max(1, news.length)));
      const jobs = news.flatMap((part) => {
        const first = Math.max(part.begin, part.places.total - fits);
        return Array.from({ length: part.places.total - first }, (_, index) => ({ part, index: first + index }));
      });
      const entries = (await each(jobs, AT_ONCE, ({ part, index }) => readAt(part.topic, part.places.at(index), own))).filter(Boolean);
      await list.learn(entries);
      if (own.aborted) return;
      for (const { key, places } of sight.parts) ends.set(key, places.at(places.total - 1) || { ledgerId: -1, entryId: -1 });
      isFirst = false;
      if (!jobs.length) return;
      passed += news.reduce((sum, part) => sum + part.places.total - part.begin, 0) - jobs.length;
      entries.sort((one, other) => new Date(one.published) - new Date(other.published) || 0);
      const items = entries.flatMap(itemsOf).filter(({ entry, message }) => !isWanted || isWanted(entry, message, list.schemaOf(entry)));
      list.show([...items.reverse(), ...list.items].slice(0, MESSAGES_MAX));
      say(note, `New messages, the newest first; at most ${MESSAGES_MAX} are kept here.${passed ? ` ${many(passed, "entry was", "entries were")} passed: they came faster than they can be shown.` : ""}`);
    });
  }

  begin();
  return h("div", {}, form,
    h("div", { class: "controls" }, field("Show payloads", list.format), follow, h("div", { class: "pager" }, again, back, next)),
    resting.node, note, list.node);
}

/** The number of the first entry of a part that is new. A partition that was loaded since has a new ledger. */
function newFrom({ key, places }, ends, isFirst) {
  if (ends.has(key)) return places.indexAfter(ends.get(key));
  return isFirst ? places.total : places.openFrom;
}

/** Says which partitions are not looked into, because no broker has them loaded, and loads them. */
function restingNote(after) {
  const words = h("p", { class: "told" });
  let found = [];
  const load = actionButton("Load them", {
    work: () => each(found, AT_ONCE, (part) => get(topicPath(part.topic, "stats"))),
    done: "The partitions are loaded.",
    after,
  });
  const node = h("div", { hidden: true }, words, load);
  return {
    node,
    show(resting) {
      found = resting;
      visible(node, resting.length > 0);
      const stored = bytes(resting.reduce((sum, part) => sum + part.bytes, 0));
      say(words, `${many(resting.length, "partition is", "partitions are")} at rest, with ${stored}: no broker has loaded them, and their messages are not among these. `
        + "Without a subscription, a loaded partition that nobody uses is deleted after a while, where policies say so.");
    },
  };
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
    nodes: [field("Start position", kind), at, message],
    isDown: () => kind.value === "newest",
    async first(sight, signal) {
      if (kind.value === "newest") return sight.newest();
      if (kind.value === "oldest") return sight.oldest();
      if (kind.value === "id") {
        const match = /^(\d{1,15}):(\d{1,15})(:.*)?$/.exec(id.value.trim());
        if (!match) throw new Error("A message id is ledger:entry, as 17:3.");
        return sight.from({ ledgerId: Number(match[1]), entryId: Number(match[2]) }, signal);
      }
      const ms = new Date(when.value).getTime();
      if (Number.isNaN(ms)) throw new Error("Give a time first.");
      return sight.since(ms, signal);
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

function drawMessage(entry, message, index, format, schema, open) {
  const id = entry.messages.length > 1 ? `${entry.id}:${index}` : entry.id;
  const payload = entry.isEncrypted ? { kind: "encrypted", text: "The payload is encrypted: only its consumers can read it." }
    : message.isNull ? { kind: "no value", text: "(no value: a tombstone)" } : shown(message.payload, format, schema);
  const preview = payload.text.replace(/\s+/g, " ").slice(0, PREVIEW);
  const part = partitionOf(entry.topic);
  const facts = [
    ["Partition", part],
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
      h("span", { class: "id" }, id), " ", part ? h("span", { class: "kind" }, `partition ${part}`) : null, " ", h("span", { class: "when" }, time(entry.published)), " ",
      message.key ? h("span", { class: "key-of" }, message.key) : null, " ",
      h("span", { class: "kind" }, payload.kind), " ", h("span", { class: "preview" }, preview)),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    message.properties.length
      ? h("dl", { class: "facts properties", "aria-label": "Properties" }, message.properties.slice(0, 200).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))
      : null,
    pre,
    deeds(entry, message, id, payload));
  return h("li", {}, details);
}

/** What can be done with a message that was looked at. */
function deeds(entry, message, id, payload) {
  const whole = !entry.isCut && !entry.isEncrypted && !message.isNull && !entry.trouble;
  return h("div", { class: "actions" },
    h("button", { type: "button", onclick: () => copy(payload.text) }, "Copy"),
    whole ? h("button", { type: "button", onclick: () => download(id, message.payload) }, "Download") : null,
    whole ? h("button", { type: "button", onclick: () => publishAgain(entry.topic, message, id, payload) }, "Publish again") : null);
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
