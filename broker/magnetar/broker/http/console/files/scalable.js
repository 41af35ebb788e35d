// A scalable topic: how its keys have been divided among segments, as a picture over time, and what each
// segment holds.

import { ask, get, json, path, wordsOf } from "./api.js";
import { actionButton } from "./dialogs.js";
import { field, h, s, say, section, visible } from "./dom.js";
import { bytes, count, many, rate, time } from "./format.js";
import { view } from "./names.js";
import { poll } from "./polling.js";
import { state, table } from "./table.js";

const EVERY_MS = 5000;
const RING = 1 << 16;
const WIDTH = 600;
const HEIGHT = 220;
const LABELLED_MIN = 12;

export const scalableView = (tenant, namespace, name) => view("scalable", tenant, namespace, name);

const hex = (hash) => hash.toString(16).padStart(4, "0");

export function showScalable({ frame, parts, signal }) {
  const [tenant, namespace, name] = parts;
  const where = path("admin", "v2", "scalable", tenant, namespace, name);
  const told = h("p", { class: "told", role: "status" }, "Loading.");
  const trouble = h("p", { class: "refused", role: "alert", hidden: true });
  const picture = s("svg", { class: "layout", role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-label": "Layout over time" });
  const axis = h("p", { class: "quiet" });
  const segments = table({
    label: "Segments",
    key: (row) => row.id,
    empty: "No segment.",
    columns: [
      { title: "Segment", text: (row) => row.id, value: (row) => Number(row.id) },
      { title: "State", draw: (row, cell) => state(cell, row.state === "ACTIVE" ? ["ok", "takes messages"] : ["", row.state.toLowerCase()]) },
      { title: "Hashes", text: (row) => `${hex(row.start)} to ${hex(row.end)}`, value: (row) => row.start },
      { title: "From", text: (row) => row.parents.join(", ") || "–" },
      { title: "Became", text: (row) => row.children.join(", ") || "–" },
      { title: "Since", text: (row) => time(row.createdAt), value: (row) => row.createdAt },
      { title: "Sealed", text: (row) => (row.sealedAt > 0 ? time(row.sealedAt) : "–"), value: (row) => row.sealedAt },
      { title: "In", number: true, text: (row) => rate(row.msgRateIn), value: (row) => row.msgRateIn },
      { title: "Out", number: true, text: (row) => rate(row.msgRateOut), value: (row) => row.msgRateOut },
      { title: "Stored", number: true, text: (row) => bytes(row.storageSize), value: (row) => row.storageSize },
      { title: "Owner", text: (row) => row.ownerBroker || "–" },
    ],
  });
  const subscriptions = table({
    label: "Subscriptions",
    key: (row) => row.name,
    empty: "No subscription.",
    columns: [
      { title: "Subscription", text: (row) => row.name, value: (row) => row.name },
      { title: "Backlog", number: true, text: (row) => count(row.msgBacklog), value: (row) => row.msgBacklog },
      { title: "Unacknowledged", number: true, text: (row) => count(row.unackedMessages), value: (row) => row.unackedMessages },
      { title: "Out", number: true, text: (row) => rate(row.msgRateOut), value: (row) => row.msgRateOut },
      { title: "Segments with a backlog", text: (row) => Object.entries(row.segments).filter(([, each]) => each.msgBacklog > 0).map(([id]) => id).join(", ") || "none" },
    ],
  });
  frame({
    title: name,
    crumbs: [{ text: tenant, href: view("tenants") }, { text: namespace, href: view("namespace", tenant, namespace) },
      { text: name, href: scalableView(tenant, namespace, name) }],
    content: [trouble, told, section("Layout over time", [picture, axis]), section("Segments", segments.node),
      section("Subscriptions", subscriptions.node), section("Change the layout", changes(where, () => look()))],
  });

  const look = poll(signal, EVERY_MS, async () => {
    let record;
    let stats;
    try {
      [record, stats] = await Promise.all([get(where, { signal }), get(`${where}/stats`, { signal })]);
    } catch (error) {
      if (![403, 404, 503].includes(error.status)) throw error;
      say(trouble, wordsOf(error));
      visible(trouble, true);
      error.isTold = true;
      throw error;
    }
    visible(trouble, false);
    const rows = Object.entries(stats.layout.segments).map(([id, each]) => {
      const range = record.segments[id]?.hashRange || { start: 0, end: RING - 1 };
      return { ...each, id, start: range.start, end: range.end, parents: each.parentIds || [], children: each.childIds || [] };
    });
    const active = rows.filter((row) => row.state === "ACTIVE").length;
    const change = stats.layout.underWay;
    say(told, `${many(active, "segment takes", "segments take")} messages, of ${count(rows.length)} there are; change number ${count(stats.layout.epoch)}.${change ? ` A ${String(change.operation).toLowerCase()} of segment ${change.segmentIds.join(" and ")} is under way.` : ""} ${bytes(stats.storageSize)} are stored.`);
    draw(picture, axis, rows);
    segments.update(rows.sort((one, other) => Number(other.id) - Number(one.id)));
    subscriptions.update(Object.entries(stats.subscriptions || {}).map(([each, values]) => ({ name: each, ...values })));
  });
}

/** Segments as boxes: from left to right as long as they took messages, from top to bottom their hashes. */
function draw(picture, axis, rows) {
  const now = Date.now();
  const begin = Math.min(...rows.map((row) => row.createdAt), now - 1000);
  const x = (ms) => ((ms - begin) / (now - begin)) * WIDTH;
  const y = (hash) => (hash / RING) * HEIGHT;
  picture.replaceChildren(...rows.map((row) => {
    const [left, right] = [x(row.createdAt), x(row.sealedAt > 0 ? row.sealedAt : now)];
    const [top, bottom] = [y(row.start), y(row.end + 1)];
    const title = `Segment ${row.id}, ${row.state.toLowerCase()}, hashes ${hex(row.start)} to ${hex(row.end)}, from ${time(row.createdAt)}${row.sealedAt > 0 ? ` to ${time(row.sealedAt)}` : ""}`;
    return s("g", {}, s("title", {}, title),
      s("rect", { class: row.state === "ACTIVE" ? "segment active" : "segment", x: left.toFixed(1), y: top.toFixed(1), width: Math.max(2, right - left).toFixed(1), height: Math.max(1, bottom - top).toFixed(1) }),
      bottom - top >= LABELLED_MIN && right - left >= LABELLED_MIN
        ? s("text", { x: (left + 4).toFixed(1), y: (top + 12).toFixed(1) }, row.id) : null);
  }));
  picture.setAttribute("aria-label", `Layout over time: ${many(rows.length, "segment")} since ${time(begin)}`);
  say(axis, `From ${time(begin)} on the left to now on the right; hashes 0000 at the top to ffff at the bottom.`);
}

function changes(where, after) {
  const segment = h("input", { type: "number", min: 0, value: "0" });
  const other = h("input", { type: "number", min: 0, value: "1" });
  return h("div", { class: "controls" },
    h("div", { class: "joined" }, field("Segment", segment), actionButton("Split it", {
      question: () => ({ title: `Split segment ${segment.value}?`, text: "Two segments take its keys from then on. Consumers get what is in it before what comes after. It can be merged again.", action: "Split", isDanger: false }),
      work: () => json("POST", `${where}/split/${Math.floor(Number(segment.value))}`),
      done: "The segment is split.",
      after,
    })),
    h("div", { class: "joined" }, field("Merge it with", other), actionButton("Merge them", {
      question: () => ({ title: `Merge segments ${segment.value} and ${other.value}?`, text: "One segment takes the keys of both from then on. They must lie side by side.", action: "Merge", isDanger: false }),
      work: () => ask("POST", `${where}/merge/${Math.floor(Number(segment.value))}/${Math.floor(Number(other.value))}`),
      done: "The segments are merged.",
      after,
    })));
}
