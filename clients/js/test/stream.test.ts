import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, it } from 'node:test';
import {
  type BatonError,
  type BatonEvent,
  type BatonOptions,
  type BatonStream,
  ConnectionLostError,
  createBaton,
  EventTooLongError,
  memoryStorage,
  RequestRefusedError,
  StreamExpiredError,
  StreamIncompleteError,
  StreamUnknownError,
} from '../src/index.js';
import { FakeBaton, type Fault } from './fake.js';
import { answer, gate, HandClock, patientClock, settle, WORDS } from './support.js';

const EVENTS = answer(WORDS);
const LAST = EVENTS.length - 1;
const HEADERS = { authorization: 'Bearer key', 'content-type': 'application/json' };
const INIT = { method: 'POST', headers: HEADERS, body: '{"model":"m","stream":true}' };
const QUICK = { baseMs: 1, maxMs: 2 };
/** What the header of a stream that is kept holds. */
const STREAM = { 'content-type': 'text/event-stream', 'baton-stream': 's', location: '/v1/streams/s' };

const servers: FakeBaton[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) await server.close();
});

async function serve(script: readonly Fault[] = [], events: readonly string[] = EVENTS): Promise<FakeBaton> {
  const server = await new FakeBaton(events, script).listen();
  servers.push(server);
  return server;
}

function client(options: BatonOptions = {}) {
  return createBaton({ clock: patientClock, ...options, retry: { ...QUICK, ...options.retry } });
}

function begin(server: FakeBaton, options: BatonOptions = {}, init: RequestInit = {}): Promise<BatonStream> {
  return client(options).open(`${server.origin}/v1/chat/completions`, { ...INIT, ...init });
}

async function read(stream: AsyncIterable<BatonEvent>): Promise<BatonEvent[]> {
  const events: BatonEvent[] = [];
  for await (const event of stream) events.push(event);
  return events;
}

function assertWhole(events: readonly BatonEvent[], from = 0): void {
  const expected = EVENTS.map((data, seq) => ({ seq, event: '', data })).slice(from);
  assert.deepEqual(events, expected);
}

/** The place in the body at which the event with this seq begins. */
function offset(seq: number): number {
  const lines = EVENTS.slice(0, seq).map((data, at) => `id: st_1x${EVENTS.length}.${at}\ndata: ${data}\n\n`);
  return Buffer.byteLength(`retry: 1\n${lines.join('')}`) + 1;
}

