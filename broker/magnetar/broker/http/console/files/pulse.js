// Whether the broker answers at all, seen within five seconds: a process that is frozen keeps its
// connections open, and a request to it just takes long. So the smallest file of the page is asked for
// when two seconds have passed without an answer, while somebody looks.

import { onAnswer } from "./api.js";

const EVERY_MS = 2000;
const TIMEOUT_MS = 2000;
const FILE = "console/icon.svg";

/** Call `told(seconds)` while the broker is silent, with the time since its last answer; 0: it answers.
 * `isResting()`: nobody wants to know. */
export function watchPulse(told, isResting) {
  let answeredMs = performance.now();
  let isSilent = false;
  let timer = 0;

  function heard() {
    answeredMs = performance.now();
    if (!isSilent) return;
    isSilent = false;
    told(0);
  }

  async function beat() {
    clearTimeout(timer);
    if (isResting()) return;
    const leftMs = answeredMs + EVERY_MS - performance.now();
    if (leftMs > 0) {
      timer = setTimeout(beat, leftMs);
      return;
    }
    try {
      await fetch(FILE, { method: "HEAD", cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(TIMEOUT_MS) });
      heard();
    } catch {
      if (!isResting()) {
        isSilent = true;
        told((performance.now() - answeredMs) / 1000);
      }
    }
    clearTimeout(timer);
    if (!isResting()) timer = setTimeout(beat, isSilent ? EVERY_MS : 0);
  }

  onAnswer.add(heard);
  /** Begin again after a rest: its time does not count. */
  return function wake() {
    if (!isSilent) answeredMs = performance.now();
    beat();
  };
}
