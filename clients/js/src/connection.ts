/** One response of the server as a series of SSE items, with an eye on silence. */

import type { Clock } from './clock.js';
import { EventTooLongError } from './errors.js';
import { type SseItem, SseParser } from './sse.js';

/** The response is at its end: cleanly without a cause, or with the error that broke it. */
export interface Cut {
  readonly kind: 'cut';
  readonly cause: unknown;
}

/** Nothing came for so long, not even a heartbeat, that the connection is taken for dead. */
export class SilenceError extends Error {
  constructor(ms: number) {
    super(`nothing came from the server for ${ms} ms`);
    this.name = 'SilenceError';
  }
}

export class Connection {
  readonly #abort: AbortController;
  readonly #reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  readonly #parser: SseParser;
  readonly #clock: Clock;
  readonly #stallMs: number;
  /** What the last bytes completed, and how much of it was taken. */
  #items: SseItem[] = [];
  #taken = 0;

  /** @param abort Ends the request that `response` answers. */
  constructor(
    response: Response,
    abort: AbortController,
    clock: Clock,
    stallMs: number,
    maxEventLength: number,
  ) {
    this.#abort = abort;
    this.#reader = response.body?.getReader();
    this.#parser = new SseParser(maxEventLength);
    this.#clock = clock;
    this.#stallMs = stallMs;
  }

  /**
   * The next item. Bytes are read only when all items are taken, so that a slow caller holds up the server's
   * sending and not memory.
   *
   * @throws EventTooLongError
   */
  async read(): Promise<SseItem | Cut> {
    for (;;) {
      const item = this.#items[this.#taken];
      if (item !== undefined) {
        this.#taken += 1;
        return item;
      }
      if (this.#reader === undefined) return { kind: 'cut', cause: undefined };
      const callOff = watch(this.#clock, this.#stallMs, this.#abort);
      try {
        const { done, value } = await this.#reader.read();
        if (done) return { kind: 'cut', cause: undefined };
        this.#items = this.#parser.push(value);
        this.#taken = 0;
      } catch (cause) {
        if (cause instanceof EventTooLongError) throw cause;
        return { kind: 'cut', cause };
      } finally {
        callOff();
      }
    }
  }

  /** The end was said: lets the response run out, so that its connection can serve again, or hangs up after a second. */
  async drain(): Promise<void> {
    const callOff = this.#clock.after(1000, () => this.close());
    try {
      while (this.#reader !== undefined && !(await this.#reader.read()).done);
    } catch {
      // Nobody waits for the rest.
    } finally {
      callOff();
    }
  }

  /** Hangs up. What was received and not taken is dropped. */
  close(): void {
    this.#items = [];
    this.#taken = 0;
    this.#abort.abort();
    // The reader of a body that is no longer fed by the request would wait for ever.
    this.#reader?.cancel().catch(() => {});
  }
}

/** Aborts after `ms` of silence unless called off; 0 never does. */
export function watch(clock: Clock, ms: number, abort: AbortController): () => void {
  return ms > 0 ? clock.after(ms, () => abort.abort(new SilenceError(ms))) : () => {};
}