describe('an answer is read whole', () => {
  it('over one connection, which asks to be resumable', async () => {
    const server = await serve();
    assertWhole(await read(await begin(server)));
    const [post] = server.asked('POST', /completions$/);
    assert.equal(post?.headers['baton-resume'], 'on');
    assert.match(post?.headers['idempotency-key']?.toString() ?? '', /^[0-9a-f-]{36}$/);
    assert.equal(post?.body, INIT.body);
  });

  it('whatever ends its lines', async () => {
    for (const eol of ['\n', '\r\n', '\r'] as const) {
      assertWhole(await read(await begin(await serve([{ eol }]))));
    }
  });

  it('cut at every byte of two events, by a reset or by a clean end', async () => {
    // The second event holds characters of several bytes.
    for (let at = offset(4); at < offset(5); at += 3) {
      for (const how of ['reset', 'clean'] as const) {
        const server = await serve([{ cutAt: at, how }]);
        assertWhole(await read(await begin(server)));
        const [comeBack] = server.asked('GET', /streams/);
        if (how === 'clean') assert.equal(comeBack?.headers['last-event-id'], `st_1x${EVENTS.length}.3`);
        assert.equal(comeBack?.headers.authorization, 'Bearer key');
        assert.equal(comeBack?.headers['idempotency-key'], undefined);
        assert.equal(server.generations, 1);
      }
    }
  });

  it('cut before its first event', async () => {
    const server = await serve([{ cutAt: 0 }, { cutAt: 5, how: 'clean' }]);
    assertWhole(await read(await begin(server)));
    assert.equal(server.asked('GET', /streams/)[0]?.headers['last-event-id'], undefined);
  });

  it('cut between the finish and [DONE]', async () => {
    assertWhole(await read(await begin(await serve([{ cutAt: offset(LAST), how: 'clean' }]))));
  });

  it('in pieces of one byte', async () => {
    assertWhole(await read(await begin(await serve([{ piece: 1 }]))));
  });

  it('with heartbeats between its events', async () => {
    const comments = { before: 3, lines: ['ping', 'ping', 'baton something', ''] };
    assertWhole(await read(await begin(await serve([{ comments }]))));
  });

  it('when events are sent again', async () => {
    const server = await serve([
      { cutAt: offset(9), how: 'clean' },
      { repeat: 5, cutAt: 600, how: 'clean' },
      { repeat: 99 },
    ]);
    assertWhole(await read(await begin(server)));
  });

  it('when an event is left out, which is told and fetched and never passed over', async () => {
    const gaps: unknown[] = [];
    const server = await serve([{ skip: 0 }, { skip: 5 }, { skip: LAST }]);
    const stream = await begin(server, {
      onGap: ({ expected, received }) => gaps.push([expected, received]),
    });
    assertWhole(await read(stream));
    // Without its last event, a response ends without a finish, which is no gap.
    assert.deepEqual(gaps, [
      [0, 1],
      [5, 6],
    ]);
    assert.equal(server.asked('GET', /streams/).length, 3);
  });

  it('when the server is busy, or something else answers in its place', async () => {
    const server = await serve([
      { cutAt: offset(3), how: 'clean' },
      { status: 503, headers: { 'retry-after': '0' } },
      { status: 429 },
      { status: 200, headers: { 'content-type': 'text/html' }, body: '<h1>log in</h1>' },
      { beforeHeader: true },
    ]);
    const dropped: number[] = [];
    const resumed: unknown[] = [];
    const stream = await begin(server, {
      onDropped: ({ attempt }) => dropped.push(attempt),
      onResumed: ({ seq, attempts }) => resumed.push([seq, attempts]),
    });
    assertWhole(await read(stream));
    assert.deepEqual(dropped, [1, 2, 3, 4, 5]);
    assert.deepEqual(resumed, [[2, 5]]);
  });

  it('over many connections, when each brings something new', async () => {
    const server = await serve(
      Array.from({ length: 6 }, (_, at) => ({ cutAt: 500 + at, how: 'clean' as const })),
    );
    assertWhole(await read(await begin(server, { retry: { attempts: 1 } })));
    assert.ok(server.asked('GET', /streams/).length >= 4);
  });

  it('as bytes that hold nothing but events', async () => {
    const comments = { before: 3, lines: ['ping'] };
    const server = await serve([{ comments, cutAt: offset(5), how: 'clean' }]);
    const response = await client().fetch(`${server.origin}/v1/chat/completions`, INIT);
    assert.equal(response.status, 200);
    assert.equal(response.url, `${server.origin}/v1/chat/completions`);
    assert.match(response.headers.get('content-type') ?? '', /^text\/event-stream/);
    assert.equal(await response.text(), EVENTS.map((data) => `data: ${data}\n\n`).join(''));
  });
});

