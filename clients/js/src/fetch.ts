/** The way in: a `fetch` that comes back by itself, and the same as events. */

import { pause } from './clock.js';
import { Connection, watch } from './connection.js';
import { ConnectionLostError, RequestRefusedError } from './errors.js';
import { LostKeys } from './keys.js';
import { type BatonOptions, notify, type Settings, settle } from './options.js';
import { comesLater, Recovery, retryAfterMs } from './recovery.js';
import { excerpt, isSse } from './remote.js';
import { type Claim, claim, returnHeaders, streamAddress } from './request.js';
import { BatonStream } from './stream.js';

/** How to take up an answer again. */
export interface ResumeOptions {
  /** The same headers as with the first request, Authorization above all: credentials are never stored. */
  readonly headers?: HeadersInit;
  /** The seq after which to go on. Default: the stored one. -1 asks for the whole answer. */
  readonly after?: number;
  readonly signal?: AbortSignal;
  /** What else requests need: credentials, mode, … */
  readonly init?: RequestInit;
}

/** What `createBaton()` makes. Its functions need no `this`. */
export interface Baton {
  /** A drop-in `fetch`. Streaming POSTs that match are made resumable; everything else passes untouched. */
  readonly fetch: typeof globalThis.fetch;
  /**
   * Sends a streaming POST and returns its answer as events. It works with servers other than Baton too; only coming
   * back does not.
   *
   * A server that is busy (429, 503) is asked again, after its `Retry-After` or else a wait, within `retry.openAttempts`
   * and `retry.outageMs`; `fetch` hands such an answer on, since clients above it have retries of their own.
   *
   * @throws RequestRefusedError when the answer is no event stream, or the server is still busy.
   * @throws ConnectionLostError when no answer comes.
   */
  readonly open: (input: RequestInfo | URL, init?: RequestInit) => Promise<BatonStream>;
  /**
   * Takes up the answer that was kept under `key`: after a reload, say. Undefined when there is none, or when all of
   * it had been handed on.
   *
   * @throws StreamExpiredError, StreamUnknownError when the server no longer has it.
   * @throws ConnectionLostError, RequestRefusedError
   */
  readonly resume: (key: string, options?: ResumeOptions) => Promise<BatonStream | undefined>;
  /**
   * Cancels the stream with this id, or all that were begun here; see `BatonStream.cancel()`. Nothing happens for a
   * stream that is over, or that was not begun here.
   */
  readonly cancel: (id?: string) => Promise<void>;
}

/** How many streams a client remembers for `cancel()`. */
const MAX_LIVE = 64;

/** Makes a client. It is cheap: make one for each conversation, with its own `key` and hooks. */
export function createBaton(options: BatonOptions = {}): Baton {
  const settings = settle(options);
  const lost = new LostKeys();
  /** The latest streams that were begun here and not read to their end. A detached one can still be cancelled. */
  const live = new Map<string, BatonStream>();

  const began = (stream: BatonStream) => {
    for (const [id, other] of live) if (other.finished || live.size >= MAX_LIVE) live.delete(id);
    if (stream.id !== '') live.set(stream.id, stream);
    notify(() => settings.hooks.onStream?.(stream));
    return stream;
  };

  const batonFetch = async (input: RequestInfo | URL, init?: RequestInit): Promise<Response> => {
    const claimed = await claim(input, init, settings.match);
    if (claimed === undefined) return settings.fetch(input, init);
    const { response, abort } = await send(claimed, settings, lost, () => false);
    if (!isResumable(response, settings)) return response;
    return dress(response, began(await begin(claimed, response, abort, settings)));
  };

  const open = async (input: RequestInfo | URL, init?: RequestInit): Promise<BatonStream> => {
    const claimed = await claim(input, init, settings.match);
    if (claimed === undefined) throw new TypeError('open() takes a POST of JSON with "stream": true');
    const { response, abort } = await send(claimed, settings, lost, isBusy);
    if (!response.ok || !isSse(response)) {
      const { status, headers } = response;
      const retryAfter = retryAfterMs(headers.get('retry-after'), settings.clock.now());
      throw new RequestRefusedError(status, await excerpt(response), {}, retryAfter);
    }
    return began(await begin(claimed, response, abort, settings));
  };

  const resume = async (key: string, how: ResumeOptions = {}): Promise<BatonStream | undefined> => {
    const bookmark = settings.bookmark(key);
    const stored = await bookmark.load();
    if (stored === undefined) return undefined;
    const stream = new BatonStream({
      settings,
      place: { ...stored, seq: how.after ?? stored.seq },
      headers: returnHeaders(new Headers(how.headers ?? how.init?.headers)),
      init: how.init ?? {},
      signal: how.signal,
      bookmark,
      connection: undefined,
      resumable: true,
    });
    await stream.open();
    return stream.ended ? undefined : began(stream);
  };

  const cancel = async (id?: string): Promise<void> => {
    const streams = id === undefined ? [...live.values()] : [live.get(id)];
    for (const stream of streams) if (stream !== undefined) live.delete(stream.id);
    await Promise.all(streams.map((stream) => stream?.cancel()));
  };

  return { fetch: batonFetch, open, resume, cancel };
}

/**
 * Sends the POST until a response header comes. A repeat carries the same Idempotency-Key, so that the server attaches
 * it to the answer that the lost one began, and never generates twice.
 *
 * @param waitsOut Which statuses of a first answer are waited out. When it is given up, the last such answer is returned.
 */
