/** Which requests Baton is asked to make resumable, and what has to be known of them to come back. */

/** A streaming POST, taken apart so that it can be sent more than once. */
export interface Claim {
  readonly url: URL;
  readonly headers: Headers;
  readonly body: string;
  /** What else the caller set: credentials, mode, a dispatcher, … */
  readonly init: RequestInit;
  readonly signal: AbortSignal | undefined;
}

/** Headers that speak of the POST and not of the caller. */
const OF_THE_POST = ['accept', 'baton-resume', 'content-length', 'content-type', 'idempotency-key'];

/**
 * Takes a request apart if it is a POST of JSON with `"stream": true` to an address that matches; undefined says that
 * it is none of our business and must be passed on untouched.
 */
export async function claim(
  input: RequestInfo | URL,
  init: RequestInit | undefined,
  match: (url: URL) => boolean,
): Promise<Claim | undefined> {
  const request = input instanceof Request ? input : undefined;
  const method = init?.method ?? request?.method ?? 'GET';
  const url = resolve(request?.url ?? String(input));
  if (method.toUpperCase() !== 'POST' || url === undefined || !match(url)) return undefined;
  const headers = new Headers(init?.headers ?? request?.headers);
  // The caller has decided already.
  if (headers.get('baton-resume')?.trim().toLowerCase() === 'off') return undefined;
  const body = await text(init?.body ?? request);
  if (body === undefined || !asksToStream(body)) return undefined;
  const { body: _body, headers: _headers, method: _method, signal, ...rest } = init ?? {};
  return {
    url,
    headers,
    body,
    init: { ...(request === undefined ? {} : traits(request)), ...rest },
    signal: signal ?? request?.signal ?? undefined,
  };
}

/** The headers to come back with: the caller's own, Authorization above all. */
export function returnHeaders(headers: Headers): Headers {
  const kept = new Headers(headers);
  for (const name of OF_THE_POST) kept.delete(name);
  return kept;
}

/**
 * The address of a stream: the response's `Location`, if it stays on the request's origin, since credentials are sent there.
 * A `Location` that begins with `/v1/` is taken for Baton's own, without the prefix that a proxy in front of
 * it may have put before `/v1/`. Without a usable one, `…/chat/completions` becomes `…/streams/<id>`.
 */
export function streamAddress(id: string, request: URL, location: string | null): string {
  if (location !== null) {
    const at = request.pathname.indexOf('/v1/');
    const prefix = at > 0 && location.startsWith('/v1/') ? request.pathname.slice(0, at) : '';
    const url = resolve(prefix + location, request);
    if (url !== undefined && url.origin === request.origin) return url.href;
  }
  const base = request.pathname.replace(/\/(chat\/)?completions\/?$/, '');
  return new URL(`${base}/streams/${encodeURIComponent(id)}`, request).href;
}

function resolve(url: string, base: URL | string | undefined = globalThis.location?.href): URL | undefined {
  try {
    return new URL(url, base);
  } catch {
    return undefined;
  }
}

/** The body as text; undefined for a kind that cannot be JSON or could not be sent twice. */
async function text(body: BodyInit | Request | null | undefined): Promise<string | undefined> {
  if (typeof body === 'string') return body;
  if (body instanceof ArrayBuffer || ArrayBuffer.isView(body)) return new TextDecoder().decode(body);
  if (body instanceof Blob) return body.text();
  if (body instanceof Request) return body.clone().text();
  return undefined;
}

function asksToStream(body: string): boolean {
  // Most bodies without the word are told apart without parsing them.
  if (!body.includes('"stream"')) return false;
  try {
    const value: unknown = JSON.parse(body);
    return typeof value === 'object' && value !== null && (value as { stream?: unknown }).stream === true;
  } catch {
    return false;
  }
}

/** What a Request carries besides method, address, headers and body. */
function traits(request: Request): RequestInit {
  const { cache, credentials, integrity, keepalive, mode, redirect, referrer, referrerPolicy } = request;
  return { cache, credentials, integrity, keepalive, mode, redirect, referrer, referrerPolicy };
}
