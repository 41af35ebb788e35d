// Small plots of the last minutes, as SVG. What they show is also said in words and numbers; the
// second line is told from the first by its dashes, not by colour alone. Values are kept over
// changes of the view, in a bounded number of series.

import { h, s, say } from "./dom.js";

const POINTS = 120;
const POINTS_AT_FIRST = 20;
const SERIES_MAX = 200;
const WIDTH = 240;
const HEIGHT = 56;

const histories = new Map();

/** The values of a series so far, oldest first. */
export function history(name) {
  const found = histories.get(name) || [];
  histories.delete(name);
  histories.set(name, found);
  if (histories.size > SERIES_MAX) histories.delete(histories.keys().next().value);
  return found;
}

function keep(values, value) {
  values.push(value);
  if (values.length > POINTS) values.splice(0, values.length - POINTS);
}

function points(values, top, width, height) {
  const span = Math.max(POINTS_AT_FIRST, values.length);
  const step = width / (span - 1);
  const first = span - values.length;
  return values
    .map((value, index) => `${((first + index) * step).toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`)
    .join(" ");
}

/** lines: [{name, key, format}], one or two. push(values): one value for each. */
export function plot(title, lines) {
  const paths = lines.map((_, index) => s("polyline", { class: index ? "line second" : "line" }));
  const drawing = s("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "plot", "aria-label": title,
  }, s("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }), paths);
  const values = lines.map(() => h("b", {}, "–"));
  const top = h("span", { class: "top" });
  const legend = lines.map((line, index) =>
    h("span", { class: index ? "key second" : "key" }, `${line.name} `, values[index]));
  const node = h("figure", {}, h("figcaption", {}, h("span", {}, title), top), drawing,
    h("div", { class: "legend" }, legend));

  function push(given) {
    const series = lines.map((line, index) => {
      const kept = history(line.key);
      keep(kept, Number(given[index]) || 0);
      return kept;
    });
    const highest = Math.max(...series.flat());
    series.forEach((kept, index) => {
      paths[index].setAttribute("points", points(kept, highest || 1, WIDTH, HEIGHT));
      say(values[index], lines[index].format(kept.at(-1)));
    });
    say(top, `highest ${lines[0].format(highest)}`);
    const told = lines.map((line, index) => `${line.name} ${line.format(series[index].at(-1))}`);
    drawing.setAttribute("aria-label", `${title}: ${told.join(", ")}, highest ${lines[0].format(highest)}`);
  }

  return { node, push };
}

/** A plot for the cell of a table, without words: the number stands beside it. */
export function spark() {
  const line = s("polyline", { class: "line" });
  const node = s("svg", {
    viewBox: "0 0 80 18", preserveAspectRatio: "none", class: "spark", "aria-hidden": "true",
  }, line);
  return {
    node,
    push(name, value) {
      const kept = history(name);
      keep(kept, Number(value) || 0);
      line.setAttribute("points", points(kept, Math.max(...kept) || 1, 80, 18));
    },
  };
}
