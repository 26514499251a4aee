/** With the official client: whatever breaks on the way, the text is that of an uncut answer. */

import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import OpenAI, { APIConnectionError } from 'openai';
import { type BatonOptions, createBaton, memoryStorage, StreamExpiredError } from '../src/index.js';
import { FakeBaton, type Fault } from './fake.js';
import { answer, chance, patientClock, seeds, WORDS } from './support.js';

const servers: FakeBaton[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) await server.close();
});

async function serve(pieces: readonly string[], script: readonly Fault[] = []): Promise<FakeBaton> {
  const server = await new FakeBaton(answer(pieces), script).listen();
  servers.push(server);
  return server;
}

function connect(server: FakeBaton, options: BatonOptions = {}, maxRetries = 0) {
  const baton = createBaton({
    clock: patientClock,
    retry: { baseMs: 1, maxMs: 2, attempts: 50 },
    ...options,
  });
  const client = new OpenAI({
    baseURL: `${server.origin}/v1`,
    apiKey: 'key',
    maxRetries,
    fetch: baton.fetch,
  });
  return { baton, client };
}

const REQUEST = {
  model: 'm',
  messages: [{ role: 'user' as const, content: 'Tell me of the race.' }],
  stream: true as const,
};

async function textOf(
  client: OpenAI,
): Promise<{ text: string; finish: string | null | undefined; chunks: number }> {
  let text = '';
  let chunks = 0;
  let finish: string | null | undefined;
  for await (const chunk of await client.chat.completions.create(REQUEST)) {
    chunks += 1;
    text += chunk.choices[0]?.delta.content ?? '';
    finish = chunk.choices[0]?.finish_reason ?? finish;
  }
  return { text, finish, chunks };
}

describe('new OpenAI({fetch})', () => {
  it('reads an answer that nothing happens to', async () => {
    const server = await serve(WORDS);
    const { client } = connect(server);
    assert.deepEqual(await textOf(client), {
      text: WORDS.join(''),
      finish: 'stop',
      chunks: WORDS.length + 2,
    });
    assert.equal(server.seen[0]?.headers.authorization, 'Bearer key');
  });

  it('reads an answer that is cut, and asks for it once', async () => {
    const script = [
      { beforeHeader: true },
      { cutAt: 700 },
      { status: 503 },
      { cutAt: 300, how: 'clean' as const },
    ];
    const server = await serve(WORDS, script);
    assert.equal((await textOf(connect(server).client)).text, WORDS.join(''));
    assert.equal(server.generations, 1);
  });

  it('gets heartbeats and hints out of the way', async () => {
    const comments = { before: 4, lines: ['ping', 'baton recovering', 'ping', 'baton continued'] };
    let hints = 0;
    const onRecovering = () => {
      hints += 1;
    };
    const server = await serve(WORDS, [{ comments }]);
    assert.equal((await textOf(connect(server, { onRecovering }).client)).text, WORDS.join(''));
    assert.equal(hints, 1);
  });

  it('still answers what does not stream', async () => {
    const server = await serve(WORDS);
    const { client } = connect(server);
    const whole = await client.chat.completions.create({ ...REQUEST, stream: false });
    assert.equal(whole.choices[0]?.message.content, 'whole');
  });

  it('drives its helpers', async () => {
    const server = await serve(WORDS, [{ cutAt: 900, how: 'clean' }]);
    const runner = connect(server).client.chat.completions.stream({ model: 'm', messages: REQUEST.messages });
    assert.equal(await runner.finalContent(), WORDS.join(''));
  });

  it('throws when the server says that the answer is not whole', async () => {
    const server = await serve([]);
    server.events = ['{"choices":[]}', '{"error":{"message":"no engine","code":"stream_incomplete"}}'];
    await assert.rejects(textOf(connect(server).client), { code: 'stream_incomplete' });
  });

  it('throws what this library throws when the answer has expired', async () => {
    const gone = { status: 410, body: '{"error":{"code":"stream_expired"}}' };
    const server = await serve(WORDS, [{ cutAt: 900, how: 'clean' }, gone]);
    await assert.rejects(textOf(connect(server).client), StreamExpiredError);
  });

  it('leaves a refusal to the client, which knows how to say it', async () => {
    const server = await serve(WORDS, [{ status: 401 }]);
    await assert.rejects(textOf(connect(server).client), OpenAI.AuthenticationError);
  });

  it('repeats a lost request under its key even when it is the client that repeats it', async () => {
    const server = await serve(WORDS, Array(3).fill({ beforeHeader: true }));
    const retry = { baseMs: 1, maxMs: 1, openAttempts: 2 };
    assert.equal((await textOf(connect(server, { retry }, 1).client)).text, WORDS.join(''));
    const keys = server.asked('POST', /completions$/).map((seen) => seen.headers['idempotency-key']);
    assert.equal(keys.length, 4);
    assert.equal(new Set(keys).size, 1);
    assert.equal(server.generations, 1);
  });

  it('says that there is no connection when there is none', async () => {
    const server = await serve(WORDS, Array(4).fill({ beforeHeader: true }));
    await assert.rejects(textOf(connect(server).client), APIConnectionError);
  });

  it('only detaches when the loop is left, and goes on elsewhere', async () => {
    const server = await serve(WORDS);
    const storage = memoryStorage();
    const { baton, client } = connect(server, { key: 'chat', storage });
    let text = '';
    let count = 0;
    for await (const chunk of await client.chat.completions.create(REQUEST)) {
      text += chunk.choices[0]?.delta.content ?? '';
      count += 1;
      if (count === 5) break;
    }
    const stream = await baton.resume('chat', { headers: { authorization: 'Bearer key' } });
    assert.ok(stream);
    for await (const { data } of stream) {
      if (data !== '[DONE]') text += JSON.parse(data).choices[0].delta.content ?? '';
    }
    assert.equal(text, WORDS.join(''));
    assert.equal(server.cancels, 0);
  });

  it('cancels by the id in the response', async () => {
    const server = await serve(WORDS);
    const { baton, client } = connect(server);
    const { data, response } = await client.chat.completions.create(REQUEST).withResponse();
    for await (const _ of data) break;
    await baton.cancel(response.headers.get('baton-stream') ?? '');
    assert.equal(server.cancels, 1);
  });
});