describe('waits', () => {
  it('are as long as Retry-After says, and as `retry:` says else', async () => {
    const waits: number[] = [];
    const server = await serve([
      { cutAt: offset(2), how: 'clean' },
      { status: 503, headers: { 'retry-after': '70' } },
    ]);
    server.retryMs = 2000;
    const clock = new HandClock();
    const stream = await begin(server, {
      clock,
      retry: { baseMs: 1, maxMs: 15_000 },
      onDropped: ({ waitMs }) => {
        waits.push(waitMs);
        setImmediate(() => clock.move(waitMs));
      },
    });
    assertWhole(await read(stream));
    assert.deepEqual(waits, [2000, 70_000]);
  });

  /** An answer that breaks off at once and is never to be had again; when it was asked for, in ms from the break on. */
  async function outage(random: number, retry: string): Promise<{ tries: number[]; error: unknown }> {
    const clock = new HandClock();
    clock.random = () => random;
    const tries: number[] = [];
    const fetch: typeof globalThis.fetch = async (_, init) => {
      if (init?.method === 'POST') return new Response(retry, { headers: STREAM });
      tries.push(clock.time);
      throw new TypeError('no network');
    };
    const onDropped: BatonOptions['onDropped'] = ({ waitMs }) => setImmediate(() => clock.move(waitMs));
    // With the options that a page has when it sets none.
    const stream = await createBaton({ clock, fetch, onDropped }).open('https://a.test/completions', INIT);
    return { tries, error: await read(stream).catch((error) => error) };
  }

  it('leave no 8 s of an outage without a try, for five minutes', async () => {
    for (const random of [0, 1]) {
      for (const retry of ['', 'retry: 2000\n\n', 'retry: 60000\n\n']) {
        const { tries, error } = await outage(random, retry);
        for (const [at, time] of tries.entries()) assert.ok(time - (tries[at - 1] ?? 0) <= 8000, `${tries}`);
        assert.ok((tries.at(-1) ?? 0) > 292_000, `${tries}`);
        assert.ok(error instanceof ConnectionLostError);
      }
    }
  });

  it('end at once when the network or the user is back', async () => {
    const server = await serve([{ cutAt: offset(2), how: 'clean' }, { beforeHeader: true }]);
    const clock = new HandClock();
    const woken = new Set<() => void>();
    let calls = 0;
    const stream = await begin(server, {
      clock,
      ack: false,
      wake: (run) => {
        calls += 1;
        woken.add(run);
        return () => void woken.delete(run);
      },
      onDropped: () => setImmediate(() => woken.forEach((run) => void run())),
    });
    assertWhole(await read(stream));
    assert.deepEqual([clock.time, calls, woken.size], [0, 2, 0]);
  });

  it('last as long as the server asked for, whoever is back', async () => {
    const server = await serve([
      { cutAt: offset(2), how: 'clean' },
      { status: 503, headers: { 'retry-after': '5' } },
    ]);
    const clock = new HandClock();
    let calls = 0;
    const stream = await begin(server, {
      clock,
      ack: false,
      wake: () => {
        calls += 1;
        return () => {};
      },
      onDropped: ({ waitMs }) => setImmediate(() => clock.move(waitMs)),
    });
    assertWhole(await read(stream));
    assert.equal(calls, 1);
    assert.ok(clock.time >= 5000);
  });

  it('end at once when the caller leaves', async () => {
    const server = await serve([{ cutAt: offset(2), how: 'clean' }]);
    const clock = new HandClock();
    const abort = new AbortController();
    const stream = await begin(server, { clock, onDropped: () => abort.abort() }, { signal: abort.signal });
    await assert.rejects(read(stream), { name: 'AbortError' });
    assert.equal(clock.pending, 0);
    assert.equal(server.asked('GET', /streams/).length, 0);
  });

  it('end a connection on which nothing comes, not even a heartbeat', async () => {
    const server = await serve();
    server.whole = false;
    const clock = new HandClock();
    const stream = await begin(server, {
      clock,
      ack: false,
      stallMs: 60_000,
      onDropped: ({ waitMs }) => {
        server.advance(EVENTS.length);
        setImmediate(() => clock.move(waitMs));
      },
    });
    const events = read(stream);
    await settle();
    clock.move(60_000);
    assertWhole(await events);
    assert.equal(server.asked('GET', /streams/).length, 1);
  });
});

describe('it is given up', () => {
  const fails = async (
    script: readonly Fault[],
    type: new (...args: never[]) => BatonError,
    options: BatonOptions = {},
  ): Promise<BatonError> => {
    const server = await serve([{ cutAt: offset(2), how: 'clean' }, ...script]);
    const storage = memoryStorage();
    const stream = await begin(server, { key: 'k', storage, ...options });
    const error = await read(stream).then(
      () => assert.fail('it was read whole'),
      (reason: unknown) => reason as BatonError,
    );
    assert.ok(error instanceof type, String(error));
    assert.equal(error.streamId, stream.id);
    assert.equal(error.seq, 1);
    // What may still be there is kept for a resume; what is gone for good is forgotten.
    const kept = error instanceof ConnectionLostError || error instanceof RequestRefusedError;
    await settle();
    assert.equal((await storage.getItem('baton:k')) !== null, kept);
    return error;
  };

  it('when the stream is not known', async () => {
    assert.equal((await fails([{ status: 404 }], StreamUnknownError)).code, 'stream_unknown');
  });

  it('when it has expired, or what is missing was trimmed', async () => {
    for (const code of ['stream_expired', 'trimmed'] as const) {
      const told: string[] = [];
      const body = JSON.stringify({ error: { message: 'm', code } });
      const onExpired = (at: { code: string }) => told.push(at.code);
      assert.equal((await fails([{ status: 410, body }], StreamExpiredError, { onExpired })).code, code);
      assert.deepEqual(told, [code]);
    }
  });

  it('when the stream is over and its end never came', async () => {
    await fails([{ status: 204 }], StreamIncompleteError);
  });

  it('when the server refuses', async () => {
    const error = await fails([{ status: 401, body: 'who are you?' }], RequestRefusedError);
    assert.match(error.message, /401.*who are you/);
  });

  it('after so many attempts without a new event', async () => {
    const useless: Fault[] = [
      { cutAt: 0 },
      { beforeHeader: true },
      { status: 500 },
      { repeat: 2, cutAt: 60 },
      {},
    ];
    const error = await fails(useless, ConnectionLostError, { retry: { attempts: 4 } });
    assert.equal((error as ConnectionLostError).attempts, 4);
    assert.match(error.message, /resume\(key\)/);
  });

  it('at once when the server asks for a longer wait than an outage may last', async () => {
    const later = { status: 503, headers: { 'retry-after': '3600' } };
    await fails([later], ConnectionLostError);
  });

  it('when an event is too long, which coming back would not change', async () => {
    const stream = await begin(await serve(), { maxEventLength: 50 });
    await assert.rejects(read(stream), EventTooLongError);
  });
});

