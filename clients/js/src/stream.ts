/** One answer, read over as many connections as it takes. */

import { Acks } from './acks.js';
import { pause } from './clock.js';
import { Connection, watch } from './connection.js';
import {
  type BatonError,
  ConnectionLostError,
  RequestRefusedError,
  StreamExpiredError,
  StreamIncompleteError,
  StreamUnknownError,
} from './errors.js';
import { type At, notify, type Settings } from './options.js';
import { ending, Position } from './position.js';
import { judgeAnswer, Recovery, retryAfterMs } from './recovery.js';
import { excerpt, isSse, Remote } from './remote.js';
import { encodeEvent, type SseItem } from './sse.js';
import type { Bookmark, Place } from './store.js';

/** One event of an answer. */
export interface BatonEvent {
  /** Its number in the stream, from 0 and without gaps; undefined where the stream cannot be resumed. */
  readonly seq: number | undefined;
  /** The `event:` field; empty for OpenAI's streams. */
  readonly event: string;
  /** The `data:` field: a JSON chunk, or `[DONE]`. */
  readonly data: string;
}

/** What a stream is made from. */
export interface Start {
  readonly settings: Settings;
  readonly place: Place;
  /** What every request about the stream carries. */
  readonly headers: Headers;
  readonly init: RequestInit;
  readonly signal: AbortSignal | undefined;
  readonly bookmark: Bookmark | undefined;
  /** The first connection; without one, the stream is asked for from its place on. */
  readonly connection: Connection | undefined;
  /** False for a response that no GET could go on with. */
  readonly resumable: boolean;
}

type Event = Extract<SseItem, { kind: 'event' }>;

/**
 * An answer. Read it once: with `for await`, or through `toReadableStream()`. To leave the loop, or to abort the
 * signal, only detaches: the server goes on for a while, and `resume(key)` comes back. `cancel()` stops the engine.
 */
export class BatonStream implements AsyncIterable<BatonEvent> {
  readonly #settings: Settings;
  readonly #start: Start;
  readonly #position: Position;
  readonly #recovery: Recovery;
  readonly #remote: Remote;
  readonly #acks: Acks | undefined;
  /** Aborted when the stream ends here, for whatever reason. */
  readonly #life = new AbortController();
  readonly #onAbort = () => this.#stop({ error: this.#start.signal?.reason });

  #connection: Connection | undefined;
  /** Cleared for good by an event without a position. */
  #resumable: boolean;
  /** An event was handed on, over any connection. */
  #begun = false;
  /** The event that ends the stream was handed on. */
  #finished = false;
  /** Why nothing more comes; undefined while something may. With an error, it is thrown. */
  #end: { readonly error?: unknown } | undefined;
  #consumer = false;
  #cancelling: Promise<void> | undefined;

