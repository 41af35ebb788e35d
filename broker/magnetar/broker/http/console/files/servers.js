// What lies below the brokers: the disks of bookies, and the metadata store as this broker sees it.

import { h, say } from "./dom.js";
import { amount, bytes, count, many, percent } from "./format.js";
import { state, table } from "./table.js";
import { duration } from "./units.js";

const USES = { bookie: "its own files", journal: "the journal", ledgers: "ledgers" };
const LEVELS = {
  free: ["ok", "takes entries"],
  "almost full": ["warn", "almost full"],
  full: ["bad", "full: takes no entries"],
};

const usedPercent = (row) => (row.total_bytes > 0 ? 100 * (1 - row.free_bytes / row.total_bytes) : undefined);

/** A table with a row for each directory of each bookie. Directories that share a disk show the same space. */
export function diskTable() {
  return table({
    label: "Disks of bookies",
    key: (row) => `${row.id} ${row.use} ${row.path}`,
    empty: "No bookie is registered.",
    columns: [
      { title: "Bookie", text: (row) => row.id, value: (row) => row.id },
      { title: "Directory", text: (row) => row.path || "–", value: (row) => row.path },
      { title: "Holds", text: (row) => USES[row.use] || "–" },
      { title: "State", draw: (row, cell) => tellState(cell, row) },
      { title: "Free", number: true, text: (row) => bytes(row.free_bytes), value: (row) => row.free_bytes },
      { title: "Used", number: true, text: (row) => percent(usedPercent(row)), value: usedPercent },
      { title: "Disk", number: true, text: (row) => bytes(row.total_bytes), value: (row) => row.total_bytes },
    ],
  });
}

function tellState(cell, row) {
  if (row.problem) state(cell, ["bad", row.problem]);
  else if (LEVELS[row.level]) state(cell, LEVELS[row.level]);
  else say(cell, row.use ? "–" : "a bookie of an older release tells nothing");
}

/** Rows for the table: one for each directory, or one that says why there is none. */
export const diskRows = (bookies) => bookies.flatMap((each) =>
  (each.directories.length ? each.directories : [{ path: "", use: "" }]).map((one) => ({ ...one, id: each.id, problem: each.problem })));

/** What of the disks needs a person. Full disks are told by the state of their bookie. */
export function diskNeeds(bookies) {
  const rows = [];
  for (const each of bookies) {
    if (each.problem)
      rows.push({
        key: `disks ${each.id}`, where: each.id, kind: "bad", text: `the bookie is registered and does not answer: ${each.problem}`,
        advice: "Look at its process, its log, and the network between it and this broker.",
      });
    for (const one of each.directories)
      if (one.level === "almost full")
        rows.push({
          key: `disk ${each.id} ${one.path}`, where: each.id, kind: "warn",
          text: `${one.path} is ${percent(usedPercent(one))} full; ${bytes(one.free_bytes)} are free`,
          advice: "Make room before the bookie becomes read-only: shorter retention, fewer backlogs, or another bookie.",
        });
  }
  return rows;
}

/** The metadata store, as this broker sees it: a list of facts. */
export function metadataFacts() {
  const node = h("dl", { class: "facts" });
  const values = new Map();
  return {
    node,
    update(found) {
      for (const [name, text] of Object.entries(factsOf(found))) {
        if (!values.has(name)) {
          values.set(name, h("dd", {}));
          node.append(h("div", {}, h("dt", {}, name), values.get(name)));
        }
        if (name === "State") state(values.get(name), [found.state === "connected" ? "ok" : "bad", text]);
        else say(values.get(name), text);
      }
    },
  };
}

const milliseconds = (value) => (value < 0.1 ? "under 0.1 ms" : `${amount(value)} ms`);

function factsOf(found) {
  const facts = {
    Store: found.kind === "ZooKeeper" ? `ZooKeeper at ${found.servers}` : `a file on this machine${found.servers ? `: ${found.servers}` : ""}`,
    State: found.state_s === null ? found.state : `${found.state} for ${duration(Math.floor(found.state_s))}`,
    Session: `${found.session_id ? `${found.session_id}, ` : ""}ends after ${duration(found.session_timeout_ms / 1000)} without contact`,
  };
  if (found.times_suspended !== null)
    facts["Since the start"] = `contact lost ${many(found.times_suspended, "time")}, session lost ${many(found.times_expired, "time")}`;
  const { calls } = found;
  if (!calls) return facts;
  return {
    ...facts,
    "Last call": milliseconds(calls.last_ms),
    Median: milliseconds(calls.median_ms),
    "99 of 100 within": milliseconds(calls.p99_ms),
    Longest: milliseconds(calls.longest_ms),
    "Of the last": `${many(calls.kept, "call")}, in ${duration(Math.ceil(calls.span_s))}`,
    Calls: `${many(calls.reads, "read")}, ${many(calls.writes, "write")}, ${count(calls.failed)} without an answer`,
  };
}

/** What of the metadata store needs a person. */
export const metadataNeeds = (found) => (found.state === "connected" ? [] : [{
  key: "metadata", where: "metadata store", kind: "bad", text: `this broker has no contact: the session is ${found.state}`,
  advice: "Look at ZooKeeper's servers, and the network to them. Without contact the broker gives its topics up.",
}]);
