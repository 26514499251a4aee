/** With the real Baton and mock engines: whatever breaks on the way, the text is that of an uncut answer. */

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer, connect as dial, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, describe, it } from 'node:test';
import OpenAI from 'openai';
import { type BatonOptions, createBaton, memoryStorage } from '../src/index.js';
import { chance, patientClock } from './support.js';

const BIN = process.env.BATON_BIN;
const skip = BIN === undefined && 'BATON_BIN does not name the folder of the binaries';
const REQUEST = {
  model: 'm',
  messages: [{ role: 'user' as const, content: 'Tell me of the race.' }],
  stream: true as const,
};

/** Starts a program, and waits for the address behind `listening on`. */
async function start(name: string, args: readonly string[]): Promise<[ChildProcess, string]> {
  const child = spawn(join(BIN ?? '', name), args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const address = await new Promise<string>((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code) => reject(new Error(`${name} ended with ${code}`)));
    for (const stream of [child.stdout, child.stderr]) {
      createInterface(stream).on('line', (line) => {
        const found = /listening on (\S+)/.exec(line)?.[1];
        if (found !== undefined) resolve(found);
      });
    }
  });
  return [child, address];
}

/** Two ports that were free a moment ago: Baton's configuration takes no port 0. */
async function freePorts(): Promise<number[]> {
  const servers = [createServer(), createServer()];
  const ports: number[] = [];
  for (const server of servers) {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    ports.push((server.address() as AddressInfo).port);
  }
  for (const server of servers) {
    server.close();
    await once(server, 'close');
  }
  return ports;
}

/** Lets bytes through; each connection drops after as many bytes of the server as the next entry of `cuts` says. */
class Relay {
  cuts: number[] = [];
  drops = 0;
  readonly #sockets = new Set<Socket>();
  readonly #server;