describe('an end that is said', () => {
  it('is handed on, and not come back from', async () => {
    const error = '{"error":{"message":"m","code":"stream_incomplete"}}';
    const events = [...EVENTS.slice(0, 3), error];
    const server = await serve([], events);
    assert.deepEqual((await read(await begin(server))).at(-1), { seq: 3, event: '', data: error });
    assert.equal(server.asked('GET', /streams/).length, 0);
  });

  it('lets the place be forgotten', async () => {
    const storage = memoryStorage();
    const server = await serve();
    await read(await begin(server, { key: 'k', storage }));
    await settle();
    assert.equal(await storage.getItem('baton:k'), null);
  });
});

describe('hints', () => {
  it('say that another engine is looked for, and that it has gone on', async () => {
    const hints: unknown[] = [];
    const comments = { before: 3, lines: ['baton recovering', 'ping', 'baton continued'] };
    const stream = await begin(await serve([{ comments }]), {
      onRecovering: ({ seq }) => hints.push(['recovering', seq]),
      onContinued: ({ seq }) => hints.push(['continued', seq]),
    });
    assertWhole(await read(stream));
    assert.deepEqual(hints, [
      ['recovering', 2],
      ['continued', 2],
    ]);
  });

  it('harm nothing when a hook throws', async (t) => {
    const log = t.mock.method(console, 'error', () => {});
    const hook = () => {
      throw new Error('my own fault');
    };
    const script = [{ skip: 2 }, { comments: { before: 3, lines: ['baton recovering', 'baton continued'] } }];
    const hooks = {
      onGap: hook,
      onDropped: hook,
      onResumed: hook,
      onRecovering: hook,
      onContinued: hook,
      onStream: hook,
    };
    assertWhole(await read(await begin(await serve(script), hooks)));
    assert.equal(log.mock.callCount(), 6);
  });
});

describe('acknowledgements', () => {
  it('follow what was handled, one at a time, and end with the last event', async () => {
    const server = await serve([], answer(Array(100).fill('x')));
    const stream = await begin(server);
    for await (const event of stream) {
      // Whatever was acknowledged by now was handed on before this event.
      assert.ok(server.acks.every((seq) => seq < (event.seq ?? 0)));
    }
    while (server.acks.at(-1) !== 102) await once(server.happened, 'ack');
    assert.equal(server.mostAcksAtOnce, 1);
  });

  it('do not hold up the answer when they hang or fail', async () => {
    const server = await serve([], answer(Array(50).fill('x')));
    const held = gate();
    server.ackGate = held.promise;
    server.ackStatus = 500;
    const acked = once(server.happened, 'ack');
    assert.equal((await read(await begin(server))).length, 53);
    await acked;
    held.open();
    while (server.acks.at(-1) !== 52) await once(server.happened, 'ack');
    assert.equal(server.mostAcksAtOnce, 1);
  });

  it('can be switched off', async () => {
    const server = await serve([], answer(Array(50).fill('x')));
    await read(await begin(server, { ack: false }));
    assert.deepEqual(server.acks, []);
  });
});

describe('backpressure', () => {
  it('an event counts as handed on, and is recorded, only when it is asked for', async () => {
    const storage = memoryStorage();
    const server = await serve();
    const response = await client({ key: 'k', storage }).fetch(`${server.origin}/v1/chat/completions`, INIT);
    const seq = async () => JSON.parse((await storage.getItem('baton:k')) ?? '{}').seq;
    const reader = response.body?.getReader();
    assert.equal(await seq(), -1);
    await reader?.read();
    await settle();
    assert.equal(await seq(), 0);
    await reader?.read();
    assert.equal(await seq(), 1);
    await reader?.cancel();
  });

  it('the seq is recorded before the event is handed on, also by a storage that takes its time', async () => {
    const inner = memoryStorage();
    const storage = {
      ...inner,
      async setItem(key: string, value: string) {
        await settle();
        await inner.setItem(key, value);
      },
    };
    const server = await serve([{ cutAt: offset(6), how: 'clean' }]);
    for await (const event of await begin(server, { key: 'k', storage })) {
      assert.equal(JSON.parse((await storage.getItem('baton:k')) ?? '{}').seq, event.seq);
    }
  });
});

