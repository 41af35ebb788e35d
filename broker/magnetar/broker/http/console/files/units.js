// Values of policies in words. The names of Pulsar's fields say their units: so what a field is called decides
// how its number is written, and new policies are shown rightly without a table of all of them.

import { bytes, count } from "./format.js";

const STEPS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];

/** "3 d", "1 h 30 min", "45 s" of seconds. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0) return "without limit";
  const parts = [];
  let rest = seconds;
  for (const [unit, size] of STEPS) {
    const whole = Math.floor(rest / size);
    if (whole) parts.push(`${count(whole)} ${unit}`);
    rest -= whole * size;
    if (parts.length === 2) break;
  }
  return parts.join(" ") || "0 s";
}

const size = (value) => (value < 0 ? "without limit" : bytes(value));

/** [pattern of a field's name, how its number is written]; the first that fits counts. */
const UNITS = [
  [/In(Minutes)$|_minutes$|minutes$/i, (value) => duration(value < 0 ? -1 : value * 60)],
  [/millis$|_ms$|Ms$/, (value) => (value < 0 ? "without limit" : `${count(value)} ms`)],
  [/InSeconds?$|_seconds?$|_in_seconds$|Seconds$|PeriodInSecond$|limitTime$/i, duration],
  [/InMB$/i, (value) => size(value < 0 ? -1 : value * 1024 * 1024)],
  [/InMsg$/i, (value) => (value < 0 ? "without limit" : `${count(value)} messages`)],
  [/InByte$/i, size],
  [/size$|bytes|limitSize|threshold$/i, size],
];

/** A value by its name: numbers with units, what is nested as "name: value". */
export function valueInWords(name, value) {
  if (value === null || value === undefined || value === "") return "not set";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") {
    const found = UNITS.find(([pattern]) => pattern.test(name));
    return found ? found[1](value) : count(value);
  }
  if (Array.isArray(value)) return value.length ? value.map((each) => valueInWords(name, each)).join(", ") : "none";
  if (typeof value === "object") {
    const parts = Object.entries(value).map(([key, each]) => `${labelOf(key)}: ${valueInWords(key, each)}`);
    return parts.join("; ") || "not set";
  }
  return String(value);
}

/** A field's name as words: retentionTimeInMinutes and message_ttl_in_seconds without their units. */
export function labelOf(name) {
  const plain = name.replace(/_/g, " ")
    .replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase()
    .replace(/ in (minutes|seconds?|mb|millis|msg|bytes?)$/, (_, unit) => (/msg/.test(unit) ? " messages" : /byte/.test(unit) ? " bytes" : ""))
    .replace(/ (minutes|seconds)$/, "")
    .replace("ttl", "TTL").replace(/ policies$/, "");
  return plain[0].toUpperCase() + plain.slice(1);
}
