// Requests to the broker: its admin interface, as everybody else uses it. The token is kept in the
// tab and nowhere else. Topics of other brokers are reached through this one, which passes the
// request on (X-Magnetar-Forward). Every request ends within a bound.

const TIMEOUT_MS = 20_000;
const KEY = "magnetar.token";

export const token = {
  get: () => sessionStorage.getItem(KEY) || "",
  set(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  },
};

/** A request that came to nothing; `status` 0: there was no answer. */
export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }

  /** What happened, and what it means for whoever asked. */
  get words() {
    const reason = this.message;
    if (this.status === 0) return `The broker does not answer: ${reason}`;
    if (this.status === 401) return `The broker does not know who you are: ${reason}`;
    if (this.status === 403) return `You may not do this: ${reason}`;
    if (this.status === 404) return `It is not there: ${reason}`;
    if (this.status === 409 || this.status === 412) return `That cannot be done: ${reason}`;
    if (this.status >= 500) return `The broker cannot do this now: ${reason}`;
    return `The broker refused (${this.status}): ${reason}`;
  }
}

/** Text that ends as a sentence does. */
export const sentence = (text) => (/[.!?:]$/.test(text) ? text : `${text}.`);

/** Any error in words. */
export const wordsOf = (error) => (error instanceof ApiError ? error.words : `The console failed: ${error.message}`);

/** Listeners for answers, whatever they say. */
export const onAnswer = new Set();

/** Listeners for requests that were refused for want of a token. */
export const onUnknown = new Set();

/** A path out of names. Browsers take "." and ".." in paths for directions, encoded or not: a
 * request about such a name would be about something else. */
export function path(...names) {
  for (const name of names)
    if (name === "." || name === ".." || name === "")
      throw new ApiError(400, `a browser cannot ask about the name ${JSON.stringify(name)}; use magnetar admin`);
  return `/${names.map(encodeURIComponent).join("/")}`;
}

/** Of a topic: {domain, tenant, namespace, name}. */
export const topicPath = (topic, ...rest) =>
  path("admin", "v2", topic.domain, topic.tenant, topic.namespace, topic.name, ...rest);

/** Statistics that load nothing: of a topic that nobody uses they are empty. To load a topic may be
 * the end of it, where a policy deletes what is loaded and not used. */
export const restingStats = (topic, options) => get(`${topicPath(topic, "stats")}?onlyLoaded=true`, options);
export const isAtRest = (stats) => stats.msgRateIn === undefined;

/** The answer as it came: a Response whose status is one of success. */
export async function ask(method, where, { body, signal, timeoutMs = TIMEOUT_MS } = {}) {
  const headers = { "X-Magnetar-Forward": "1", Accept: "application/json, */*" };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const signals = [AbortSignal.timeout(timeoutMs)];
  if (signal) signals.push(signal);
  let answer;
  try {
    answer = await fetch(where, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.any(signals),
      redirect: "error",
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    const isLate = error.name === "TimeoutError";
    throw new ApiError(0, isLate ? `no answer within ${timeoutMs / 1000} s` : "is it running?");
  }
  for (const listener of onAnswer) listener();
  if (answer.ok) return answer;
  let reason = answer.statusText || `status ${answer.status}`;
  try {
    const text = await answer.text();
    const told = JSON.parse(text);
    reason = [told.reason, told.detail].filter(Boolean).join(": ") || reason;
  } catch {
    // No JSON: the status must do.
  }
  const error = new ApiError(answer.status, String(reason));
  if (answer.status === 401) for (const listener of onUnknown) listener(error);
  throw error;
}

/** The JSON of an answer; null: it has none. */
export async function json(method, where, options) {
  const answer = await ask(method, where, options);
  const text = await answer.text();
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

export const get = (where, options) => json("GET", where, options);

/** Do `work` on all, no more than so many at a time; in their order. After the first error no more are begun. */
export async function each(items, atOnce, work) {
  const results = new Array(items.length);
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const index = next++;
      try {
        results[index] = await work(items[index], index);
      } catch (error) {
        next = items.length;
        throw error;
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(atOnce, items.length) }, worker));
  return results;
}
