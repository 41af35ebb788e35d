// Where the entries of a topic are: numbered from the oldest on, out of the list of its ledgers. So a page of
// messages needs no request for what is not there.

import { get, topicPath } from "./api.js";

/**
 * {total, openFrom, has(index), at(index), indexOf(place), indexAfter(place), hasLedger(id)}: from a number to {ledgerId, entryId} and
 * back. A place that is gone counts as the next one that is there.
 */
export async function placesOf(topic, signal) {
  const stored = await get(topicPath(topic, "internalStats"), { signal });
  return numbered(stored);
}

export function numbered(stored) {
  const isOpen = stored.state === "LedgerOpened";
  const ledgers = [];
  let total = 0;
  stored.ledgers.forEach((each, index) => {
    const entries = Math.max(0, isOpen && index === stored.ledgers.length - 1 ? stored.currentLedgerEntries : each.entries);
    ledgers.push({ id: each.ledgerId, first: total, entries });
    total += entries;
  });

  function at(index) {
    const ledger = ledgers.findLast((each) => each.first <= index && each.entries > 0);
    return ledger && index < ledger.first + ledger.entries ? { ledgerId: ledger.id, entryId: index - ledger.first } : null;
  }

  /** Number of the first entry at or behind a place. */
  function indexOf(place) {
    if (!place) return -1;
    const ledger = ledgers.find((each) => each.id >= place.ledgerId);
    if (!ledger) return total;
    if (ledger.id > place.ledgerId) return ledger.first;
    return ledger.first + Math.min(ledger.entries, Math.max(0, place.entryId));
  }

  return {
    total,
    has: (index) => index >= 0 && index < total,
    at,
    indexOf,
    hasLedger: (id) => ledgers.some((each) => each.id === id),
    /** Number of the first entry of the ledger that is written: what came since the topic was loaded. */
    openFrom: isOpen && ledgers.length ? ledgers.at(-1).first : total,
    indexAfter: (place) => indexOf({ ledgerId: place.ledgerId, entryId: place.entryId + 1 }),
  };
}
