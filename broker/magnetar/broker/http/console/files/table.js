// Tables that change in place: rows keep their elements as long as their key is there, so that
// focus, selection and an open menu survive the next look. On a narrow screen a row is a card whose
// cells say the titles of their columns. A column with a `value` can be sorted by its title.

import { h, say, visible } from "./dom.js";

const ROWS_AT_FIRST = 100;

/**
 * columns: [{title, number, text(row) | node(row) | draw(row, cell), value(row)}]; `node` is made once per
 * row, `draw` is called at each update, `value` is what rows are sorted by. key(row): what makes a row the
 * same row. empty: what to do if there is nothing, as text or node. onsort: called after another order was
 * chosen, where only a page of the rows is given to `update`.
 */
export function table({ label, columns, key, empty, onsort = null }) {
  const body = h("tbody", { role: "rowgroup" });
  const titles = columns.map((column) =>
    h("th", { scope: "col", role: "columnheader", class: column.number ? "number" : null },
      column.value ? h("button", { type: "button", class: "sort", onclick: () => sortBy(column) }, column.title) : column.title));
  const node = h("table", { role: "table", "aria-label": label },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, titles)), body);
  const nothing = h("p", { class: "empty", hidden: true }, empty);
  const more = h("button", { type: "button", hidden: true, onclick: () => grow() });
  const known = new Map();
  let limit = ROWS_AT_FIRST;
  let last = [];
  let order = null;

  /** Numbers begin with the largest, names with A; the third click gives the usual order back. */
  function sortBy(column) {
    const first = Boolean(column.number);
    if (order?.column !== column) order = { column, isDown: first };
    else order = order.isDown === first ? { column, isDown: !first } : null;
    titles.forEach((title, index) => {
      if (columns[index] === order?.column) title.setAttribute("aria-sort", order.isDown ? "descending" : "ascending");
      else title.removeAttribute("aria-sort");
    });
    if (onsort) onsort();
    else update(last);
  }

  /** Rows in the chosen order; those whose value is not known come last in both directions. */
  function sorted(rows) {
    if (!order) return rows;
    const { column, isDown } = order;
    const isKnown = (value) => value !== undefined && value !== null;
    return rows.map((row) => [column.value(row), row]).sort(([one], [other]) => {
      if (!isKnown(one) || !isKnown(other)) return Number(isKnown(other)) - Number(isKnown(one));
      return (one < other ? -1 : one > other ? 1 : 0) * (isDown ? -1 : 1);
    }).map(([, row]) => row);
  }

  function grow() {
    limit += 5 * ROWS_AT_FIRST;
    update(last);
  }

  function made(row) {
    const cells = columns.map((column, index) => {
      const type = index === 0 ? "th" : "td";
      const cell = h(type, {
        role: index === 0 ? "rowheader" : "cell",
        scope: index === 0 ? "row" : null,
        "data-label": column.title,
        class: column.number ? "number" : null,
      });
      if (column.node) cell.append(column.node(row));
      return cell;
    });
    return { line: h("tr", { role: "row" }, cells), cells };
  }

  function update(rows) {
    last = rows;
    const shown = sorted(rows).slice(0, limit);
    const keys = new Set(shown.map(key));
    for (const [name, each] of known)
      if (!keys.has(name)) {
        each.line.remove();
        known.delete(name);
      }
    shown.forEach((row, index) => {
      const name = key(row);
      if (!known.has(name)) known.set(name, made(row));
      const { line, cells } = known.get(name);
      columns.forEach((column, at) => {
        if (column.text) say(cells[at], column.text(row));
        else if (column.draw) column.draw(row, cells[at]);
      });
      if (body.children[index] !== line) body.insertBefore(line, body.children[index] || null);
    });
    visible(node, rows.length > 0);
    visible(nothing, rows.length === 0);
    visible(more, rows.length > limit);
    if (rows.length > limit) say(more, `Show more of ${rows.length - limit}`);
  }

  return { node: h("div", { class: "table" }, node, nothing, more), update, sorted };
}

/** A word with a mark before it, which is not a colour alone. */
export function state(cell, [kind, text]) {
  if (cell.textContent === text && cell.firstChild?.className === `state ${kind}`) return;
  cell.replaceChildren(h("span", { class: `state ${kind}` }, text));
}

/** A link, as a cell has it. */
export const link = (href, text) => h("a", { href }, text);
