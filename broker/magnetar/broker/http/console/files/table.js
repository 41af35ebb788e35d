// Tables that change in place: rows keep their elements as long as their key is there, so that
// focus, selection and an open menu survive the next look. On a narrow screen a row is a card whose
// cells say the titles of their columns.

import { h, say, visible } from "./dom.js";

const ROWS_AT_FIRST = 100;

/**
 * columns: [{title, number, text(row) | node(row) | draw(row, cell)}]; `node` is made once per row,
 * `draw` is called at each update. key(row): what makes a row the same row. empty: what to do if
 * there is nothing, as text or node.
 */
export function table({ label, columns, key, empty }) {
  const body = h("tbody", { role: "rowgroup" });
  const titles = columns.map(({ title, number }) =>
    h("th", { scope: "col", role: "columnheader", class: number ? "number" : null }, title));
  const node = h("table", { role: "table", "aria-label": label },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, titles)), body);
  const nothing = h("p", { class: "empty", hidden: true }, empty);
  const more = h("button", { type: "button", hidden: true, onclick: () => grow() });
  const known = new Map();
  let limit = ROWS_AT_FIRST;
  let last = [];

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
    const shown = rows.slice(0, limit);
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

  return { node: h("div", { class: "table" }, node, nothing, more), update };
}

/** A link, as a cell has it. */
export const link = (href, text) => h("a", { href }, text);
