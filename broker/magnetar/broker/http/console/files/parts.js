// The entries of a topic, or of all partitions of one together: each partition in the order of its log, and
// the partitions among each other by the times at which their messages were published. A partition that no
// broker has loaded is left as it is: to load it may be its end.

import { each, get, restingStats, topicPath } from "./api.js";
import { read, readAt } from "./entries.js";
import { parseTopic } from "./names.js";
import { numbered, placesOf } from "./places.js";

/** A topic with more partitions is not shown as one: each of them is read for the first message of a page. */
export const PARTITIONS_MAX = 100;
/** Requests at a time. */
const AT_ONCE = 3;
const AT_ONCE_OF_MANY = 6;
/** So many partitions are read some entries ahead; of more, only the next entry of each. */
const FEW = 8;

/**
 * What is stored now, and where: {parts, resting, newest(), oldest(), since(ms, signal), from(place, signal),
 * reader(cursor, isDown, lookMax, signal)}. A cursor says where a page begins: the place of each part, by its key.
 */
export async function sightOf(topic, partitions, signal) {
  if (!partitions) return sight([{ key: "", topic, places: await placesOf(topic, signal) }], [], false);
  const found = await get(`${topicPath(topic, "partitioned-internalStats")}?onlyLoaded=true`, { signal });
  const parts = [];
  const resting = [];
  for (const [key, stored] of Object.entries(found.partitions)) {
    const part = { key, topic: parseTopic(key) };
    if (stored.ledgers) parts.push({ ...part, places: numbered(stored) });
    else if (stored.atRest?.storageSize > 0) resting.push({ ...part, bytes: stored.atRest.storageSize });
  }
  return sight(parts, resting, true);
}

/** The same of what a subscription has not acknowledged: its entries are known by their number alone. No more
 * are asked for than wait, because browsers log each request for what is not there. */
export async function backlogOf(topic, subscription, partitions, signal) {
  const found = partitions
    ? (await get(`${topicPath(topic, "partitioned-stats")}?perPartition=true&onlyLoaded=true`, { signal })).partitions
    : { "": await restingStats(topic, { signal }) };
  const parts = [];
  const resting = [];
  for (const [key, stats] of Object.entries(found)) {
    const part = partitions ? parseTopic(key) : topic;
    const waiting = stats.subscriptions?.[subscription]?.msgBacklog || 0;
    if (stats.atRest?.subscriptions?.[subscription]?.msgBacklog > 0) resting.push({ key, topic: part });
    else if (waiting) parts.push({
      key,
      topic: part,
      places: counted(waiting),
      read: (index) => read(part, signal, "subscription", subscription, "position", String(index + 1)),
    });
  }
  return sight(parts, resting, Boolean(partitions));
}

const counted = (total) => ({
  total,
  has: (index) => index >= 0 && index < total,
  at: (index) => (index >= 0 && index < total ? { index } : null),
  indexOf: (place) => place.index,
});

const readOf = (part, index, signal) => (part.read ? part.read(index) : readAt(part.topic, part.places.at(index), signal));

function sight(parts, resting, isParted) {
  const cursor = (placeOf) => new Map(parts.map((part) => [part.key, placeOf(part)]));

  async function since(ms, signal) {
    const places = await each(parts, AT_ONCE, (part) => get(topicPath(part.topic, "messageid", String(ms)), { signal }));
    return new Map(parts.map((part, index) => [part.key, places[index]]));
  }

  /** In the other partitions, what was published at the same time or later. */
  async function from(place, signal) {
    if (!isParted) return cursor(() => place);
    const home = parts.find((part) => part.places.hasLedger(place.ledgerId));
    const entry = home ? await readAt(home.topic, place, signal) : null;
    if (!entry) throw new Error(`No message has this id${resting.length ? " in the partitions that are loaded" : ""}.`);
    const found = await since(new Date(entry.published).getTime() || 0, signal);
    return found.set(home.key, place);
  }

  return {
    parts,
    resting,
    newest: () => cursor((part) => part.places.at(part.places.total - 1)),
    oldest: () => cursor((part) => part.places.at(0)),
    since,
    from,
    reader: (start, isDown, lookMax, signal) => readerOf(parts, start, isDown, lookMax, signal),
  };
}

/**
 * Reads entries from a cursor on: take(count) gives the next ones, next() the cursor behind them, or null if
 * there are no more. No more than `lookMax` places are looked at.
 */
function readerOf(parts, start, isDown, lookMax, signal) {
  const step = isDown ? -1 : 1;
  const lines = parts.filter((part) => start.get(part.key))
    .map((part) => ({ part, at: part.places.indexOf(start.get(part.key)), waiting: [] }));
  const ahead = lines.length > FEW ? 1 : AT_ONCE;
  const atOnce = lines.length > 1 ? AT_ONCE_OF_MANY : AT_ONCE;
  const publishedAt = (entry) => new Date(entry.published).getTime() || 0;
  let looked = 0;

  /** Read ahead where nothing waits, so that the next entry of all is known. */
  async function fill(wanted) {
    for (;;) {
      const dry = lines.filter((line) => !line.waiting.length && line.part.places.has(line.at));
      if (!dry.length) return;
      const jobs = dry.flatMap((line) => Array.from({ length: Math.min(ahead, wanted) }, (_, index) => ({ line, index: line.at + step * index }))
        .filter(({ index }) => line.part.places.has(index)));
      const entries = await each(jobs, atOnce, ({ line, index }) => readOf(line.part, index, signal));
      jobs.forEach(({ line, index }, number) => {
        line.at = index + step;
        // None: it was trimmed or acknowledged meanwhile.
        if (entries[number]) line.waiting.push({ index, entry: entries[number] });
        else looked += 1;
      });
      if (looked >= lookMax) return;
    }
  }

  function first() {
    let best = null;
    for (const line of lines) {
      if (!line.waiting.length) continue;
      const before = best && (publishedAt(line.waiting[0].entry) - publishedAt(best.waiting[0].entry)) * step;
      if (!best || before < 0) best = line;
    }
    return best;
  }

  return {
    get looked() {
      return looked;
    },
    async take(count) {
      const taken = [];
      while (taken.length < count && looked < lookMax) {
        await fill(Math.min(count - taken.length, lookMax - looked));
        const line = first();
        if (!line) break;
        taken.push(line.waiting.shift().entry);
        looked += 1;
      }
      return taken;
    },
    next() {
      const found = new Map();
      for (const { part, at, waiting } of lines) {
        const place = part.places.at(waiting.length ? waiting[0].index : at);
        if (place) found.set(part.key, place);
      }
      return found.size ? found : null;
    },
  };
}
