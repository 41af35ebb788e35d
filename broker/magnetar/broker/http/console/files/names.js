// Names of topics, and the addresses of views in this page.

/** {domain, tenant, namespace, name} of a full name or of tenant/namespace/topic; null: it is none. */
export function parseTopic(text) {
  const match = /^(?:(persistent|non-persistent):\/\/)?([^/]+)\/([^/]+)\/(.+)$/s.exec(text.trim());
  if (!match) return null;
  return { domain: match[1] || "persistent", tenant: match[2], namespace: match[3], name: match[4] };
}

export const fullName = (topic) => `${topic.domain}://${topic.tenant}/${topic.namespace}/${topic.name}`;

/** The topic of which this is a partition; null: it is none. */
export function wholeOf(topic) {
  const match = /^(.+)-partition-(\d+)$/s.exec(topic.name);
  return match ? { ...topic, name: match[1] } : null;
}

/** The number of a partition as text; "": it is none. */
export const partitionOf = (topic) => (wholeOf(topic) ? topic.name.slice(topic.name.lastIndexOf("-") + 1) : "");

/** The address of a view. */
export const view = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export const topicView = (topic, ...rest) =>
  view("topic", topic.domain, topic.tenant, topic.namespace, topic.name, ...rest);

export const namespaceView = (topic) => view("namespace", topic.tenant, topic.namespace);

/** The way here: [{text, href}], the last one without an address. */
export function crumbsOf(topic, ...rest) {
  const crumbs = [
    { text: topic.tenant, href: view("tenants") },
    { text: topic.namespace, href: namespaceView(topic) },
  ];
  const whole = wholeOf(topic);
  if (whole) crumbs.push({ text: whole.name, href: topicView(whole) });
  crumbs.push({ text: topic.name, href: topicView(topic) });
  return [...crumbs, ...rest];
}