describe('a storage whose first write takes longest', () => {
  it('ends with the place of the last event', async () => {
    const inner = memoryStorage();
    const held = gate();
    const storage = {
      ...inner,
      async setItem(key: string, value: string) {
        if (JSON.parse(value).seq === -1) await held.promise;
        await inner.setItem(key, value);
      },
    };
    const server = await serve();
    const opened = begin(server, { key: 'k', storage });
    let hasStream = false;
    void opened.then(() => {
      hasStream = true;
    });
    await once(server.happened, 'post');
    // Long enough for an answer that waits for nothing else to be read.
    for (let turn = 0; turn < 50; turn += 1) await settle();
    assert.equal(hasStream, false);
    held.open();
    for await (const event of await opened) {
      if (event.seq === 3) break;
    }
    await settle();
    assert.equal(JSON.parse((await storage.getItem('baton:k')) ?? '{}').seq, 3);
  });
});

describe('leaving', () => {
  it('detaches when the loop is left, and resume goes on after the last event', async () => {
    const server = await serve();
    const storage = memoryStorage();
    const first: BatonEvent[] = [];
    for await (const event of await begin(server, { key: 'k', storage })) {
      first.push(event);
      if (event.seq === 4) break;
    }
    const resumed: unknown[] = [];
    const baton = client({ storage, onResumed: ({ seq }) => resumed.push(seq) });
    const stream = await baton.resume('k', { headers: HEADERS });
    assert.ok(stream);
    assertWhole([...first, ...(await read(stream))]);
    assert.equal(server.asked('GET', /streams/)[0]?.headers.authorization, 'Bearer key');
    assert.deepEqual(resumed, [4]);
    assert.equal(server.cancels, 0);
    assert.equal(server.generations, 1);
  });

  it('detaches when the signal aborts, with its reason', async () => {
    const server = await serve();
    server.whole = false;
    const abort = new AbortController();
    const stream = await begin(server, {}, { signal: abort.signal });
    const events = read(stream);
    server.advance(2);
    await settle();
    const reason = new Error('enough');
    abort.abort(reason);
    await assert.rejects(events, reason);
    assert.equal(server.cancels, 0);
  });

  it('is left for good when the rest is just being fetched', async () => {
    const server = await serve([{ cutAt: offset(3), how: 'clean' }]);
    const resumed: unknown[] = [];
    // Leaves when the header of the come-back is there, and before anybody has looked at it.
    const fetch: typeof globalThis.fetch = async (input, init) => {
      const response = await globalThis.fetch(input, init);
      if (init?.method === 'GET') stream.detach();
      return response;
    };
    const stream: BatonStream = await begin(server, { fetch, onResumed: (at) => resumed.push(at) });
    assert.equal((await read(stream)).length, 3);
    assert.deepEqual(resumed, []);
  });

  it('detaches when the body is cancelled', async () => {
    const server = await serve();
    server.whole = false;
    const response = await client().fetch(`${server.origin}/v1/chat/completions`, INIT);
    await response.body?.cancel();
    server.advance(1);
    assert.equal(server.cancels, 0);
    assert.equal(server.asked('GET', /streams/).length, 0);
  });

  it('can be resumed from where the caller says, or from the beginning', async () => {
    const server = await serve();
    const storage = memoryStorage();
    for await (const event of await begin(server, { key: 'k', storage })) if (event.seq === 4) break;
    for (const after of [2, -1]) {
      const stream = await client({ storage }).resume('k', { headers: HEADERS, after });
      assert.ok(stream);
      const events: BatonEvent[] = [];
      for await (const event of stream) {
        events.push(event);
        if (event.seq === LAST - 1) break;
      }
      assert.deepEqual(
        events.map((event) => event.seq),
        EVENTS.map((_, seq) => seq).slice(after + 1, LAST),
      );
    }
  });

  it('has nothing to resume when nothing was kept, or all was handed on', async () => {
    const server = await serve();
    const storage = memoryStorage();
    const baton = client({ storage });
    assert.equal(await baton.resume('k'), undefined);
    for await (const event of await begin(server, { key: 'k', storage })) if (event.seq === 4) break;
    assert.equal(await baton.resume('k', { headers: HEADERS, after: LAST }), undefined);
    await settle();
    assert.equal(await storage.getItem('baton:k'), null);
  });

  it('says so when what was kept is gone from the server', async () => {
    const server = await serve([{}, { status: 410, body: '{"error":{"code":"stream_expired"}}' }]);
    const storage = memoryStorage();
    for await (const event of await begin(server, { key: 'k', storage })) if (event.seq === 4) break;
    await assert.rejects(client({ storage }).resume('k'), StreamExpiredError);
    assert.equal(await client({ storage }).resume('k'), undefined);
  });

  it('keeps no credentials', async () => {
    const storage = memoryStorage();
    for await (const _ of await begin(await serve(), { key: 'k', storage })) break;
    assert.doesNotMatch((await storage.getItem('baton:k')) ?? '', /Bearer|key/);
  });
});

