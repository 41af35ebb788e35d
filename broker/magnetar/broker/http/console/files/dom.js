// Builds elements. Everything that comes from elsewhere (names, payloads, reasons) ends up in text
// nodes and attributes that are no code: there is no way from a string to markup in this console.

const SVG = "http://www.w3.org/2000/svg";

/** An element: properties that start with "on" are listeners, booleans are present or absent. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function s(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return node;
}

/** Change the text of a node only if it is another one: selections and readers are not disturbed. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
  return node;
}

/** Show or hide. */
export function visible(node, is) {
  if (node.hidden === is) node.hidden = !is;
  return node;
}

let identities = 0;

/** An id that no other element has. */
export function identity(stem) {
  identities += 1;
  return `${stem}-${identities}`;
}

/** A labelled control; `hint` is read with it. */
export function field(label, control, hint = "") {
  control.id ||= identity("field");
  const parts = [h("label", { for: control.id }, label), control];
  if (hint) {
    const told = h("small", { id: `${control.id}-hint` }, hint);
    control.setAttribute("aria-describedby", told.id);
    parts.push(told);
  }
  return h("div", { class: "field" }, parts);
}

/** A section with a heading; `more` goes beside the heading. */
export function section(title, children, more = []) {
  const heading = h("h2", { id: identity("section") }, title);
  return h("section", { "aria-labelledby": heading.id },
    h("div", { class: "head" }, heading, ...[more].flat()), children);
}
