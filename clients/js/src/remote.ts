/** The requests about a stream: the rest of it, acknowledge, cancel. */

import { pause } from './clock.js';
import { watch } from './connection.js';
import { ConnectionLostError, RequestRefusedError } from './errors.js';
import type { At, Settings } from './options.js';
import { comesLater, Recovery, retryAfterMs } from './recovery.js';

/** How long a short request may take, in ms. */
const SHORT_MS = 10_000;

export class Remote {
  readonly #settings: Settings;
  readonly #url: string;
  readonly #headers: Headers;
  readonly #init: RequestInit;

  constructor(settings: Settings, url: string, headers: Headers, init: RequestInit) {
    this.#settings = settings;
    this.#url = url;
    this.#headers = headers;
    this.#init = init;
  }

  /** Asks for the events after `lastEventId`. Resolves with the response's header; `abort` hangs up, then and later. */
  async rest(lastEventId: string | undefined, abort: AbortController): Promise<Response> {
    const headers = new Headers(this.#headers);
    headers.set('accept', 'text/event-stream');
    if (lastEventId !== undefined) headers.set('last-event-id', lastEventId);
    const { clock, stallMs } = this.#settings;
    const callOff = watch(clock, stallMs, abort);
    try {
      return await this.#fetch('', { method: 'GET', headers, cache: 'no-store', signal: abort.signal });
    } finally {
      callOff();
    }
  }

  async ack(seq: number): Promise<void> {
    await this.#post('/ack', JSON.stringify({ seq }));
  }

  /** Tells the server to stop the engine, until it has heard. `at` is for the error. */
  async cancel(at: At): Promise<void> {
    const { clock, retry, wake } = this.#settings;
    const recovery = new Recovery(retry, retry.attempts);
    for (;;) {
      let cause: unknown;
      let retryAfter = 0;
      try {
        const { status, headers, body } = await this.#post('/cancel');
        // With 404 or 410 there is nothing left to stop.
        if (status < 300 || status === 404 || status === 410) return;
        if (!comesLater(status)) throw new RequestRefusedError(status, body, at);
        cause = new Error(`the server answered with status ${status}`);
        retryAfter = retryAfterMs(headers.get('retry-after'), clock.now());
      } catch (error) {
        if (error instanceof RequestRefusedError) throw error;
        cause = error;
      }
      const plan = recovery.broken(clock.now(), clock.random(), retryAfter);
      if (plan.kind === 'give_up') {
        throw new ConnectionLostError(recovery.attempts, recovery.outage(clock.now()), at, cause);
      }
      await pause(clock, plan.ms, undefined, retryAfter > 0 ? undefined : wake);
    }
  }

  async #post(path: string, json?: string) {
    const headers = new Headers(this.#headers);
    if (json !== undefined) headers.set('content-type', 'application/json');
    const abort = new AbortController();
    const callOff = watch(this.#settings.clock, SHORT_MS, abort);
    try {
      const init = { method: 'POST', headers, body: json ?? null, signal: abort.signal };
      const response = await this.#fetch(path, init);
      return { status: response.status, headers: response.headers, body: await excerpt(response) };
    } finally {
      callOff();
    }
  }

  #fetch(path: string, init: RequestInit): Promise<Response> {
    return this.#settings.fetch(this.#url + path, { ...this.#init, ...init });
  }
}

/** Is this a response of server-sent events? */
export function isSse(response: Response): boolean {
  return /^text\/event-stream\s*(;|$)/i.test(response.headers.get('content-type') ?? '');
}

/** The first few hundred characters of a response, for a message; the rest is not waited for. */
export async function excerpt(response: Response): Promise<string> {
  const reader = response.body?.getReader();
  if (reader === undefined) return '';
  const decoder = new TextDecoder();
  let text = '';
  try {
    while (text.length < 500) {
      const { done, value } = await reader.read();
      if (done) break;
      text += decoder.decode(value, { stream: true });
    }
  } catch {
    // What came has to do.
  }
  reader.cancel().catch(() => {});
  return text.slice(0, 500);
}
