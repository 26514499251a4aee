/** Time and chance, in one place, so that tests can hold them. */

import type { Wake } from './wake.js';

export interface Clock {
  /** Milliseconds; only differences count, but for a Retry-After that is a date. */
  now(): number;
  /** A number in 0..1. */
  random(): number;
  /** Calls `run` once after `ms`; the returned function calls it off. */
  after(ms: number, run: () => void): () => void;
}

export const systemClock: Clock = {
  now: () => Date.now(),
  random: () => Math.random(),
  after(ms, run) {
    // Longer waits would overflow the timers of browsers and Node, and fire at once.
    const timer = setTimeout(run, Math.min(ms, 2 ** 31 - 1));
    return () => clearTimeout(timer);
  },
};

/** Waits, but not longer than until `signal` aborts or `wake` calls; returns normally either way. */
export function pause(clock: Clock, ms: number, signal?: AbortSignal, wake?: Wake): Promise<void> {
  if (signal?.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const finish = () => {
      callOff();
      sleepOn?.();
      signal?.removeEventListener('abort', finish);
      resolve();
    };
    const callOff = clock.after(ms, finish);
    const sleepOn = wake?.(finish);
    signal?.addEventListener('abort', finish);
  });
}