/** What may happen to a connection, by chance. */
function fault({ below, float }: ReturnType<typeof chance>, events: number, first: boolean): Fault {
  const cut = (): Fault => ({
    cutAt: below(below(2) === 0 ? 400 : 4000),
    how: below(2) === 0 ? 'clean' : 'reset',
  });
  const eol = (['\n', '\r\n', '\r'] as const)[below(3)] ?? '\n';
  const lines = [['ping'], ['ping', 'ping'], ['baton recovering'], ['baton continued']][below(4)] ?? [];
  const comments = { before: below(events), lines };
  const kind = below(10);
  if (kind < 4) return { ...cut(), eol, comments };
  if (kind < 5) return { ...cut(), piece: 1 + below(60) };
  if (kind < 6) return { beforeHeader: true };
  if (kind < 7) return { ...cut(), skip: below(events), repeat: below(4) };
  if (kind < 8) return { ...cut(), repeat: below(events) };
  if (first) return { ...cut(), comments };
  return {
    status: [429, 500, 502, 503][below(4)] ?? 503,
    headers: float() < 0.5 ? { 'retry-after': '0' } : {},
  };
}

describe('random trouble', () => {
  it('by seeds changes nothing in what is read', async (t) => {
    // One server for all: what a seed decides is the answer, and what happens to its connections.
    const server = await serve([]);
    for (const seed of seeds(300, t)) {
      const dice = chance(seed);
      const pieces = Array.from({ length: dice.below(40) }, () => WORDS[dice.below(WORDS.length)] ?? '');
      server.events = answer(pieces);
      const { length } = server.events;
      server.script = Array.from({ length: dice.below(9) }, (_, at) => fault(dice, length, at === 0));
      const script = JSON.stringify(server.script);
      const generations = server.generations;
      try {
        const retry = { baseMs: 1, maxMs: 1, attempts: 50, openAttempts: 50 };
        const read = await textOf(
          connect(server, { retry, clock: { ...patientClock, random: dice.float } }).client,
        );
        assert.deepEqual(read, { text: pieces.join(''), finish: 'stop', chunks: length - 1 });
        assert.equal(server.generations, generations + 1);
        assert.ok(server.mostAcksAtOnce <= 1);
      } catch (error) {
        throw new Error(`seed ${seed} failed with the script ${script}`, { cause: error });
      }
    }
  });
});
