/**
 * When to come back, and when to give up. Pure: time and chance are arguments.
 *
 * ```text
 *              event                 broken()                    200
 *   reading ◄───────── reading ────────────────► waiting ──► asking ──► reading
 *                                                   ▲           │
 *                                                   └───────────┤ network, 429, 5xx, not an event stream
 *                                                               ├ 204 ► over   404 ► unknown   410 ► expired
 *                                                               └ other ► refused
 *   waiting ──► given up: too many attempts, or too long, since the last new event
 * ```
 */

/** How long and how often to try. */
export interface RetryPolicy {
  /** Come-backs in a row that bring no new event before it is given up. Default 100: `outageMs` decides. */
  readonly attempts: number;
  /** Tries of the request itself while no response header comes. Default 4. */
  readonly openAttempts: number;
  /** The longest time from the first break without a new event, in ms. Default 5 minutes. */
  readonly outageMs: number;
  /** The first wait in ms; a `retry:` from the server takes its place. Default 1000. */
  readonly baseMs: number;
  /** The longest wait in ms that is chosen here; a longer Retry-After is kept to. Default 5000. */
  readonly maxMs: number;
}

/** Wait and try again, or give up. */
export type Plan = { readonly kind: 'wait'; readonly ms: number } | { readonly kind: 'give_up' };

export class Recovery {
  readonly #policy: RetryPolicy;
  readonly #limit: number;
  #baseMs: number;
  #attempts = 0;
  /** When the outage began; undefined while all is well. */
  #since: number | undefined;

  /** @param limit How many attempts of `policy` apply. */
  constructor(policy: RetryPolicy, limit: number) {
    this.#policy = policy;
    this.#limit = limit;
    this.#baseMs = policy.baseMs;
  }

  /** Attempts since the last new event. */
  get attempts(): number {
    return this.#attempts;
  }

  /** How long the outage has lasted. */
  outage(now: number): number {
    return this.#since === undefined ? 0 : now - this.#since;
  }

  /** The server said `retry:`. */
  retry(ms: number): void {
    this.#baseMs = Math.min(ms, this.#policy.maxMs);
  }

  /** A new event came. Nothing less counts: a server that answers and breaks off again would be asked for ever. */
  progress(): void {
    this.#attempts = 0;
    this.#since = undefined;
  }

  /**
   * The connection broke, or an attempt failed. The wait doubles with every attempt and is stretched by up to a half
   * by chance (`random` in 0..1), so that many clients do not come back at once; it is never shorter than what the
   * server asked for.
   */
  broken(now: number, random: number, retryAfterMs = 0): Plan {
    this.#since ??= now;
    if (this.#attempts >= this.#limit) return { kind: 'give_up' };
    const backoff = Math.min(this.#baseMs * 2 ** this.#attempts, this.#policy.maxMs) * (1 + random / 2);
    const ms = Math.max(backoff, retryAfterMs);
    if (now + ms - this.#since > this.#policy.outageMs) return { kind: 'give_up' };
    this.#attempts += 1;
    return { kind: 'wait', ms };
  }
}

/** What an answer to a come-back means. */
export type Answer = 'reading' | 'over' | 'unknown' | 'expired' | 'later' | 'refused';

export function judgeAnswer(status: number, isEventStream: boolean): Answer {
  // A 200 that is no event stream was not written by Baton: the login page of some network, say.
  if (status === 200) return isEventStream ? 'reading' : 'later';
  if (status === 204) return 'over';
  if (status === 404) return 'unknown';
  if (status === 410) return 'expired';
  return comesLater(status) ? 'later' : 'refused';
}

/** Is this a status after which the same request may be answered differently? */
export function comesLater(status: number): boolean {
  return status === 408 || status === 425 || status === 429 || status >= 500;
}

/** A `Retry-After` in ms: seconds or a date; 0 when there is none or it makes no sense. */
export function retryAfterMs(value: string | null, now: number): number {
  if (value === null) return 0;
  if (/^\s*[0-9]+\s*$/.test(value)) return Number(value) * 1000;
  const date = Date.parse(value);
  return Number.isNaN(date) ? 0 : Math.max(0, date - now);
}