  constructor(target: string) {
    const port = Number(target.slice(target.lastIndexOf(':') + 1));
    this.#server = createServer((client) => {
      const server = dial(port, '127.0.0.1');
      let left = this.cuts.shift() ?? Number.POSITIVE_INFINITY;
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
      client.pipe(server);
      server.on('data', (bytes) => {
        const part = bytes.subarray(0, left);
        left -= part.length;
        client.write(part, () => {
          if (left > 0 || client.destroyed) return;
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

  /** Ends all connections, so that none that was kept open takes a request past the cuts. */
  drop(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  close(): void {
    this.drop();
    this.#server.close();
  }
}

describe('Baton', { skip }, () => {
  const children: ChildProcess[] = [];
  const engines: string[] = [];
  let folder = '';
  let relay: Relay;
  let origin = '';

  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'baton-'));
    for (const name of ['a', 'b']) {
      const [child, address] = await start('mock-engine', ['--name', name, '--family', 'qwen3']);
      children.push(child);
      engines.push(`http://${address}`);
    }
    const [port, admin] = await freePorts();
    const config = join(folder, 'baton.yaml');
    writeFileSync(
      config,
      `server: {listen: [{addr: "127.0.0.1:${port}"}], admin: "127.0.0.1:${admin}"}
upstreams: [{name: mock, engine: vllm, family: qwen3, endpoints: ${JSON.stringify(engines)}}]
routes: [{match: {model: brief}, upstream: mock, resume: {ttl: 0s}}, {match: {model: "*"}, upstream: mock}]
`,
    );
    const [child, address] = await start('baton', ['run', '-c', config]);
    children.push(child);
    relay = new Relay(address);
    origin = await relay.listen();
  });
  after(async () => {
    relay?.close();
    for (const child of children) {
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    }
    rmSync(folder, { recursive: true, force: true });
  });

  const baton = (options: BatonOptions = {}) =>
    createBaton({
      clock: patientClock,
      retry: { baseMs: 1, maxMs: 2, attempts: 50 },
      ack: false,
      ...options,
    });

  /** The text of the answer, by the official client. */
  async function ask(fault?: string, options: BatonOptions = {}): Promise<string> {
    const client = new OpenAI({
      baseURL: `${origin}/v1`,
      apiKey: 'key',
      maxRetries: 0,
      fetch: baton(options).fetch,
    });
    const headers = fault === undefined ? {} : { 'mock-fault': fault };
    let text = '';
    for await (const chunk of await client.chat.completions.create(REQUEST, { headers })) {
      text += chunk.choices[0]?.delta.content ?? '';
    }
    return text;
  }

  async function generated(): Promise<number> {
    const seen = await Promise.all(engines.map(async (url) => (await fetch(`${url}/mock/requests`)).json()));
    return seen.flat().filter((request) => JSON.stringify(request).includes('Tell me of the race.')).length;
  }

  it('is read whole by 100 seeds of dropped connections, and generates each answer once', async () => {
    const uncut = await ask();
    assert.ok(uncut.length > 0);
    for (let seed = 1; seed <= 100; seed += 1) {
      const dice = chance(seed);
      const cuts = Array.from({ length: 1 + dice.below(4) }, () => 1 + dice.below(9000));
      relay.drop();
      relay.cuts = [...cuts];
      const [before, drops] = [await generated(), relay.drops];
      // Every third engine dies in the middle, too; what is left of the answer is then asked of the other one.
      const dies = seed % 3 === 0;
      assert.equal(await ask(dies ? 'leg1 rst@30' : undefined), uncut, `seed ${seed}, cuts ${cuts}`);
      if (!dies) assert.equal((await generated()) - before, 1, `seed ${seed}, cuts ${cuts}`);
      assert.ok(relay.drops > drops, `seed ${seed} dropped nothing, cuts ${cuts}`);
    }
    relay.cuts = [];
    relay.drop();
  });

  it('says that another engine takes over, and the text is the same', async () => {
    const uncut = await ask();
    const hints: string[] = [];
    const options = {
      onRecovering: () => void hints.push('recovering'),
      onContinued: () => void hints.push('continued'),
    };
    assert.equal(await ask('leg1 rst@30', options), uncut);
    assert.deepEqual(hints, ['recovering', 'continued']);
  });

  it('stops the engine when it is told to', async () => {
    const client = baton();
    const stream = await client.open(`${origin}/v1/chat/completions`, {
      method: 'POST',
      headers: { 'mock-fault': 'stall@5' },
      body: JSON.stringify(REQUEST),
    });
    for await (const { seq } of stream) if (seq === 1) break;
    await stream.cancel();
    const ask = async () => (await fetch(`${origin}/v1/streams/${stream.id}/status`)).json();
    let status = await ask();
    while (status.state !== 'ended') status = await ask();
    assert.equal(status.end, 'cancelled');
  });

  it('generates once when the connection is lost before the header, twice', async () => {
    const before = await generated();
    relay.drop();
    relay.cuts = [1, 1];
    const drops = relay.drops;
    assert.ok((await ask()).length > 0);
    assert.deepEqual([(await generated()) - before, relay.drops - drops], [1, 2]);
  });

  it('takes acknowledgements', async () => {
    const statuses: Promise<number>[] = [];
    const watched: typeof fetch = (input, init) => {
      const response = fetch(input, init);
      if (String(input).endsWith('/ack')) statuses.push(response.then(({ status }) => status));
      return response;
    };
    await ask(undefined, { ack: { every: 5 }, fetch: watched });
    const all = await Promise.all(statuses);
    assert.ok(all.length > 0 && all.every((status) => status === 204), `${all}`);
  });

  it('says that an answer has expired', async () => {
    let expired = 0;
    const storage = memoryStorage();
    const client = baton({ key: 'chat', storage, onExpired: () => void expired++ });
    const stream = await client.open(`${origin}/v1/chat/completions`, {
      method: 'POST',
      body: JSON.stringify({ ...REQUEST, model: 'brief' }),
    });
    let place: string | null = null;
    for await (const _ of stream) place ??= await storage.getItem('baton:chat');
    await storage.setItem('baton:chat', place ?? '');
    await assert.rejects(client.resume('chat'), { code: 'stream_expired' });
    assert.equal(expired, 1);
  });

  it('goes on after a reader has left', async () => {
    const client = baton({ key: 'chat', storage: memoryStorage() });
    const seqs: (number | undefined)[] = [];
    const stream = await client.open(`${origin}/v1/chat/completions`, {
      method: 'POST',
      body: JSON.stringify(REQUEST),
    });
    for await (const { seq } of stream) if (seqs.push(seq) === 5) break;
    const rest = await client.resume('chat');
    assert.ok(rest);
    for await (const { seq } of rest) seqs.push(seq);
    assert.deepEqual(
      seqs,
      seqs.map((_, at) => at),
    );
  });
});
