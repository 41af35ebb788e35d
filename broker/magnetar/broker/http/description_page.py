"""The page that shows the description of the HTTP interface to people. Pure.

One file without anything from elsewhere: a broker's network may have no way out, and a page with
another site's scripts could ask the broker in the name of whoever looks at it.
"""

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>HTTP interface - Magnetar</title>
<style>
  :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
  body { max-width: 60rem; margin: 0 auto; padding: 1rem; }
  input { width: 100%; padding: .5rem; font: inherit; box-sizing: border-box; }
  h2 { margin: 2rem 0 .5rem; text-transform: capitalize; }
  details { border-top: 1px solid #8884; padding: .35rem 0; }
  summary { cursor: pointer; overflow-wrap: anywhere; }
  code, pre { font: .85rem/1.4 ui-monospace, monospace; }
  pre { overflow-x: auto; background: #8881; padding: .5rem; }
  b { display: inline-block; min-width: 4rem; font: 600 .85rem ui-monospace, monospace; }
  td { vertical-align: top; padding-right: 1rem; }
</style>
<h1>HTTP interface</h1>
<p>Pulsar's lookup and admin interface of this broker, and what is beside it.
The same for programs: <a href="openapi.json">openapi.json</a>.</p>
<label>Find <input id="find" type="search" placeholder="retention, subscription, POST ..."></label>
<p id="count" role="status">Loading.</p>
<main></main>
<script>
const make = (tag, text) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  return node;
};
const shown = (schema) => make("pre", JSON.stringify(schema, null, 1));
function operation(verb, path, each) {
  const box = make("details"), head = make("summary"), table = make("table");
  head.append(make("b", verb.toUpperCase()), make("code", path), make("span", " " + each.summary));
  box.append(head, make("p", each.description || ""));
  for (const one of each.parameters || []) {
    const row = table.insertRow();
    row.append(make("td", one.name), make("td", one.in), make("td", one.description || ""));
  }
  box.append(table);
  for (const body of Object.values(each.requestBody?.content || {}))
    box.append(make("h3", "Body"), shown(body.schema));
  const answers = make("table");
  for (const [status, answer] of Object.entries(each.responses)) {
    const row = answers.insertRow();
    row.append(make("td", status), make("td", answer.description || ""));
  }
  box.append(make("h3", "Answers"), answers);
  box.dataset.text = (verb + " " + path + " " + each.summary).toLowerCase();
  return box;
}
async function load() {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error("the broker answered " + answer.status);
  const { paths } = await answer.json(), groups = new Map();
  for (const [path, item] of Object.entries(paths))
    for (const [verb, each] of Object.entries(item)) {
      const tag = (each.tags || ["broker"])[0];
      if (!groups.has(tag)) groups.set(tag, make("section"));
      groups.get(tag).append(operation(verb, path, each));
    }
  const main = document.querySelector("main"), count = document.querySelector("#count");
  for (const [tag, group] of [...groups].sort()) {
    group.prepend(make("h2", tag));
    main.append(group);
  }
  const find = document.querySelector("#find");
  const filter = () => {
    const words = find.value.toLowerCase().split(/\\s+/);
    let left = 0;
    for (const box of main.querySelectorAll("details")) {
      box.hidden = !words.every((word) => box.dataset.text.includes(word));
      left += !box.hidden;
    }
    for (const group of main.children)
      group.hidden = !group.querySelector("details:not([hidden])");
    count.textContent = left + " operations";
  };
  find.addEventListener("input", filter);
  filter();
}
load().catch((error) => {
  document.querySelector("#count").textContent = "Nothing to show: " + error.message;
});
</script>
</html>
"""
