/**
 * Tells the server up to where events have been handled: every so many events or every so often, whichever is first.
 *
 * One acknowledgement is under way at a time. A failed one is forgotten, since the next says more. While nothing new comes, the
 * last is repeated now and then: the server takes a client that once acknowledged and then is silent for one that is
 * gone. A browser may let the timers of a hidden page ring once a minute only, which is as long as the server waits; so the
 * server's own heartbeats, which come all the same, are looked at as well.
 */

import type { Clock } from './clock.js';

export interface AckPolicy {
  /** Acknowledge after this many events. Default 20. */
  readonly every: number;
  /** Acknowledge what there is after this long, in ms. Default 1000. */
  readonly intervalMs: number;
  /**
   * Repeat the last acknowledgement after this long without a new event, in ms. Default 20,000. It must stay below the
   * server's `routes[].resume.silence` (60 s), after which a client is taken for gone.
   */
  readonly keepAliveMs: number;
}

export class Acks {
  readonly #send: (seq: number) => Promise<void>;
  readonly #clock: Clock;
  readonly #policy: AckPolicy;
  #handled: number;
  #sent: number;
  /** When the last one went out, or there was nothing yet. */
  #at: number;
  #underWay = false;
  #stopped = false;
  #finished = false;
  /** The timer that is set: for what is new, or to keep alive. */
  #timer: { readonly fresh: boolean; readonly callOff: () => void } | undefined;

  /** @param seq Where the stream is at the start; -1 for its beginning. */
  constructor(send: (seq: number) => Promise<void>, clock: Clock, policy: AckPolicy, seq: number) {
    this.#send = send;
    this.#clock = clock;
    this.#policy = policy;
    this.#handled = seq;
    this.#sent = seq;
    this.#at = clock.now();
  }

  /** The server said something that is no event: where the timer is late, now is the time. */
  heard(): void {
    if (this.#stopped || this.#underWay || this.#handled < 0) return;
    if (this.#clock.now() - this.#at >= this.#policy.keepAliveMs) void this.#dispatch();
  }

  /** Everything up to `seq` has been handled. */
  handled(seq: number): void {
    if (this.#stopped || seq <= this.#handled) return;
    this.#handled = seq;
    this.#plan();
  }

  /** The stream is over: says the last word, if there is one, and stops. */
  finish(): void {
    if (this.#stopped) return;
    this.stop();
    this.#finished = true;
    if (!this.#underWay) this.#lastWord();
  }

  /** No more acknowledgements. */
  stop(): void {
    this.#stopped = true;
    this.#timer?.callOff();
    this.#timer = undefined;
  }

  #plan(): void {
    const fresh = this.#handled > this.#sent;
    if (this.#stopped || this.#underWay || (!fresh && this.#sent < 0)) return;
    if (this.#handled - this.#sent >= this.#policy.every) {
      void this.#dispatch();
      return;
    }
    if (this.#timer !== undefined) {
      if (this.#timer.fresh || !fresh) return;
      this.#timer.callOff();
    }
    const ms = fresh ? this.#policy.intervalMs : this.#policy.keepAliveMs;
    this.#timer = { fresh, callOff: this.#clock.after(ms, () => void this.#dispatch()) };
  }

  async #dispatch(): Promise<void> {
    this.#timer?.callOff();
    this.#timer = undefined;
    this.#underWay = true;
    this.#sent = this.#handled;
    this.#at = this.#clock.now();
    try {
      await this.#send(this.#sent);
    } catch {
      // The next one says more.
    } finally {
      this.#underWay = false;
      if (this.#finished) this.#lastWord();
      else this.#plan();
    }
  }

  #lastWord(): void {
    if (this.#handled > this.#sent) void this.#dispatch();
  }
}