describe('cancelling', () => {
  it('tells the server, ends the answer here without an error, and is idempotent', async () => {
    const server = await serve();
    server.whole = false;
    const storage = memoryStorage();
    const stream = await begin(server, { key: 'k', storage });
    const events = read(stream);
    server.advance(3);
    await Promise.all([stream.cancel(), stream.cancel()]);
    assert.ok((await events).length <= 3);
    assert.equal(server.cancels, 1);
    assert.equal(server.asked('POST', /cancel$/)[0]?.headers.authorization, 'Bearer key');
    assert.equal(await storage.getItem('baton:k'), null);
  });

  it('goes on until the server has heard', async () => {
    const server = await serve();
    server.cancelScript = [{ beforeHeader: true }, { status: 503 }];
    const stream = await begin(server);
    await stream.cancel();
    assert.equal(server.cancels, 3);
  });

  it('is satisfied when there is nothing left to stop, and says so when it is refused', async () => {
    const server = await serve();
    server.cancelScript = [{ status: 404 }, { status: 403 }];
    await (await begin(server)).cancel();
    await assert.rejects((await begin(server)).cancel(), RequestRefusedError);
  });

  it('reaches a stream by its id, also one that was detached', async () => {
    const server = await serve();
    const baton = client();
    const response = await baton.fetch(`${server.origin}/v1/chat/completions`, INIT);
    const id = response.headers.get('baton-stream') ?? '';
    await response.body?.cancel();
    await baton.cancel('unknown');
    assert.equal(server.cancels, 0);
    await baton.cancel(id);
    assert.equal(server.cancels, 1);
  });

  it('asks nothing of the server when the answer is whole', async () => {
    const server = await serve();
    const stream = await begin(server);
    await read(stream);
    await stream.cancel();
    assert.equal(server.cancels, 0);
  });

  it('does not remember streams without end', async () => {
    const cancelled: string[] = [];
    let begun = 0;
    const fetch: typeof globalThis.fetch = async (input) => {
      if (String(input).endsWith('/cancel')) {
        cancelled.push(String(input));
        return new Response(null, { status: 204 });
      }
      begun += 1;
      const headers = { ...STREAM, 'baton-stream': `s${begun}`, location: `/v1/streams/s${begun}` };
      return new Response(new ReadableStream(), { headers });
    };
    const baton = client({ fetch });
    for (let count = 0; count < 70; count += 1) {
      (await baton.open('https://a.test/v1/chat/completions', INIT)).detach();
    }
    await baton.cancel();
    assert.equal(cancelled.length, 64);
    assert.equal(cancelled.at(-1), 'https://a.test/v1/streams/s70/cancel');
  });
});

