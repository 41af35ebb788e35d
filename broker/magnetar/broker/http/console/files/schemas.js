// The schema of a topic: its versions, and what is different between two of them.

import { ApiError, get, json, path, wordsOf } from "./api.js";
import { prettyJson } from "./decode.js";
import { differences } from "./differences.js";
import { field, h, say, section, visible } from "./dom.js";
import { many, time } from "./format.js";
import { fullName, wholeOf } from "./names.js";
import { poll } from "./polling.js";
import { table } from "./table.js";

const EVERY_MS = 30_000;

/** The newest schema of a topic; null: it has none. Browsers log each answer "not there" to a request for one:
 * a list that may be empty is asked for instead. */
export async function newestSchema(topic, signal) {
  const name = fullName(wholeOf(topic) || topic);
  const found = await json("POST", path("magnetar", "v1", "topics", "schemas"), { body: { topics: [name] }, signal });
  const refused = found.refused[name];
  if (refused) throw new ApiError(refused.status, refused.reason);
  return found.topics[name]?.[0] ?? null;
}

/** The tab "Schema". */
export function showSchemas({ topic, content, signal }) {
  const base = ["admin", "v2", "schemas", topic.tenant, topic.namespace, topic.name.replace(/-partition-\d+$/, "")];
  const note = h("p", { class: "told", role: "status" }, "Loading.");
  const list = table({
    label: "Versions",
    key: (row) => row.version,
    empty: "The topic has no schema: messages are bytes.",
    columns: [
      { title: "Version", number: true, text: (row) => String(row.version), value: (row) => row.version },
      { title: "Type", text: (row) => row.type },
      { title: "Since", text: (row) => time(row.timestamp), value: (row) => row.timestamp },
      { title: "Properties", text: (row) => Object.entries(row.properties || {}).map((pair) => pair.join("=")).join(", ") || "–" },
    ],
  });
  const [older, newer] = [h("select", { onchange: () => draw() }), h("select", { onchange: () => draw() })];
  const difference = h("pre", { class: "difference", tabindex: "0", role: "region", "aria-label": "Difference" });
  const compared = section("Compare", [h("div", { class: "controls" }, field("Version", older), field("with", newer)), difference]);
  const definition = h("pre", { tabindex: "0", role: "region", "aria-label": "Definition" });
  const newest = section("Newest definition", definition);
  for (const part of [compared, newest]) part.hidden = true;
  content.replaceChildren(note, list.node, newest, compared);
  let versions = [];

  const textOf = (number) => {
    const found = versions.find((each) => String(each.version) === number);
    return found ? prettyJson(found.data) ?? found.data : "";
  };

  function draw() {
    difference.replaceChildren(...differences(textOf(older.value), textOf(newer.value)).map(({ kind, line }) =>
      h("span", { class: kind }, `${{ added: "+", removed: "-", same: " " }[kind]} ${line}\n`)));
  }

  poll(signal, EVERY_MS, async () => {
    let found;
    try {
      found = (await get(path(...base, "schemas"), { signal })).getSchemaResponses;
    } catch (error) {
      if (error.status === 404) found = [];
      else {
        say(note, wordsOf(error));
        error.isTold = true;
        throw error;
      }
    }
    const isNew = found.length !== versions.length;
    versions = found;
    say(note, found.length ? `${many(found.length, "version")}.` : "");
    list.update([...found].reverse());
    visible(newest, found.length > 0);
    visible(compared, found.length > 1);
    if (!isNew || !found.length) return;
    say(definition, textOf(String(found.at(-1).version)) || "(none)");
    for (const select of [older, newer])
      select.replaceChildren(...found.map((each) => h("option", { value: String(each.version) }, `${each.version}, ${time(each.timestamp)}`)));
    older.value = String(found.at(-2)?.version ?? found.at(-1).version);
    newer.value = String(found.at(-1).version);
    draw();
  });
}