async function send(
  claimed: Claim,
  settings: Settings,
  lost: LostKeys,
  waitsOut: (status: number) => boolean,
) {
  const { clock, retry, wake } = settings;
  const request = `${claimed.url.href}\n${claimed.body}`;
  const headers = new Headers(claimed.headers);
  const key = headers.get('idempotency-key') ?? lost.take(request, headers) ?? newKey();
  headers.set('idempotency-key', key);
  if (!headers.has('baton-resume')) headers.set('baton-resume', 'on');
  const recovery = new Recovery(retry, retry.openAttempts - 1);
  /** A request went out and no response came back: an answer may have begun. */
  let isLost = false;
  for (;;) {
    let cause: unknown;
    let retryAfter = 0;
    let busy: Awaited<ReturnType<typeof sendOnce>> | undefined;
    try {
      const sent = await sendOnce(claimed, headers, settings);
      const { status } = sent.response;
      // A first answer is the caller's to judge. Behind a lost one an answer may be waiting, so it is asked for again.
      if (!waitsOut(status) && !(isLost && comesLater(status))) return sent;
      if (waitsOut(status)) busy = sent;
      else sent.abort.abort();
      retryAfter = retryAfterMs(sent.response.headers.get('retry-after'), clock.now());
      cause = new Error(`the server answered with status ${status}`);
    } catch (error) {
      if (claimed.signal?.aborted) {
        lost.add(request, key);
        throw error;
      }
      isLost = true;
      cause = error;
    }
    const plan = recovery.broken(clock.now(), clock.random(), retryAfter);
    if (plan.kind === 'give_up' && busy !== undefined) return busy;
    busy?.abort.abort();
    if (plan.kind === 'wait') {
      await pause(clock, plan.ms, claimed.signal, retryAfter > 0 ? undefined : wake);
    }
    if (plan.kind === 'give_up' || claimed.signal?.aborted) {
      lost.add(request, key);
      claimed.signal?.throwIfAborted();
      throw new ConnectionLostError(recovery.attempts + 1, recovery.outage(clock.now()), {}, cause);
    }
  }
}

/** The server did nothing yet, and says that it may do so later. */
function isBusy(status: number): boolean {
  return status === 429 || status === 503;
}

/** A random UUID, also where a page is not secure enough for `crypto.randomUUID`. */
function newKey(): string {
  if (typeof crypto.randomUUID === 'function') return crypto.randomUUID();
  const hex = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) =>
    byte.toString(16).padStart(2, '0'),
  );
  return hex.join('');
}

async function sendOnce(claimed: Claim, headers: Headers, settings: Settings) {
  claimed.signal?.throwIfAborted();
  const abort = new AbortController();
  const hangUp = () => abort.abort(claimed.signal?.reason);
  claimed.signal?.addEventListener('abort', hangUp);
  const callOff = watch(settings.clock, settings.stallMs, abort);
  try {
    const { url, init, body } = claimed;
    const all = { ...init, method: 'POST', headers, body, signal: abort.signal };
    const response = await settings.fetch(url.href, all);
    // From here on, the stream listens to the signal; a response that becomes no stream still has to.
    if (isResumable(response, settings)) claimed.signal?.removeEventListener('abort', hangUp);
    return { response, abort };
  } catch (error) {
    claimed.signal?.removeEventListener('abort', hangUp);
    throw error;
  } finally {
    callOff();
  }
}

/**
 * Is this a stream that can be come back to? One that the server has no room to keep has an id and no `Location`: it is
 * read as from any other server.
 */
function isResumable(response: Response, settings: Settings): boolean {
  const { status, headers } = response;
  const isStream = status === 200 && isSse(response) && (headers.get('baton-stream') ?? '') !== '';
  return isStream && (headers.has('location') || settings.streamUrl !== undefined);
}

async function begin(
  claimed: Claim,
  response: Response,
  abort: AbortController,
  settings: Settings,
): Promise<BatonStream> {
  const resumable = isResumable(response, settings);
  const id = resumable ? (response.headers.get('baton-stream') ?? '') : '';
  const bookmark = resumable && settings.key !== undefined ? settings.bookmark(settings.key) : undefined;
  const url = resumable
    ? (settings.streamUrl?.(id, claimed.url) ??
      streamAddress(id, claimed.url, response.headers.get('location')))
    : '';
  const place = { id, url, seq: -1 };
  // Before anything can be read: a slow storage would write it over the place of the first event.
  await bookmark?.save(place);
  return new BatonStream({
    settings,
    place,
    headers: returnHeaders(claimed.headers),
    init: claimed.init,
    signal: claimed.signal,
    bookmark,
    connection: new Connection(response, abort, settings.clock, settings.stallMs, settings.maxEventLength),
    resumable,
  });
}

/** The response as the caller sees it: the same header, with the stream as its body. */
function dress(response: Response, stream: BatonStream): Response {
  const headers = new Headers(response.headers);
  // They speak of the bytes of the first connection.
  for (const name of ['content-length', 'content-encoding', 'transfer-encoding']) headers.delete(name);
  const { status, statusText, url } = response;
  const dressed = new Response(stream.toReadableStream(), { status, statusText, headers });
  // A Response that a program makes has no address; some callers log it.
  Object.defineProperty(dressed, 'url', { value: url, configurable: true });
  return dressed;
}