  /** Made by `createBaton()`. */
  constructor(start: Start) {
    const { settings, place } = start;
    this.#start = start;
    this.#settings = settings;
    this.#position = new Position(place.id, place.seq);
    this.#recovery = new Recovery(settings.retry, settings.retry.attempts);
    this.#remote = new Remote(settings, place.url, start.headers, start.init);
    this.#connection = start.connection;
    this.#resumable = start.resumable;
    if (settings.ack !== undefined && start.resumable) {
      this.#acks = new Acks((seq) => this.#remote.ack(seq), settings.clock, settings.ack, place.seq);
    }
    if (start.signal?.aborted) this.#onAbort();
    else start.signal?.addEventListener('abort', this.#onAbort);
  }

  /** The stream's id; empty when the server gave none. */
  get id(): string {
    return this.#start.place.id;
  }

  /** The last seq that was handed on; -1 before the first. */
  get seq(): number {
    return this.#position.seq;
  }

  /** Has the end of the stream been handed on? */
  get finished(): boolean {
    return this.#finished;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<BatonEvent, void, void> {
    this.#consume();
    try {
      for (;;) {
        const event = await this.#next();
        if (event === undefined) return;
        yield event;
      }
    } finally {
      this.detach();
    }
  }

  /** The answer as bytes of plain server-sent events: no ids, no `retry:`, no comments. Cancelling it detaches. */
  toReadableStream(): ReadableStream<Uint8Array<ArrayBuffer>> {
    this.#consume();
    const encoder = new TextEncoder();
    return new ReadableStream<Uint8Array<ArrayBuffer>>(
      {
        pull: async (controller) => {
          for (;;) {
            const event = await this.#next();
            if (event === undefined) return controller.close();
            const bytes = encoder.encode(encodeEvent(event.event, event.data));
            if (bytes.length > 0) return controller.enqueue(bytes);
          }
        },
        cancel: () => this.detach(),
      },
      // Nothing is read ahead: what was not asked for must not count as handed on.
      { highWaterMark: 0 },
    );
  }

  /** Stops reading. The server is not told: it keeps the answer going for its grace period. */
  detach(): void {
    this.#stop({});
  }

  /**
   * Tells the server to stop the engine, and stops reading at once. Idempotent. Resolves when the server has confirmed
   * it, or has nothing left to stop.
   *
   * @throws ConnectionLostError when it could not be told; the engine then runs until its grace period is over.
   * @throws RequestRefusedError
   */
  cancel(): Promise<void> {
    const over = this.#finished;
    this.#stop({});
    void this.#start.bookmark?.clear(this.id);
    if (over || this.id === '') return Promise.resolve();
    this.#cancelling ??= this.#remote.cancel(this.#at);
    return this.#cancelling;
  }

  /** Makes the first connection of a stream that was begun without one. @internal */
  async open(): Promise<void> {
    if (this.#connection === undefined && this.#end === undefined) await this.#comeBack(undefined, false);
    if (this.#end !== undefined && 'error' in this.#end) throw this.#end.error;
  }

  /** Has the stream ended here? @internal */
  get ended(): boolean {
    return this.#end !== undefined;
  }

  #consume(): void {
    if (this.#consumer) throw new TypeError('this stream is being read already; a stream can be read once');
    this.#consumer = true;
  }

  get #at(): At {
    return { id: this.id, seq: this.seq };
  }

  /** The next event that is to be handed on; undefined at the end. One call at a time. */
  async #next(): Promise<BatonEvent | undefined> {
    // Whoever asks for more has dealt with what it got.
    this.#acks?.handled(this.seq);
    if (this.#finished) this.#stop({});
    for (;;) {
      if (this.#end !== undefined) {
        if ('error' in this.#end) throw this.#end.error;
        return undefined;
      }
      if (this.#connection === undefined) {
        await this.#comeBack(undefined, false);
        continue;
      }
      const event = await this.#step(this.#connection);
      if (event !== undefined) return event;
    }
  }

  async #step(connection: Connection): Promise<BatonEvent | undefined> {
    let item: Awaited<ReturnType<Connection['read']>>;
    try {
      item = await connection.read();
    } catch (error) {
      this.#stop({ error });
      return undefined;
    }
    if (this.#end !== undefined) return undefined;
    switch (item.kind) {
      case 'event':
        return this.#event(item);
      case 'retry':
        this.#recovery.retry(item.ms);
        return undefined;
      case 'comment':
        this.#acks?.heard();
        this.#comment(item.text);
        return undefined;
      case 'cut':
        if (this.#resumable) await this.#comeBack(item.cause, true);
        else this.#stop(item.cause === undefined ? {} : { error: item.cause });
        return undefined;
    }
  }

  #comment(text: string): void {
    const { hooks } = this.#settings;
    if (text.trim() === 'baton recovering') notify(() => hooks.onRecovering?.(this.#at));
    if (text.trim() === 'baton continued') notify(() => hooks.onContinued?.(this.#at));
  }

  async #event(item: Event): Promise<BatonEvent | undefined> {
    if (!this.#resumable) return this.#handOn(item, undefined);
    const { verdict, seq } = this.#position.judge(item.id);
    switch (verdict) {
      case 'seen':
        return undefined;
      case 'next':
        return this.#handOn(item, seq);
      case 'unnumbered':
        // In doubt, pass through: what cannot be resumed is still an answer.
        this.#resumable = false;
        this.#acks?.stop();
        void this.#start.bookmark?.clear(this.id);
        return this.#handOn(item, undefined);
      case 'foreign':
        await this.#comeBack(new Error(`an event of another stream came: ${item.id}`), true);
        return undefined;
      case 'gap': {
        const expected = this.seq + 1;
        notify(() => this.#settings.hooks.onGap?.({ ...this.#at, expected, received: seq }));
        await this.#comeBack(new Error(`event ${expected} was expected, and ${seq} came`), true);
        return undefined;
      }
    }
  }

  async #handOn(item: Event, seq: number | undefined): Promise<BatonEvent> {
    this.#begun = true;
    if (ending(item.data) !== undefined) this.#finished = true;
    if (seq !== undefined) {
      this.#position.seq = seq;
      this.#recovery.progress();
      // Before it is handed on: a reload in between may lose an event from the screen, but never show one twice.
      const saved = this.#start.bookmark?.save({ ...this.#start.place, seq });
      if (saved !== undefined) await saved;
    }
    return { seq, event: item.event, data: item.data };
  }

  /** Asks for the rest, after a wait or at once, until there is a connection or an end. */
  async #comeBack(lost: unknown, waits: boolean): Promise<void> {
    this.#connection?.close();
    this.#connection = undefined;
    let cause: unknown = lost ?? new Error('the response ended without a finish');
    let wait = waits;
    let retryAfter = 0;
    for (;;) {
      if (wait) await this.#pause(cause, retryAfter);
      if (this.#end !== undefined) return;
      wait = true;
      const abort = new AbortController();
      const hangUp = () => abort.abort();
      this.#life.signal.addEventListener('abort', hangUp);
      try {
        const response = await this.#remote.rest(this.#position.lastEventId(), abort);
        // It may have been left while the answer was on its way.
        if (this.#end !== undefined) return abort.abort();
        if (await this.#answered(response, abort)) return;
        cause = new Error(`the server answered with status ${response.status}`);
        retryAfter = retryAfterMs(response.headers.get('retry-after'), this.#settings.clock.now());
      } catch (error) {
        cause = error;
        retryAfter = 0;
      } finally {
        this.#life.signal.removeEventListener('abort', hangUp);
      }
      if (this.#end !== undefined) return;
    }
  }

  async #pause(cause: unknown, retryAfter: number): Promise<void> {
    const { clock, hooks, wake } = this.#settings;
    const plan = this.#recovery.broken(clock.now(), clock.random(), retryAfter);
    if (plan.kind === 'give_up') {
      const { attempts } = this.#recovery;
      this.#stop({
        error: new ConnectionLostError(attempts, this.#recovery.outage(clock.now()), this.#at, cause),
      });
      return;
    }
    const attempt = this.#recovery.attempts;
    notify(() => hooks.onDropped?.({ ...this.#at, cause, attempt, waitMs: plan.ms }));
    // A wait that the server asked for is kept to.
    await pause(clock, plan.ms, this.#life.signal, retryAfter > 0 ? undefined : wake);
  }

  /** Acts on the answer to a come-back; false when it has to be asked again. */
  async #answered(response: Response, abort: AbortController): Promise<boolean> {
    const { clock, hooks, stallMs, maxEventLength } = this.#settings;
    const answer = judgeAnswer(response.status, isSse(response));
    if (answer === 'reading') {
      this.#connection = new Connection(response, abort, clock, stallMs, maxEventLength);
      notify(() => hooks.onResumed?.({ ...this.#at, attempts: this.#recovery.attempts }));
      return true;
    }
    if (answer === 'later') {
      abort.abort();
      return false;
    }
    const callOff = watch(clock, stallMs, abort);
    const body = await excerpt(response);
    callOff();
    abort.abort();
    if (this.#end === undefined) this.#failed(answer, response.status, body);
    return true;
  }

  #failed(answer: 'over' | 'unknown' | 'expired' | 'refused', status: number, body: string): void {
    let error: BatonError;
    switch (answer) {
      case 'over':
        // Nothing was missing: whoever came back had seen the end. In the middle of reading, an end is missing.
        if (!this.#begun && this.#start.connection === undefined) {
          this.#finished = true;
          this.#stop({});
          return;
        }
        error = new StreamIncompleteError(this.#at);
        break;
      case 'unknown':
        error = new StreamUnknownError(this.#at);
        break;
      case 'expired': {
        const code = body.includes('"trimmed"') ? 'trimmed' : 'stream_expired';
        notify(() => this.#settings.hooks.onExpired?.({ ...this.#at, code }));
        error = new StreamExpiredError(code, this.#at);
        break;
      }
      case 'refused':
        this.#stop({ error: new RequestRefusedError(status, body, this.#at) });
        return;
    }
    // There is nothing that a later resume could find.
    void this.#start.bookmark?.clear(this.id);
    this.#stop({ error });
  }

  #stop(end: { readonly error?: unknown }): void {
    if (this.#end !== undefined) return;
    this.#end = this.#finished ? {} : end;
    this.#start.signal?.removeEventListener('abort', this.#onAbort);
    if (this.#finished) {
      void this.#start.bookmark?.clear(this.id);
      this.#acks?.finish();
      void this.#connection?.drain();
    } else {
      this.#acks?.stop();
      this.#connection?.close();
    }
    this.#connection = undefined;
    this.#life.abort();
  }
}
