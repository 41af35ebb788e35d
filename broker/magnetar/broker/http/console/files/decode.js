// From an entry to messages, and from payloads to text. Payloads are what strangers have sent: every
// length is checked, every loop is bounded, and nothing here becomes anything but text.

import { decodeAvro } from "./avro.js";

const MESSAGES_MAX = 1000;
const HEX_BYTES_MAX = 4096;
const TEXT_MAX = 200_000;

const STRICT = new TextDecoder("utf-8", { fatal: true });
const LOOSE = new TextDecoder("utf-8");

/** The messages of an entry: [{key, properties, eventTime, payload, isNull}]. `isCut`: there is more of the body
 * than was read. Headers are those of the admin interface (X-Pulsar-…). */
export function messagesOf(headers, body, isCut) {
  const of = (name) => headers.get(`x-pulsar-${name}`);
  const batch = Number(of("num-batch-message") || 0);
  const whole = {
    key: unescaped(of("partition-key") || ""),
    properties: propertiesOf(of("property")),
    eventTime: of("event-time") || "",
    payload: body,
    isNull: of("null-value") === "true",
  };
  if (!of("num-batch-message") || of("is-encrypted") === "true") return [whole];
  const found = [];
  const reader = new Reader(body);
  for (let index = 0; index < Math.min(batch, MESSAGES_MAX); index++) {
    try {
      const metadata = singleMetadata(reader.take(reader.uint32()));
      const payload = reader.take(metadata.size);
      found.push({ ...metadata, payload });
    } catch (error) {
      if (isCut) break; // the rest was not read
      if (!found.length) return [whole];
      throw error;
    }
  }
  return found;
}

function propertiesOf(text) {
  try {
    const found = JSON.parse(unescaped(text || "{}"));
    return Object.entries(found).map(([key, value]) => [key, String(value)]);
  } catch {
    return [];
  }
}

/** Headers are one line of Latin letters: everything else in them is percent-encoded, if anything is. */
function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  get left() {
    return this.bytes.length - this.at;
  }

  take(length) {
    if (!(length >= 0) || length > this.left) throw new Error("the entry ends early");
    const found = this.bytes.subarray(this.at, this.at + length);
    this.at += length;
    return found;
  }

  uint32() {
    const found = this.take(4);
    return ((found[0] << 24) | (found[1] << 16) | (found[2] << 8) | found[3]) >>> 0;
  }

  varint() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.take(1)[0];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw new Error("a number that does not end");
  }
}

/** SingleMessageMetadata of Pulsar's protocol: properties 1, key 2, size 3, event time 5, null 9. */
function singleMetadata(bytes) {
  const found = { key: "", properties: [], eventTime: "", size: 0, isNull: false };
  const reader = new Reader(bytes);
  while (reader.left) {
    const tag = Number(reader.varint());
    const value = fieldValue(reader, tag & 7);
    switch (tag >> 3) {
      case 1: found.properties.push(keyValue(value)); break;
      case 2: found.key = LOOSE.decode(value); break;
      case 3: found.size = Number(value); break;
      case 5: found.eventTime = Number(value); break;
      case 9: found.isNull = value !== 0n; break;
      default:
    }
  }
  return found;
}

function keyValue(bytes) {
  const found = ["", ""];
  const reader = new Reader(bytes);
  while (reader.left) {
    const tag = Number(reader.varint());
    const value = fieldValue(reader, tag & 7);
    if (tag >> 3 === 1) found[0] = LOOSE.decode(value);
    if (tag >> 3 === 2) found[1] = LOOSE.decode(value);
  }
  return found;
}

function fieldValue(reader, type) {
  if (type === 0) return reader.varint();
  if (type === 1) return reader.take(8);
  if (type === 2) return reader.take(Number(reader.varint()));
  if (type === 5) return reader.take(4);
  throw new Error("a field of an unknown kind");
}

/** {kind, text} of a payload. wanted: auto, json, avro, text or hex. schema: {type, data} or null. */
export function shown(payload, wanted, schema) {
  const attempts = wanted === "auto" ? ["avro", "json", "text"] : [wanted];
  for (const kind of attempts) {
    const text = DECODERS[kind]?.(payload, schema, wanted !== "auto");
    if (text !== null && text !== undefined) return { kind, text: cut(text) };
  }
  return { kind: "hex", text: hexOf(payload) };
}

const DECODERS = {
  avro(payload, schema, isForced) {
    if (schema?.type !== "AVRO") return isForced ? "The topic has no AVRO schema." : null;
    try {
      return decodeAvro(JSON.parse(schema.data), payload);
    } catch (error) {
      return isForced ? `This is no AVRO of the topic's schema: ${error.message}` : null;
    }
  },
  json(payload, schema, isForced) {
    const text = strictText(payload);
    const pretty = text === null ? null : prettyJson(text);
    return pretty === null && isForced ? "This is no JSON." : pretty;
  },
  text: (payload, schema, isForced) => (isForced ? LOOSE.decode(payload) : strictText(payload)),
  hex: (payload) => hexOf(payload),
};

const cut = (text) => (text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}\n… cut here` : text);

/** UTF-8 without control characters; null: it is something else. */
export function strictText(payload) {
  try {
    const text = STRICT.decode(payload);
    // eslint-disable-next-line no-control-regex
    return /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}

/** JSON with line breaks, token by token: numbers stay as they were written, whatever their size.
 * null: it is no object or array. */
export function prettyJson(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/gs) || [];
  const lines = [];
  let depth = 0;
  tokens.forEach((token, index) => {
    const isEnd = token === "}" || token === "]";
    const isEmpty = isEnd && /[[{]/.test(tokens[index - 1]) && tokens[index - 1].length === 1;
    if (isEnd) depth -= 1;
    if (isEnd && !isEmpty) lines.push("\n", "  ".repeat(Math.min(depth, 40)));
    lines.push(token);
    if (token === ":") lines.push(" ");
    if (token === "{" || token === "[") {
      depth += 1;
      if (tokens[index + 1] !== "}" && tokens[index + 1] !== "]") lines.push("\n", "  ".repeat(Math.min(depth, 40)));
    }
    if (token === ",") lines.push("\n", "  ".repeat(Math.min(depth, 40)));
  });
  return lines.join("");
}

/** Sixteen bytes a line: where, what, and as letters. */
export function hexOf(payload) {
  const lines = [];
  for (let at = 0; at < Math.min(payload.length, HEX_BYTES_MAX); at += 16) {
    const part = [...payload.subarray(at, at + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${letters}`);
  }
  if (payload.length > HEX_BYTES_MAX) lines.push(`… ${payload.length - HEX_BYTES_MAX} more bytes`);
  return lines.join("\n") || "(empty)";
}
