// Small plots over the last hour, as SVG. What they show is also said in words and numbers; the
// second line is told from the first by its dashes, not by colour alone. The broker has a point per
// minute; those since the view was opened are closer to each other. Values are kept over changes of
// the view, in a bounded number of series.

import { get } from "./api.js";
import { h, s, say } from "./dom.js";

const SPAN_MS = 3_600_000;
const SPAN_AT_FIRST_MS = 60_000;
const POINTS = 720;
const SERIES_MAX = 200;
const WIDTH = 240;
const HEIGHT = 56;

const histories = new Map(); // name -> [[ms, value]], the oldest first

function history(name) {
  const found = histories.get(name) || [];
  histories.delete(name);
  histories.set(name, found);
  if (histories.size > SERIES_MAX) histories.delete(histories.keys().next().value);
  return found;
}

function keep(points, value, now = Date.now()) {
  points.push([now, value]);
  const gone = points.findIndex(([ms]) => ms >= now - SPAN_MS);
  if (gone > 0) points.splice(0, gone);
  // The older half has every other point from then on.
  if (points.length > POINTS) points.splice(0, POINTS / 2, ...points.slice(0, POINTS / 2).filter((_, index) => index % 2));
}

/** Put what the broker has kept before the points of this page. */
function before(points, values, { endedMs, intervalMs }) {
  const first = points[0]?.[0] ?? Infinity;
  const older = values.map((value, index) => [endedMs - (values.length - 1 - index) * intervalMs, value])
    .filter(([ms]) => ms < first);
  points.unshift(...older);
}

function line(points, top, width, height) {
  if (!points.length) return "";
  const end = points.at(-1)[0];
  const span = Math.max(SPAN_AT_FIRST_MS, end - points[0][0]);
  return points
    .map(([ms, value]) => `${(width - ((end - ms) / span) * width).toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`)
    .join(" ");
}

/** Ask the broker for the last hour, once, and give it to plots: [[plot, [names of its lines]]]. Without it
 * plots begin when the view opens, as for whoever may not ask. */
export async function remember(where, plots, signal) {
  let found;
  try {
    found = await get(where, { signal });
  } catch {
    return;
  }
  if (signal.aborted || !found.endedMs) return;
  for (const [plot, names] of plots) plot.seed(names.map((name) => found.points[name] || []), found);
}

/** lines: [{name, key, format}], one or two. push(values): one value for each. */
export function plot(title, lines) {
  const paths = lines.map((_, index) => s("polyline", { class: index ? "line second" : "line" }));
  const drawing = s("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "plot", "aria-label": title,
  }, s("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }), paths);
  const values = lines.map(() => h("b", {}, "–"));
  const top = h("span", { class: "top" });
  const legend = lines.map((each, index) =>
    h("span", { class: index ? "key second" : "key" }, `${each.name} `, values[index]));
  const node = h("figure", {}, h("figcaption", {}, h("span", {}, title), top), drawing,
    h("div", { class: "legend" }, legend));

  function push(given) {
    const series = lines.map((each, index) => {
      const kept = history(each.key);
      keep(kept, Number(given[index]) || 0);
      return kept;
    });
    draw(series);
  }

  /** Show what was before: a list of values for each line, the oldest first. */
  function seed(given, times) {
    const series = lines.map((each) => history(each.key));
    if (series.some((kept) => kept.isSeeded)) return;
    series.forEach((kept, index) => {
      before(kept, given[index], times);
      kept.isSeeded = true;
    });
    if (series.every((kept) => kept.length)) draw(series);
  }

  function draw(series) {
    const highest = Math.max(...series.flat().map(([, value]) => value));
    series.forEach((kept, index) => {
      paths[index].setAttribute("points", line(kept, highest || 1, WIDTH, HEIGHT));
      say(values[index], lines[index].format(kept.at(-1)[1]));
    });
    const minutes = Math.round((series[0].at(-1)[0] - series[0][0][0]) / 60_000);
    say(top, `highest ${lines[0].format(highest)}${minutes ? `, last ${minutes} min` : ""}`);
    const told = lines.map((each, index) => `${each.name} ${each.format(series[index].at(-1)[1])}`);
    drawing.setAttribute("aria-label", `${title}: ${told.join(", ")}, highest ${lines[0].format(highest)}${minutes ? ` of the last ${minutes} minutes` : ""}`);
  }

  return { node, push, seed };
}

/** A plot for the cell of a table, without words: the number stands beside it. */
export function spark() {
  const drawn = s("polyline", { class: "line" });
  const node = s("svg", {
    viewBox: "0 0 80 18", preserveAspectRatio: "none", class: "spark", "aria-hidden": "true",
  }, drawn);
  return {
    node,
    push(name, value) {
      const kept = history(name);
      keep(kept, Number(value) || 0);
      drawn.setAttribute("points", line(kept, Math.max(...kept.map(([, each]) => each)) || 1, 80, 18));
    },
  };
}
