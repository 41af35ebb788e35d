// How a topic is stored: its ledgers and the cursors in them.

import { get, isAtRest, restingStats, topicPath, wordsOf } from "./api.js";
import { h, say, section, visible } from "./dom.js";
import { bytes, count, many, time } from "./format.js";
import { topicView } from "./names.js";
import { poll } from "./polling.js";
import { link, state, table } from "./table.js";

const EVERY_MS = 5000;

/** The tab "Storage". */
/** Where a ledger lies: on bookies, in an object store, or both. */
function placeOf(object) {
  if (!object) return "bookies";
  if (object.state === "copying") return `bookies; on its way to ${object.store}`;
  return object.state === "only" ? object.store : `bookies and ${object.store}`;
}

export function showStorage({ topic, partitions, content, signal }) {
  if (partitions) {
    const links = Array.from({ length: Math.min(partitions, 1000) }, (_, index) =>
      h("li", {}, link(topicView({ ...topic, name: `${topic.name}-partition-${index}` }, "storage"), String(index))));
    content.replaceChildren(section("Ledgers of which partition?", h("ul", { class: "inline" }, links)));
    return;
  }
  if (topic.domain !== "persistent") {
    content.replaceChildren(h("p", { class: "empty" }, "The topic keeps nothing: it has no ledgers."));
    return;
  }
  const told = h("p", { class: "told" }, "Loading.");
  const refused = h("p", { class: "refused", role: "alert", hidden: true });
  const ledgers = table({
    label: "Ledgers",
    key: (row) => row.ledgerId,
    empty: "No ledger yet: the first message makes one.",
    columns: [
      { title: "Ledger", text: (row) => String(row.ledgerId) },
      { title: "State", draw: (row, cell) => state(cell, row.isOpen ? ["ok", "being written"] : ["", "closed"]) },
      { title: "Entries", number: true, text: (row) => count(row.entries) },
      { title: "Size", number: true, text: (row) => bytes(row.size) },
      { title: "Closed", text: (row) => time(row.timestamp) },
      { title: "Where", text: (row) => placeOf(row.object) },
    ],
  });
  const cursors = table({
    label: "Cursors",
    key: (row) => row.name,
    empty: "No subscription has a place in this topic.",
    columns: [
      { title: "Subscription", text: (row) => row.name },
      { title: "Acknowledged through", text: (row) => row.markDeletePosition },
      { title: "Read up to", text: (row) => row.readPosition },
      { title: "Entries behind", number: true, text: (row) => count(row.numberOfEntriesSinceFirstNotAckedMessage) },
      { title: "Acknowledged ranges behind", number: true, text: (row) => count(row.totalNonContiguousDeletedMessagesRange) },
      { title: "Cursor ledger", number: true, text: (row) => (row.cursorLedger >= 0 ? String(row.cursorLedger) : "–") },
    ],
  });
  content.replaceChildren(refused, told, section("Ledgers", ledgers.node), section("Cursors", cursors.node));

  poll(signal, EVERY_MS, async () => {
    try {
      if (isAtRest(await restingStats(topic, { signal }))) {
        say(refused, "The topic is at rest now: what is shown is what was there before.");
        visible(refused, true);
        return;
      }
      const stored = await get(topicPath(topic, "internalStats"), { signal });
      const info = await get(topicPath(topic, "internal-info"), { signal }).catch((error) => {
        if (error.status !== 403) throw error;
        return { ledgers: [] };
      });
      const closed = new Map(info.ledgers.map((each) => [each.ledgerId, each.timestamp]));
      const rows = stored.ledgers.map((each, index) => {
        const isOpen = index === stored.ledgers.length - 1 && stored.state === "LedgerOpened";
        return {
          ...each,
          isOpen,
          entries: isOpen ? stored.currentLedgerEntries : each.entries,
          size: isOpen ? stored.currentLedgerSize : each.size,
          timestamp: closed.get(each.ledgerId),
        };
      });
      visible(refused, false);
      say(told, `${many(stored.numberOfEntries, "entry", "entries")} in ${many(rows.length, "ledger")}, ${bytes(stored.totalSize)}. Last entry: ${stored.lastConfirmedEntry}. ${stored.state === "Terminated" ? "The topic is terminated." : ""}`);
      ledgers.update(rows.reverse());
      cursors.update(Object.entries(stored.cursors).map(([name, each]) => ({ name, ...each })));
    } catch (error) {
      if (![403, 404].includes(error.status)) throw error;
      say(refused, wordsOf(error));
      visible(refused, true);
      throw error;
    }
  });
}
