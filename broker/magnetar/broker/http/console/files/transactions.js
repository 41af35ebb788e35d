// Transactions that are open: since when, by whom, on which topics; and how to end one that its client has
// forgotten.

import { ask, get, path, wordsOf } from "./api.js";
import { actionButton } from "./dialogs.js";
import { h, say, section, visible } from "./dom.js";
import { count, many, time } from "./format.js";
import { poll } from "./polling.js";
import { state, table } from "./table.js";
import { duration } from "./units.js";

const EVERY_MS = 4000;
const BASE = ["admin", "v3", "transactions"];

export function showTransactions({ frame, signal }) {
  const note = h("p", { class: "told", role: "status" }, "Loading.");
  const trouble = h("p", { class: "refused", role: "alert", hidden: true });
  const open = table({
    label: "Open transactions",
    key: (row) => row.txnId,
    empty: "No transaction is open.",
    columns: [
      { title: "Transaction", text: (row) => row.txnId, value: (row) => row.openTimestamp },
      { title: "State", draw: (row, cell) => state(cell, [row.isLate ? "warn" : "", row.isLate ? `${row.status}, past its time` : row.status]) },
      { title: "Open for", number: true, text: (row) => duration(Math.max(0, Math.floor((Date.now() - row.openTimestamp) / 1000))), value: (row) => -row.openTimestamp },
      { title: "Begun", text: (row) => time(row.openTimestamp) },
      { title: "Owner", text: (row) => row.owner || "–", value: (row) => row.owner },
      { title: "Publishes to", text: (row) => Object.keys(row.producedPartitions).join(", ") || "–" },
      { title: "Acknowledges in", text: (row) => Object.keys(row.ackedPartitions).join(", ") || "–" },
      { title: "End it", node: (row) => abort(row) },
    ],
  });
  const coordinators = table({
    label: "Coordinators",
    key: (row) => row.number,
    empty: "No coordinator is there yet: the first transaction makes them.",
    columns: [
      { title: "Coordinator", text: (row) => row.number },
      { title: "State", text: (row) => row.state },
      { title: "Open", number: true, text: (row) => count(row.ongoingTxnSize), value: (row) => row.ongoingTxnSize },
      { title: "Begun so far", number: true, text: (row) => count(row.leastSigBits + 1) },
    ],
  });
  const body = h("div", { hidden: true }, section("Open", [note, open.node]), section("Coordinators", coordinators.node));
  frame({ title: "Transactions", content: [trouble, body] });

  function abort(row) {
    const [most, least] = row.txnId.replace(/[()\s]/g, "").split(",");
    return actionButton("Abort", {
      isDanger: true,
      question: () => ({
        title: `Abort transaction ${row.txnId}?`,
        text: "What it has published is never delivered, and what it has acknowledged is delivered again. Its client gets an error at its next step.",
        action: "Abort",
      }),
      work: () => ask("POST", path(...BASE, "abortTransaction", most, least)),
      done: `Transaction ${row.txnId} is aborted.`,
      after: () => look(),
    });
  }

  const look = poll(signal, EVERY_MS, async () => {
    try {
      const [found, stats] = await Promise.all([
        get(path(...BASE, "slowTransactions", "0"), { signal }),
        get(path(...BASE, "coordinatorStats"), { signal }),
      ]);
      visible(trouble, false);
      visible(body, true);
      const now = Date.now();
      const rows = Object.values(found).map((each) => ({ ...each, isLate: now - each.openTimestamp > each.timeoutAt }));
      rows.sort((one, other) => one.openTimestamp - other.openTimestamp);
      say(note, rows.length ? `${many(rows.length, "transaction is", "transactions are")} open. Consumers get nothing behind the first message of an open transaction.` : "");
      open.update(rows);
      coordinators.update(Object.entries(stats).map(([number, each]) => ({ number, ...each })));
    } catch (error) {
      if (![403, 503].includes(error.status)) throw error;
      say(trouble, /transactionCoordinatorEnabled/.test(error.message)
        ? "Transactions are switched off in this broker (MAGNETAR_BROKER_TRANSACTION_COORDINATOR_ENABLED)." : wordsOf(error));
      visible(trouble, true);
      visible(body, false);
      error.isTold = true;
      throw error;
    }
  });
}
