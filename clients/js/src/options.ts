/** What a caller may set, and what it becomes. */

import type { AckPolicy } from './acks.js';
import { type Clock, systemClock } from './clock.js';
import type { RetryPolicy } from './recovery.js';
import { type BatonStorage, Bookmark, defaultStorage } from './store.js';
import type { BatonStream } from './stream.js';
import { browserWake, type Wake } from './wake.js';

/** Which stream, and where in it. */
export interface At {
  /** The stream's id. */
  readonly id: string;
  /** The last seq that was handed on; -1 when none was. */
  readonly seq: number;
}

/** Called as things happen. A hook that throws is reported to the console and changes nothing. */
export interface BatonHooks {
  /** A stream has begun. Keep it for `cancel()`. */
  onStream?(stream: BatonStream): void;
  /** The connection was lost; the next attempt comes after `waitMs`. */
  onDropped?(at: At & { readonly cause: unknown; readonly attempt: number; readonly waitMs: number }): void;
  /** The server has taken up the answer again after `attempts` attempts. */
  onResumed?(at: At & { readonly attempts: number }): void;
  /** Events were missing before `received`. Nothing was handed on; they are being fetched. */
  onGap?(gap: At & { readonly expected: number; readonly received: number }): void;
  /** The server no longer has the answer, or no longer the part that is missing. The error follows. */
  onExpired?(at: At & { readonly code: 'stream_expired' | 'trimmed' }): void;
  /** The engine failed, and the server is looking for another one. A good moment for a friendly hint. */
  onRecovering?(at: At): void;
  /** Another engine has gone on with the answer. */
  onContinued?(at: At): void;
}

export interface BatonOptions extends BatonHooks {
  /** The `fetch` below. Default: the global one, looked up at each call. */
  readonly fetch?: typeof globalThis.fetch;
  /**
   * Keeps the place in the stream under this key, so that `resume(key)` goes on after a reload. Without a key nothing
   * is stored. One stream at a time can have a key.
   */
  readonly key?: string;
  /** Where places are kept. Default: `sessionStorage`, or memory where there is none. */
  readonly storage?: BatonStorage;
  /**
   * Which requests are Baton's to answer, besides being a streaming POST. Default: a path that ends in
   * `/chat/completions` or `/completions`.
   */
  readonly match?: (url: URL) => boolean;
  /**
   * The address of a stream. Default: the response's `Location`, which a stream that is not kept lacks; made from the
   * request's address where that is on another origin. With this, a stream counts as kept without a `Location` too.
   */
  readonly streamUrl?: (id: string, request: URL) => string;
  readonly retry?: Partial<RetryPolicy>;
  /** `false` sends no acknowledgements. */
  readonly ack?: Partial<AckPolicy> | false;
  /** Silence, heartbeats included, after which a connection is taken for dead, in ms; 0 never. Default 60,000. */
  readonly stallMs?: number;
  /** The longest event, in characters. Default 4 Mi. */
  readonly maxEventLength?: number;
  /**
   * Calls what it is given when the network or the user is back, which ends a wait at once; what it returns ends that.
   * Default: the browser's `online`, and `visibilitychange` to visible; nothing in Node.
   */
  readonly wake?: Wake;
  /** Time and chance, for tests. */
  readonly clock?: Clock;
}

/** Options with every default filled in. */
export interface Settings {
  readonly fetch: typeof globalThis.fetch;
  readonly hooks: BatonHooks;
  readonly bookmark: (key: string) => Bookmark;
  readonly key: string | undefined;
  readonly match: (url: URL) => boolean;
  readonly streamUrl: ((id: string, request: URL) => string) | undefined;
  readonly retry: RetryPolicy;
  readonly ack: AckPolicy | undefined;
  readonly stallMs: number;
  readonly maxEventLength: number;
  readonly wake: Wake;
  readonly clock: Clock;
}

/** One storage for all factories that name none, so that without sessionStorage a second one finds what the first kept. */
let shared: BatonStorage | undefined;

export function settle(options: BatonOptions): Settings {
  const storage = () => {
    shared ??= defaultStorage();
    return options.storage ?? shared;
  };
  return {
    fetch: options.fetch ?? ((input, init) => globalThis.fetch(input, init)),
    hooks: options,
    bookmark: (key) => new Bookmark(storage(), key),
    key: options.key,
    match: options.match ?? ((url) => /\/(chat\/)?completions\/?$/.test(url.pathname)),
    streamUrl: options.streamUrl,
    retry: {
      // As many as fit into the outage: its length decides, also where a page that is often looked at ends waits early.
      attempts: 100,
      openAttempts: 4,
      outageMs: 300_000,
      baseMs: 1000,
      // The server goes on for 30 s without a reader: with chance, a try falls into every 8 s of them.
      maxMs: 5000,
      ...options.retry,
    },
    ack:
      options.ack === false
        ? undefined
        : { every: 20, intervalMs: 1000, keepAliveMs: 20_000, ...options.ack },
    stallMs: options.stallMs ?? 60_000,
    maxEventLength: options.maxEventLength ?? 4 * 1024 * 1024,
    wake: options.wake ?? browserWake(),
    clock: options.clock ?? systemClock,
  };
}

/** Calls a hook; its own faults stay its own. */
export function notify(call: () => void): void {
  try {
    call();
  } catch (error) {
    console.error('baton: a hook failed', error);
  }
}
