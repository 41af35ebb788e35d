// The policies and permissions of a namespace, and what counts for a topic: values with their units. Those
// that operators change most have a form.

import { ask, each, get, json, path, topicPath, wordsOf } from "./api.js";
import { actionButton, tell } from "./dialogs.js";
import { field, h, identity, say, section, visible } from "./dom.js";
import { view } from "./names.js";
import { poll } from "./polling.js";
import { table } from "./table.js";
import { labelOf, valueInWords } from "./units.js";

const EVERY_MS = 15_000;
const TIMES = [["minutes", 60], ["hours", 3600], ["days", 86_400]];
const SIZES = [["MB", 1 << 20], ["GB", 1 << 30], ["TB", 2 ** 40]];
const ACTIONS = ["produce", "consume", "functions", "sources", "sinks", "packages"];
const NO_POLICIES = new Set(["auth_policies", "bundles", "deleted", "properties", "resource_group_name", "migrated"]);

function policyTable(label) {
  return table({
    label,
    key: (row) => row.name,
    empty: "No policy is set: those of the broker count.",
    columns: [
      { title: "Policy", text: (row) => labelOf(row.name), value: (row) => row.name },
      { title: "Value", text: (row) => valueInWords(row.name, row.value) },
      { title: "In Pulsar's tools", text: (row) => row.name },
    ],
  });
}

/** The tab "Policies" of a namespace. */
export function showPolicies({ tenant, namespace, content, signal }) {
  const where = path("admin", "v2", "namespaces", tenant, namespace);
  const list = policyTable("Policies");
  const trouble = h("p", { class: "refused", role: "alert", hidden: true });
  content.replaceChildren(trouble, list.node, section("Change", forms(where, () => look())),
    section("End of this namespace", removal(tenant, namespace, where)));
  const look = poll(signal, EVERY_MS, async () => {
    const found = await orTell(trouble, () => get(where, { signal }));
    const isSet = ([name, value]) => !NO_POLICIES.has(name) && !(value && typeof value === "object" && !Object.keys(value).length);
    list.update(Object.entries(found).filter(isSet).map(([name, value]) => ({ name, value })));
  });
}

function removal(tenant, namespace, where) {
  const name = `${tenant}/${namespace}`;
  return h("div", { class: "actions" }, actionButton("Delete the namespace", {
    isDanger: true,
    question: () => ({
      title: `Delete the namespace ${name}?`,
      text: "It must have no topics. Its policies and permissions are gone for good.",
      action: "Delete",
      typed: name,
    }),
    work: () => ask("DELETE", where),
    done: `${name} was deleted.`,
    after: () => { location.hash = view("tenants"); },
  }));
}

/** Do it; what is refused is told in the view, not in the bar. */
async function orTell(node, work) {
  try {
    const found = await work();
    visible(node, false);
    return found;
  } catch (error) {
    if ([403, 404, 503].includes(error.status)) {
      say(node, wordsOf(error));
      visible(node, true);
      error.isTold = true;
    }
    throw error;
  }
}

/** A number with a unit: {nodes, value()}; value() is null if the field is empty. */
function measured(label, units) {
  const number = h("input", { type: "number", min: 0, step: "any" });
  const unit = h("select", { "aria-label": `Unit of ${label.toLowerCase()}` }, units.map(([text]) => h("option", { value: text }, text)));
  return {
    nodes: [field(label, number), unit],
    value: () => (number.value === "" ? null : Math.round(Number(number.value) * new Map(units).get(unit.value))),
  };
}

/** A policy that can be set and removed. body(): what is sent, or throws words. */
function form(title, where, query, nodes, body, after) {
  return h("div", { class: "controls" }, h("div", { class: "joined" }, nodes,
    actionButton(`Set ${title}`, {
      work: () => json("POST", `${where}${query}`, { body: body() }),
      done: `The ${title} is set.`,
      after,
    }),
    actionButton(`Remove ${title}`, {
      work: () => ask("DELETE", `${where}${query}`),
      done: `The ${title} is not set any more: that of the broker counts.`,
      after,
    })));
}

const given = (value, what) => {
  if (value === null) throw new Error(`give ${what} first.`);
  return value;
};

