/** A network between a client and Baton that breaks where a script says. */

import { once } from 'node:events';
import { type AddressInfo, createServer, connect as dial, type Socket } from 'node:net';

/** Where a response breaks: after so many bytes, its header included, or behind so many events. */
export type Cut = { readonly bytes: number } | { readonly events: number };

/**
 * Lets bytes through, unchanged. Every response that is an event stream takes the next of `cuts`, and breaks there with its
 * connection; all other responses (preflights, acknowledgements, …) are well.
 */
export class Wire {
  cuts: Cut[] = [];
  /** How often a cut was reached. */
  drops = 0;
  /** The connections that there have been. */
  connections = 0;
  #down = false;
  readonly #sockets = new Set<Socket>();
  readonly #server;

  /** @param target The address of Baton, with its port. */
  constructor(target: string) {
    const port = Number(target.slice(target.lastIndexOf(':') + 1));
    this.#server = createServer((client) => {
      this.connections += 1;
      if (this.#down) {
        client.resetAndDestroy();
        return;
      }
      const server = dial(port, '127.0.0.1');
      for (const [one, other] of [
        [client, server],
        [server, client],
      ] as const) {
        this.#sockets.add(one);
        one.on('error', () => other.destroy());
        one.on('close', () => {
          this.#sockets.delete(one);
          other.destroy();
        });
      }
      let response = new Response(() => this.cuts.shift());
      client.on('data', (bytes) => {
        // What the server says next is the answer to this.
        response = new Response(() => this.cuts.shift());
        server.write(bytes);
      });
      server.on('data', (bytes) => {
        const { passed, cut } = response.pass(bytes);
        client.write(passed, () => {
          if (!cut || client.destroyed) return;
          this.drops += 1;
          client.resetAndDestroy();
        });
      });
    });
  }

  async listen(): Promise<string> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Breaks all connections. */
  drop(): void {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  /** From here on nothing gets through, or everything again. */
  set down(down: boolean) {
    this.#down = down;
    if (down) this.drop();
  }

  close(): void {
    this.drop();
    this.#server.close();
  }
}

/** One response on its way to the client. */
class Response {
  readonly #take: () => Cut | undefined;
  /** What has come of the header, until it is whole. */
  #head: Buffer | undefined = Buffer.alloc(0);
  #bytesLeft = Number.POSITIVE_INFINITY;
  #eventsLeft = Number.POSITIVE_INFINITY;
  #afterLineEnd = false;
  #over = false;

  constructor(take: () => Cut | undefined) {
    this.#take = take;
  }

  /** What of these bytes gets through, and whether the connection breaks behind it. */
  pass(bytes: Buffer): { readonly passed: Buffer; readonly cut: boolean } {
    if (this.#over) return { passed: Buffer.alloc(0), cut: false };
    let some = bytes;
    if (this.#head !== undefined) {
      some = Buffer.concat([this.#head, bytes]);
      this.#head = some;
      const end = some.indexOf('\r\n\r\n');
      if (end < 0) return { passed: Buffer.alloc(0), cut: false };
      this.#head = undefined;
      if (/^content-type: text\/event-stream/im.test(some.toString('latin1', 0, end))) this.#begin();
    }
    const end = this.#end(some);
    this.#bytesLeft -= end;
    this.#over = end < some.length || this.#bytesLeft === 0 || this.#eventsLeft === 0;
    return { passed: some.subarray(0, end), cut: this.#over };
  }

  #begin(): void {
    const cut = this.#take();
    if (cut === undefined) return;
    if ('bytes' in cut) this.#bytesLeft = cut.bytes;
    else this.#eventsLeft = cut.events;
  }

  #end(bytes: Buffer): number {
    if (this.#eventsLeft === Number.POSITIVE_INFINITY) return Math.min(bytes.length, this.#bytesLeft);
    for (let at = 0; at < bytes.length; at += 1) {
      if (this.#eventsLeft === 0) return at;
      const isLineEnd = bytes[at] === 0x0a;
      // Two line ends are an event's: those of HTTP have a return between them.
      if (isLineEnd && this.#afterLineEnd) this.#eventsLeft -= 1;
      this.#afterLineEnd = isLineEnd;
    }
    return bytes.length;
  }
}
