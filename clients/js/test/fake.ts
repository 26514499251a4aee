/**
 * A small Baton in Node: answers, journals and replays as the protocol says, and breaks as a script says.
 *
 * Faults are scripted by position and never by chance or time. Every connection, the POST and each come-back, takes
 * the next entry of the script; when there is none left, connections are well.
 */

import { EventEmitter, once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

/** What happens to one connection. */
export interface Fault {
  /** Answers with this status instead. */
  readonly status?: number;
  readonly headers?: Record<string, string>;
  readonly body?: string;
  /** Hangs up before the response header; the POST has been acted upon. */
  readonly beforeHeader?: boolean;
  /** Ends the response after this many bytes of its body. */
  readonly cutAt?: number;
  /** How it ends then: by a reset (the default), or cleanly. */
  readonly how?: 'reset' | 'clean';
  /** Begins this many events too early. */
  readonly repeat?: number;
  /** Leaves out the event with this seq. */
  readonly skip?: number;
  /** Sends the body in pieces of this many bytes. */
  readonly piece?: number;
  /** Comment lines before the event with this seq. */
  readonly comments?: { readonly before: number; readonly lines: readonly string[] };
  /** Answers as a server without room to keep the stream: no `Location`, no ids. */
  readonly unkept?: boolean;
  /** Sends events without ids. */
  readonly unnumbered?: boolean;
  /** Ends lines with this. Default LF. */
  readonly eol?: '\n' | '\r\n' | '\r';
}

/** One request that was answered. */
export interface Seen {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingMessage['headers'];
  readonly body: string;
}

interface Stream {
  readonly id: string;
  readonly events: readonly string[];
  /** How many events there are yet. */
  available: number;
  cancelled: boolean;
  readonly changed: EventEmitter;
}

export class FakeBaton {
  /** The data of the events that an answer consists of. */
  events: readonly string[];
  script: Fault[];
  retryMs = 1;
  /** With false, events appear as `advance()` says. */
  whole = true;
  /** What was asked. */
  readonly seen: Seen[] = [];
  readonly acks: number[] = [];
  mostAcksAtOnce = 0;
  /** While set, acknowledgements wait for it. */
  ackGate: Promise<void> | undefined;
  ackStatus = 204;
  cancelScript: Fault[] = [];
  cancels = 0;
  generations = 0;
  /** Tells of every request by its kind: post, get, ack, cancel; and of every fault that was acted out. */
  readonly happened = new EventEmitter();
  /** Answers what is not the protocol's; for pages. */
  other: ((request: IncomingMessage, response: ServerResponse) => void) | undefined;

  readonly #streams = new Map<string, Stream>();
  readonly #byKey = new Map<string, Stream>();
  readonly #server = createServer((request, response) => {
    this.#serve(request, response).catch((error) => response.destroy(error));
  });
  readonly #sockets = new Set<Socket>();
  #acksNow = 0;

  constructor(events: readonly string[], script: readonly Fault[] = []) {
    this.events = events;
    this.script = [...script];
    this.happened.setMaxListeners(0);
  }

  async listen(): Promise<this> {
    this.#server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.on('close', () => this.#sockets.delete(socket));
    });
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    return this;
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }

  get origin(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** The requests of one kind. */
  asked(method: string, suffix: RegExp): Seen[] {
    return this.seen.filter((seen) => seen.method === method && suffix.test(seen.path));
  }

  /** How many responses are open. */
  get connections(): number {
    return this.#sockets.size;
  }

  /** Makes `count` more events appear in every stream. */
  advance(count: number): void {
    for (const stream of this.#streams.values()) {
      stream.available = Math.min(stream.available + count, stream.events.length);
      stream.changed.emit('changed');
    }
  }

  /** Resets every connection there is. */
  drop(): void {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const body = await readAll(request);
    const { pathname: path, searchParams: query } = new URL(request.url ?? '/', this.origin);
    const method = request.method ?? '';
    this.seen.push({ method, path, headers: request.headers, body });
    const [, id, action] = /^\/v1\/streams\/([^/]+)(?:\/(\w+))?$/.exec(path) ?? [];
    if (method === 'POST' && path === '/v1/chat/completions') await this.#post(request, body, response);
    else if (id !== undefined && action === undefined && method === 'GET') {
      await this.#get(id, query.get('after'), request, response);
    } else if (id !== undefined && action === 'ack') await this.#ack(body, response);
    else if (id !== undefined && action === 'cancel') this.#cancel(id, response);
    else if (this.other !== undefined) this.other(request, response);
    else response.writeHead(404).end('{}');
  }

  async #post(request: IncomingMessage, body: string, response: ServerResponse): Promise<void> {
    const { stream: streaming } = JSON.parse(body) as { stream?: boolean };
    if (streaming !== true) {
      response.writeHead(200, { 'content-type': 'application/json' }).end(WHOLE);
      this.happened.emit('post');
      return;
    }
    const fault = this.script.shift() ?? {};
    // A refusal comes before anything is generated.
    const stream = fault.status === undefined ? this.#begin(request) : undefined;
    this.happened.emit('post');
    if (stream === undefined || fault.status !== undefined) refuse(fault, response);
    else await this.#send(stream, 0, fault, response);
  }

  #begin(request: IncomingMessage): Stream {
    const key = request.headers['idempotency-key'];
    const known = typeof key === 'string' ? this.#byKey.get(key) : undefined;
    if (known !== undefined) return known;
    this.generations += 1;
    const stream: Stream = {
      id: `st_${this.generations}x${this.events.length}`,
      events: this.events,
      available: this.whole ? this.events.length : 0,
      cancelled: false,
      changed: new EventEmitter().setMaxListeners(0),
    };
    this.#streams.set(stream.id, stream);
    if (typeof key === 'string') this.#byKey.set(key, stream);
    return stream;
  }

  async #get(
    id: string,
    after: string | null,
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const stream = this.#streams.get(id);
    const fault = this.script.shift() ?? {};
    this.happened.emit('get');
    if (fault.status !== undefined) return refuse(fault, response);
    if (stream === undefined)
      return refuse({ status: 404, body: '{"error":{"code":"not_found"}}' }, response);
    const last = request.headers['last-event-id'];
    const position = typeof last === 'string' ? last.slice(last.lastIndexOf('.') + 1) : (after ?? '-1');
    const from = Number(position) + 1;
    const over = stream.cancelled || stream.available === stream.events.length;
    if (from >= stream.available && over) {
      response.writeHead(204).end();
      return;
    }
    await this.#send(stream, Math.max(0, from - (fault.repeat ?? 0)), fault, response);
  }

  /** Sends the events from `from` on, as they appear, until the end or the fault. */
  async #send(stream: Stream, from: number, fault: Fault, response: ServerResponse): Promise<void> {
    if (fault.beforeHeader) {
      response.socket?.resetAndDestroy();
      this.happened.emit('fault');
      return;
    }
    response.writeHead(200, {
      'content-type': 'text/event-stream; charset=utf-8',
      'baton-stream': stream.id,
      ...(fault.unkept ? {} : { location: `/v1/streams/${stream.id}` }),
      'cache-control': 'no-store',
    });
    response.flushHeaders();
    let left = fault.cutAt ?? Number.POSITIVE_INFINITY;
    for (let seq = from; ; seq += 1) {
      while (seq >= stream.available && seq < stream.events.length && !stream.cancelled) {
        await Promise.race([once(stream.changed, 'changed'), once(response, 'close')]);
        if (response.destroyed) return;
      }
      if (stream.cancelled || seq >= stream.events.length) break;
      const bytes = this.#encode(stream, seq, fault);
      const cut = bytes.length >= left;
      await write(response, cut ? bytes.subarray(0, left) : bytes, fault.piece);
      left -= bytes.length;
      if (cut) {
        if (fault.how === 'clean') response.end();
        else response.socket?.resetAndDestroy();
        this.happened.emit('fault');
        return;
      }
    }
    response.end();
  }

  #encode(stream: Stream, seq: number, fault: Fault): Buffer {
    if (fault.skip === seq) return Buffer.alloc(0);
    const eol = fault.eol ?? '\n';
    const lines: string[] = [];
    if (fault.comments?.before === seq) lines.push(...fault.comments.lines.map((line) => `: ${line}`));
    if (seq === 0) lines.push(`retry: ${this.retryMs}`);
    if (!fault.unnumbered && !fault.unkept) lines.push(`id: ${stream.id}.${seq}`);
    lines.push(`data: ${stream.events[seq]}`, '', '');
    return Buffer.from(lines.join(eol));
  }

  async #ack(body: string, response: ServerResponse): Promise<void> {
    this.#acksNow += 1;
    this.mostAcksAtOnce = Math.max(this.mostAcksAtOnce, this.#acksNow);
    this.acks.push((JSON.parse(body) as { seq: number }).seq);
    this.happened.emit('ack');
    await this.ackGate;
    this.#acksNow -= 1;
    response.writeHead(this.ackStatus).end();
  }

  #cancel(id: string, response: ServerResponse): void {
    const fault = this.cancelScript.shift() ?? {};
    this.cancels += 1;
    if (fault.beforeHeader) response.socket?.resetAndDestroy();
    else if (fault.status !== undefined) refuse(fault, response);
    else {
      const stream = this.#streams.get(id);
      if (stream !== undefined) {
        stream.cancelled = true;
        stream.changed.emit('changed');
      }
      response.writeHead(stream === undefined ? 404 : 202).end();
    }
    this.happened.emit('cancel');
  }
}

const WHOLE =
  '{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":' +
  '{"role":"assistant","content":"whole"},"finish_reason":"stop"}]}';

function refuse(fault: Fault, response: ServerResponse): void {
  response.writeHead(fault.status ?? 500, { 'content-type': 'application/json', ...fault.headers });
  response.end(fault.body ?? '{"error":{"message":"scripted"}}');
}

async function write(response: ServerResponse, bytes: Buffer, piece = bytes.length): Promise<void> {
  for (let at = 0; at < bytes.length; at += piece) {
    // Flushed one by one, so that a cut comes after what was sent before it.
    await new Promise<void>((resolve) => {
      response.once('close', resolve);
      response.write(bytes.subarray(at, at + piece), () => {
        response.off('close', resolve);
        resolve();
      });
    });
    if (response.destroyed) return;
  }
}

async function readAll(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}
