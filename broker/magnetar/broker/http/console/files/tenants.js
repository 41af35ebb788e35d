// Tenants and their namespaces.

import { ask, each, get, json, path, wordsOf } from "./api.js";
import { actionButton, tell } from "./dialogs.js";
import { field, h, section } from "./dom.js";
import { view } from "./names.js";
import { poll } from "./polling.js";
import { link, table } from "./table.js";

const EVERY_MS = 15_000;
const NAMESPACES_AT_ONCE = 4;
const TENANTS_WITH_NAMESPACES_MAX = 200;

export function showTenants({ frame, signal }) {
  const found = new Map();
  let tenants = [];
  const search = h("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: () => update() });
  const list = table({
    label: "Tenants",
    key: (row) => row.name,
    empty: "No tenant of this name.",
    columns: [
      { title: "Tenant", text: (row) => row.name },
      { title: "Namespaces", draw: drawNamespaces },
      { title: "End it", node: (row) => removal(row.name) },
    ],
  });
  const note = h("p", { class: "refused", hidden: true });
  frame({
    title: "Tenants and namespaces",
    crumbs: [],
    content: [h("div", { class: "controls" }, field("Find a tenant or namespace", search)), note, list.node,
      section("Create", [
        creation("Tenant", (name) => path("admin", "v2", "tenants", name),
          async () => ({ allowedClusters: await get(path("admin", "v2", "clusters"), { signal }) })),
        creation("Namespace, as tenant/namespace", (name) => path("admin", "v2", "namespaces", ...partsOf(name)), () => undefined),
      ])],
  });

  /** A form for one name. where(name): what is put there; body(): with what. */
  function creation(label, where, body) {
    const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
    const form = h("form", { class: "controls", onsubmit: submit }, field(label, name), h("button", { class: "primary" }, `Create ${label.split(/\W/)[0].toLowerCase()}`));
    async function submit(event) {
      event.preventDefault();
      const text = name.value.trim();
      try {
        await json("PUT", where(text), { body: await body() });
        tell(`${text} is there.`);
        name.value = "";
        look();
      } catch (error) {
        tell(`${text} was not created. ${error.status === undefined ? error.message : wordsOf(error)}`, true);
      }
    }
    return form;
  }

  function removal(name) {
    return actionButton(`Delete ${name}`, {
      isDanger: true,
      question: () => ({
        title: `Delete the tenant ${name}?`,
        text: "It must have no namespaces. Its administrators lose their rights with it.",
        action: "Delete",
        typed: name,
      }),
      work: () => ask("DELETE", path("admin", "v2", "tenants", name)),
      done: `${name} was deleted.`,
      after: () => look(),
    });
  }

  function drawNamespaces(row, cell) {
    const known = found.get(row.name);
    const names = (known?.names || []).filter((name) => !row.wanted || row.name.includes(row.wanted) || name.includes(row.wanted));
    const text = known?.error || (known ? names.join("\n") : "…");
    if (cell.dataset.shown === text) return;
    cell.dataset.shown = text;
    if (known?.error || !known) cell.textContent = text;
    else if (!names.length) cell.textContent = "none yet";
    else cell.replaceChildren(h("ul", { class: "inline" }, names.map((name) => {
      const [tenant, namespace] = name.split("/");
      return h("li", {}, link(view("namespace", tenant, namespace), namespace));
    })));
  }

  function update() {
    const wanted = search.value.trim();
    const rows = tenants
      .map((name) => ({ name, wanted }))
      .filter(({ name }) => !wanted || name.includes(wanted) || (found.get(name)?.names || []).some((each) => each.includes(wanted)));
    list.update(rows);
  }

  const look = poll(signal, EVERY_MS, async () => {
    try {
      tenants = await get(path("admin", "v2", "tenants"), { signal });
      note.hidden = true;
    } catch (error) {
      if (error.status !== 403) throw error;
      note.hidden = false;
      note.textContent = `${wordsOf(error)} A list of all tenants takes a super user; go to your namespace by its name, above.`;
      return;
    }
    update();
    await each(tenants.slice(0, TENANTS_WITH_NAMESPACES_MAX), NAMESPACES_AT_ONCE, async (tenant) => {
      try {
        found.set(tenant, { names: await get(path("admin", "v2", "namespaces", tenant), { signal }) });
      } catch (error) {
        if (signal.aborted) throw error;
        found.set(tenant, { error: wordsOf(error) });
      }
    });
    update();
  });
}

/** The two names of a namespace. Throws words for whoever typed it. */
function partsOf(text) {
  const parts = text.split("/");
  if (parts.length !== 2 || !parts.every(Boolean)) throw new Error("A namespace is tenant/namespace.");
  return parts;
}