describe('the request itself', () => {
  it('is repeated under its key when its response was lost, and nothing is generated twice', async () => {
    const server = await serve([{ beforeHeader: true }, { beforeHeader: true }]);
    assertWhole(await read(await begin(server)));
    const keys = server.asked('POST', /completions$/).map((seen) => seen.headers['idempotency-key']);
    assert.equal(keys.length, 3);
    assert.equal(new Set(keys).size, 1);
    assert.equal(server.generations, 1);
  });

  it('keeps the key of its caller', async () => {
    const server = await serve([{ beforeHeader: true }]);
    await read(await begin(server, {}, { headers: { ...HEADERS, 'Idempotency-Key': 'mine' } }));
    const keys = server.asked('POST', /completions$/).map((seen) => seen.headers['idempotency-key']);
    assert.deepEqual(keys, ['mine', 'mine']);
  });

  it('is given up after some tries', async () => {
    const server = await serve(Array(9).fill({ beforeHeader: true }));
    await assert.rejects(begin(server), (error) => {
      assert.ok(error instanceof ConnectionLostError);
      assert.equal(error.attempts, 4);
      assert.match(error.message, /Idempotency-Key/);
      return true;
    });
    assert.equal(server.asked('POST', /completions$/).length, 4);
  });

  it('leaves a first refusal to the caller of fetch, and waits one out behind a lost response', async () => {
    const server = await serve([{ status: 503, headers: { 'retry-after': '0' } }]);
    const response = await client().fetch(`${server.origin}/v1/chat/completions`, INIT);
    assert.equal(response.status, 503);
    await response.text();
    server.script = [{ beforeHeader: true }, { status: 503, headers: { 'retry-after': '0' } }];
    assertWhole(await read(await begin(server)));
  });

  /** Opens while the server says these times that it is busy; what `open` did, how long it waited, and how often it asked. */
  async function openBusy(script: readonly Fault[], options: BatonOptions = {}) {
    const server = await serve(script);
    const clock = new HandClock();
    const opened = client({ clock, stallMs: 0, ...options }).open(
      `${server.origin}/v1/chat/completions`,
      INIT,
    );
    let settled = false;
    const over = () => {
      settled = true;
    };
    opened.then(over, over);
    const waits: number[] = [];
    while (!settled) {
      await settle();
      const { next } = clock;
      if (next === undefined) continue;
      waits.push(next - clock.time);
      clock.move(next - clock.time);
    }
    const keys = server.asked('POST', /completions$/).map((seen) => seen.headers['idempotency-key']);
    assert.equal(new Set(keys).size, 1);
    const error = await opened
      .then(async (stream) => assertWhole(await read(stream)))
      .catch((error) => error);
    return { error, waits, asked: keys.length };
  }
  const busy = (status: number, after?: string): Fault => ({
    status,
    ...(after === undefined ? {} : { headers: { 'retry-after': after } }),
  });

  it('waits a busy server out for open, as long as it says or else as long as others', async () => {
    const retry = { baseMs: 1000, maxMs: 5000 };
    const { error, waits, asked } = await openBusy([busy(503, '5'), busy(429), busy(429, '7')], { retry });
    assert.equal(error, undefined);
    assert.deepEqual(waits, [5000, 2000, 7000]);
    assert.equal(asked, 4);
  });

  it('is refused when the server stays busy, or asks for more time than an outage may last', async () => {
    for (const [script, asked, retryAfterMs] of [
      [Array(9).fill(busy(503, '5')), 4, 5000],
      [[busy(429, '3600')], 1, 3_600_000],
      [Array(9).fill(busy(503)), 4, 0],
    ] as const) {
      const { error, ...seen } = await openBusy(script);
      assert.ok(error instanceof RequestRefusedError, String(error));
      assert.match(error.message, /scripted/);
      assert.deepEqual([seen.asked, error.retryAfterMs], [asked, retryAfterMs]);
    }
  });

  it('is refused at once with any other status', async () => {
    for (const status of [400, 401, 500, 502, 504]) {
      const { error, asked } = await openBusy([busy(status), {}]);
      assert.ok(error instanceof RequestRefusedError && error.status === status);
      assert.equal(asked, 1);
    }
  });

  it('is not waited for by who leaves', async () => {
    const server = await serve([busy(503, '5'), {}]);
    const clock = new HandClock();
    const abort = new AbortController();
    const opened = begin(server, { clock, stallMs: 0 }, { signal: abort.signal });
    opened.catch(() => {});
    while (clock.pending === 0) await settle();
    abort.abort();
    await assert.rejects(opened, { name: 'AbortError' });
    assert.equal(clock.pending, 0);
    assert.equal(server.seen.length, 1);
  });

  it('aborts like any fetch', async () => {
    const server = await serve([{ beforeHeader: true }]);
    await assert.rejects(begin(server, {}, { signal: AbortSignal.abort() }), { name: 'AbortError' });
    assert.equal(server.seen.length, 0);
  });

  it('passes untouched when it does not stream', async () => {
    const server = await serve();
    const init = { ...INIT, body: '{"model":"m"}' };
    const response = await client().fetch(`${server.origin}/v1/chat/completions`, init);
    assert.equal((await response.json()).object, 'chat.completion');
    assert.equal(server.seen[0]?.headers['baton-resume'], undefined);
    assert.equal(server.seen[0]?.headers['idempotency-key'], undefined);
  });
});

