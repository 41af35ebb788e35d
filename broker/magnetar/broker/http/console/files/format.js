// Numbers and times for people. Units are always said, digits are few.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SMALL = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** 12,345; a dash for what is not known. */
export const count = (value) => (known(value) ? GROUPED.format(value) : "–");

/** 0, 0.3, 12, 3.4 k, 1.2 M: short enough for a column. */
export function amount(value) {
  if (!known(value)) return "–";
  if (value < 1000) return value < 10 ? SMALL.format(value) : GROUPED.format(value);
  for (const [limit, unit] of [[1e6, "k"], [1e9, "M"], [Infinity, "G"]])
    if (value < limit) return `${SMALL.format(value / (limit === Infinity ? 1e9 : limit / 1e3))} ${unit}`;
  return "–";
}

/** Messages per second. */
export const rate = (value) => (known(value) ? `${amount(value)}/s` : "–");

/** 1024 bytes are a KB, as in the settings. */
export function bytes(value) {
  if (!known(value) || value < 0) return "–";
  let rest = value;
  for (const unit of ["B", "KB", "MB", "GB", "TB"]) {
    if (rest < 1024 || unit === "TB") return `${rest < 10 && unit !== "B" ? SMALL.format(rest) : GROUPED.format(rest)} ${unit}`;
    rest /= 1024;
  }
  return "–";
}

/** Bytes per second. */
export const throughput = (value) => (known(value) ? `${bytes(value)}/s` : "–");

export const percent = (value) => (known(value) ? `${GROUPED.format(value)} %` : "–");

/** A time of day, with the day if it is not today's. `when`: ms since 1970, or ISO 8601. */
export function time(when) {
  const date = new Date(when);
  if (!when || Number.isNaN(date.getTime())) return "–";
  const two = (value, digits = 2) => String(value).padStart(digits, "0");
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return clock;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}`;
}

/** Messages of a backlog. It is counted in entries, and an entry may be a batch: about, unless entries have an index. */
export const backlogOf = (row) => {
  if (known(row.backlogMessages) && row.backlogMessages >= 0) return count(row.backlogMessages);
  const messages = row.backlogMessagesEstimate;
  return known(messages) && messages >= 0 && messages !== row.msgBacklog ? `≈ ${count(messages)}` : count(row.msgBacklog);
};

/** "1 message", "2 messages". */
export const many = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;