function forms(where, after) {
  const ttl = measured("Expire unacknowledged messages after", TIMES);
  const time = measured("Keep acknowledged messages for", TIMES);
  const size = measured("and up to a size of", SIZES);
  const quota = measured("Backlogs up to", SIZES);
  const policy = h("select", {}, [["producer_request_hold", "hold producers back"], ["producer_exception", "refuse producers"], ["consumer_backlog_eviction", "drop the oldest messages"]]
    .map(([value, text]) => h("option", { value }, text)));
  return [
    form("message TTL", `${where}/messageTTL`, "", ttl.nodes, () => given(ttl.value(), "a time"), after),
    form("retention", `${where}/retention`, "", [...time.nodes, ...size.nodes], () => ({
      retentionTimeInMinutes: Math.ceil(given(time.value(), "a time") / 60),
      retentionSizeInMB: size.value() === null ? -1 : Math.ceil(size.value() / (1 << 20)),
    }), after),
    form("backlog quota", `${where}/backlogQuota`, "?backlogQuotaType=destination_storage", [...quota.nodes, field("Above it", policy)],
      () => ({ limitSize: given(quota.value(), "a size"), policy: policy.value }), after),
  ];
}

/** The tab "Permissions" of a namespace. */
export function showPermissions({ tenant, namespace, content, signal }) {
  const where = [path("admin", "v2", "namespaces", tenant, namespace), "permissions"];
  const trouble = h("p", { class: "refused", role: "alert", hidden: true });
  const list = table({
    label: "Permissions",
    key: (row) => `${row.role} ${row.actions}`,
    empty: "No role has a permission of its own here: super users and the tenant's administrators may do everything.",
    columns: [
      { title: "Role", text: (row) => row.role, value: (row) => row.role },
      { title: "May", text: (row) => row.actions.join(", ") },
      { title: "Take away", node: (row) => revoke(row.role) },
    ],
  });
  const role = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const boxes = ACTIONS.map((action) => ({ action, box: h("input", { type: "checkbox", id: identity("action") }) }));
  const grant = h("form", { class: "controls", onsubmit: submit }, field("Role", role),
    boxes.map(({ action, box }) => h("p", { class: "check" }, box, h("label", { for: box.id }, action))),
    h("button", { class: "primary" }, "Grant"));
  content.replaceChildren(trouble, list.node, section("Grant permissions", grant));

  const place = (name) => `${where[0]}/${where[1]}/${encodeURIComponent(name)}`;

  function revoke(name) {
    return actionButton(`Revoke ${name}`, {
      isDanger: true,
      question: () => ({
        title: `Take all permissions from ${name}?`,
        text: "Its producers and consumers in this namespace are disconnected when they are checked again.",
        action: "Revoke",
      }),
      work: () => ask("DELETE", place(name)),
      done: `${name} has no permission here.`,
      after: () => look(),
    });
  }

  async function submit(event) {
    event.preventDefault();
    const wanted = boxes.filter(({ box }) => box.checked).map(({ action }) => action);
    try {
      if (!wanted.length) throw new Error("choose what the role may do first.");
      path(role.value.trim()); // Refuses names that cannot be asked about.
      await json("POST", place(role.value.trim()), { body: wanted });
      tell(`${role.value.trim()} may ${wanted.join(" and ")}.`);
      role.value = "";
      look();
    } catch (error) {
      tell(`Not granted: ${error.status === undefined ? error.message : wordsOf(error)}`, true);
    }
  }

  const look = poll(signal, EVERY_MS, async () => {
    const found = await orTell(trouble, () => get(where.join("/"), { signal }));
    list.update(Object.entries(found).map(([name, actions]) => ({ role: name, actions })));
  });
}

const OF_TOPICS = ["retention", "messageTTL", "backlogQuotaMap", "inactiveTopicPolicies", "persistence", "maxProducers", "maxConsumers",
  "maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription", "dispatchRate", "subscriptionDispatchRate", "publishRate",
  "compactionThreshold", "deduplicationEnabled", "delayedDelivery", "subscriptionExpirationTime"];
/** Values without a unit in their own name: that of the policy says it. */
const NAMES = { messageTTL: "message_ttl_in_seconds", subscriptionExpirationTime: "subscription_expiration_time_minutes", compactionThreshold: "compaction_threshold" };

/** The tab "Policies" of a topic: what counts for it, wherever it was set. */
export function showTopicPolicies({ topic, content, signal }) {
  const list = policyTable("Policies that count for this topic");
  const trouble = h("p", { class: "refused", role: "alert", hidden: true });
  content.replaceChildren(trouble, list.node);
  poll(signal, EVERY_MS, async () => {
    const rows = await orTell(trouble, () => each(OF_TOPICS, 4, async (name) => {
      const value = await get(`${topicPath(topic, name)}?applied=true`, { signal });
      return { name: NAMES[name] || name, value };
    }));
    list.update(rows.filter((row) => row.value !== null));
  });
}