describe('a server that is no Baton', () => {
  const plain = (body: ReadableStream | string, type = 'text/event-stream') =>
    client({ fetch: async () => new Response(body, { headers: { 'content-type': type } }) });

  it('is read like any other, and its ids mean nothing', async () => {
    const stream = await plain('id: 7\ndata: a\n\nevent: x\ndata: b\n\n').open(
      'https://a.test/v1/chat/completions',
      INIT,
    );
    assert.deepEqual(await read(stream), [
      { seq: undefined, event: '', data: 'a' },
      { seq: undefined, event: 'x', data: 'b' },
    ]);
    await stream.cancel();
  });

  it('breaks as it breaks', async () => {
    const body = new ReadableStream({
      pull(controller) {
        controller.error(new TypeError('terminated'));
      },
    });
    const stream = await plain(body).open('https://a.test/v1/chat/completions', INIT);
    await assert.rejects(read(stream), { message: 'terminated' });
  });

  it('may answer anything to fetch, and an event stream to open', async () => {
    const baton = plain('{}', 'application/json');
    const response = await baton.fetch('https://a.test/v1/chat/completions', INIT);
    assert.equal(await response.text(), '{}');
    await assert.rejects(baton.open('https://a.test/v1/chat/completions', INIT), RequestRefusedError);
  });

  it('that is one, but gives no ids, is read without coming back', async () => {
    const server = await serve([{ unnumbered: true, cutAt: offset(3), how: 'clean' }]);
    const storage = memoryStorage();
    const events = await read(await begin(server, { key: 'k', storage }));
    assert.ok(events.length >= 3);
    assert.equal(server.asked('GET', /streams/).length, 0);
    assert.equal(await storage.getItem('baton:k'), null);
  });

  it('that is one, but has no room to keep the answer, is read without coming back', async () => {
    const saved: string[] = [];
    const memory = memoryStorage();
    const storage = { ...memory, setItem: (key: string) => void saved.push(key) };
    const begun: string[] = [];
    const options: BatonOptions = {
      key: 'k',
      storage,
      ack: { every: 1 },
      onStream: ({ id }) => void begun.push(id),
      onDropped: () => assert.fail('it came back'),
    };
    const unkept = { unkept: true, cutAt: 900 };
    const server = await serve([{ ...unkept, how: 'clean' }, unkept, { ...unkept, how: 'clean' }, unkept]);

    // The cut is passed on as it was: an end is an end, and a fault is the connection's own.
    const events = await read(await begin(server, options));
    assert.ok(events.length >= 3 && events.every(({ seq }) => seq === undefined));
    const lost = (error: unknown) => error instanceof TypeError && /terminated/.test(error.message);
    await assert.rejects(read(await begin(server, options)), lost);
    const { fetch } = client(options);
    const ask = async () => (await fetch(`${server.origin}/v1/chat/completions`, INIT)).text();
    assert.match(await ask(), /^retry: 1\n/);
    await assert.rejects(ask(), lost);

    assert.deepEqual([saved, begun, server.acks], [[], ['', ''], []]);
    assert.equal(server.seen.length, 4);
  });

  it('that is one is believed without a Location by who knows where its streams are', async () => {
    const at = `/v1/streams/st_1x${EVENTS.length}`;
    const fetch: typeof globalThis.fetch = async (input, init) => {
      const { status, body, headers } = await globalThis.fetch(input, init);
      const kept = new Headers(headers);
      kept.delete('location');
      return new Response(body, { status, headers: kept });
    };
    const server = await serve([{ cutAt: offset(3), how: 'clean' }]);
    const streamUrl = () => server.origin + at;
    assertWhole(await read(await begin(server, { fetch, streamUrl })));
    assert.equal(server.asked('GET', /streams/)[0]?.path, at);
  });

  it('that is one, but sends events of another stream, is not believed', async () => {
    const server = await serve();
    const foreign = `id: other.0\ndata: secret\n\n`;
    let first = true;
    const fetch: typeof globalThis.fetch = async (input, init) => {
      const response = await globalThis.fetch(input, init);
      if (!first || !String(input).endsWith('completions')) return response;
      first = false;
      await response.body?.cancel();
      return new Response(foreign, { headers: response.headers });
    };
    assertWhole(await read(await begin(server, { fetch })));
  });
});

describe('a stream', () => {
  it('is read once', async () => {
    const stream = await begin(await serve());
    assertWhole(await read(stream));
    await assert.rejects(read(stream), TypeError);
    assert.throws(() => stream.toReadableStream(), TypeError);
  });
});
