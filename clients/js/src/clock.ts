/** Time and chance, in one place, so that tests can hold them. */
export interface Clock {
  /** Milliseconds; only differences count, but for a Retry-After that is a date. */
  now(): number;
  /** A number in 0..1. */
  random(): number;
  /** Calls `run` once after `ms`; the returned function calls it off. */
  after(ms: number, run: () => void): () => void;
  /**
   * Calls `run` whenever waiting may have become pointless: the network is back, or the page is looked at again. The
   * returned function calls it off. Without this method a wait lasts as long as it was to.
   */
  woken?(run: () => void): () => void;
}

export const systemClock: Clock = {
  now: () => Date.now(),
  random: () => Math.random(),
  after(ms, run) {
    // Longer waits would overflow the timers of browsers and Node, and fire at once.
    const timer = setTimeout(run, Math.min(ms, 2 ** 31 - 1));
    return () => clearTimeout(timer);
  },
  woken(run) {
    // Neither is there in Node.
    const page = globalThis.document;
    const seen = () => {
      if (page.visibilityState === 'visible') run();
    };
    globalThis.addEventListener?.('online', run);
    page?.addEventListener('visibilitychange', seen);
    return () => {
      globalThis.removeEventListener?.('online', run);
      page?.removeEventListener('visibilitychange', seen);
    };
  },
};

/** Waits, but not longer than until `signal` aborts or the clock is woken; returns normally either way. */
export function pause(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const finish = () => {
      callOff();
      sleepOn?.();
      signal?.removeEventListener('abort', finish);
      resolve();
    };
    const callOff = clock.after(ms, finish);
    const sleepOn = clock.woken?.(finish);
    signal?.addEventListener('abort', finish);
  });
}
