// Looks again and again, politely: one round at a time, none while nobody looks at the page or it is
// paused, and ever more seldom while the broker does not answer.

const WAIT_MS_MAX = 60_000;

let isPaused = false;
const changed = new Set();
/** Called with an error of the view in sight and the wait until it is tried again; null: all is well. */
export const onTrouble = new Set();
/** What polls have trouble with: one that is well does not hide the trouble of another. */
const troubles = new Map();

function tellTrouble(poll, trouble) {
  if (trouble) troubles.set(poll, trouble);
  else troubles.delete(poll);
  const { error, waitMs } = [...troubles.values()].at(-1) || { error: null, waitMs: 0 };
  for (const each of onTrouble) each(error, waitMs);
}

/** Whether polling rests because the reader wants it to. */
export function pause(is) {
  isPaused = is;
  for (const each of changed) each();
}

document.addEventListener("visibilitychange", () => {
  for (const each of changed) each();
});

/** Do `work` now and every `everyMs` until the signal ends it. Returns a function: do it at once. */
export function poll(signal, everyMs, work) {
  let timer = 0;
  let waitMs = everyMs;
  let isRunning = false;
  let isWanted = false;

  async function round() {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (isRunning) {
      isWanted = true;
      return;
    }
    isRunning = true;
    isWanted = false;
    try {
      await work();
      waitMs = everyMs;
      tellTrouble(round, null);
    } catch (error) {
      if (signal.aborted) return;
      waitMs = Math.min(2 * waitMs, WAIT_MS_MAX);
      // What the view has told in a place of its own is not told twice.
      tellTrouble(round, error.isTold ? null : { error, waitMs });
    } finally {
      isRunning = false;
    }
    if (isWanted) round();
    else plan();
  }

  function plan() {
    clearTimeout(timer);
    if (!signal.aborted && !isPaused && !document.hidden) timer = setTimeout(round, waitMs);
  }

  function onChange() {
    if (isPaused || document.hidden) clearTimeout(timer);
    else round();
  }

  changed.add(onChange);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    changed.delete(onChange);
    troubles.delete(round);
  });
  round();
  return round;
}
