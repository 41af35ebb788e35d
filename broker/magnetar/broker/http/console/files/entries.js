// Entries as the admin interface gives them: read within a bound, and taken apart into messages.

import { ApiError, ask, topicPath } from "./api.js";
import { messagesOf } from "./decode.js";

const BODY_BYTES_MAX = 1 << 20;

/** The entry at a place; null: there is none, as where a topic was trimmed meanwhile. */
export async function readAt(topic, place, signal) {
  return read(topic, signal, "ledger", String(place.ledgerId), "entry", String(place.entryId));
}

/** An entry of a topic, by a path below it; null: there is none at this place. */
export async function read(topic, signal, ...where) {
  let answer;
  try {
    answer = await ask("GET", topicPath(topic, ...where), { signal });
  } catch (error) {
    // 404: the backlog has not so many, or no entry is at that place.
    if (error instanceof ApiError && error.status === 404 && !/not found/i.test(error.message)) return null;
    throw error;
  }
  const { body, isCut } = await bounded(answer);
  const of = (name) => answer.headers.get(`x-pulsar-${name}`) || "";
  const entry = {
    topic,
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
