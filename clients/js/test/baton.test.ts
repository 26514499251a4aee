/** With the real Baton and mock engines: whatever breaks on the way, the text is that of an uncut answer. */

import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import OpenAI from 'openai';
import { type BatonOptions, type BatonStream, createBaton, memoryStorage } from '../src/index.js';
import { Rig, type Seen, withoutBaton } from './rig.js';
import { chance, patientClock, seeds, until } from './support.js';
import { Wire } from './wire.js';

const REQUEST = {
  model: 'm',
  messages: [{ role: 'user' as const, content: 'Tell me of the race.' }],
  stream: true as const,
};
const ROUTES = `{match: {model: brief}, upstream: mock, resume: {ttl: 0s}},
  {match: {model: narrow}, upstream: mock, resume: {window: 1KiB}},
  {match: {model: "*"}, upstream: mock}`;

/** What a fault of the engines is named by in a request. */
const faulty = (fault: string | undefined): Record<string, string> =>
  fault === undefined ? {} : { 'mock-fault': fault };

describe('Baton', { skip: withoutBaton, timeout: 180_000 }, () => {
  let rig: Rig;
  let wire: Wire;
  let origin = '';
  let uncut = '';

  before(async () => {
    rig = await Rig.start({ routes: ROUTES });
    wire = new Wire(rig.origin);
    origin = await wire.listen();
    uncut = await rig.uncut(REQUEST);
  });
  after(async () => {
    wire?.close();
    await rig?.close();
  });
  afterEach(async () => {
    wire.cuts = [];
    // None that was kept open takes the next test's first request.
    wire.drop();
    await rig.forget();
  });

  const baton = (options: BatonOptions = {}) =>
    createBaton({
      clock: patientClock,
      retry: { baseMs: 1, maxMs: 2, attempts: 50 },
      ack: false,
      ...options,
    });

  const open = (options: BatonOptions = {}, init: RequestInit = {}, model = 'm') =>
    baton(options).open(`${origin}/v1/chat/completions`, {
      method: 'POST',
      body: JSON.stringify({ ...REQUEST, model }),
      ...init,
    });

  const contentOf = (data: string): string =>
    data === '[DONE]' ? '' : (JSON.parse(data).choices[0]?.delta.content ?? '');

  /** Ways to read an answer, each of which gives its text. */
  const READERS: Record<string, (fault?: string, options?: BatonOptions) => Promise<string>> = {
    'the official client': async (fault, options = {}) => {
      const client = new OpenAI({
        baseURL: `${origin}/v1`,
        apiKey: 'key',
        maxRetries: 0,
        fetch: baton(options).fetch,
      });
      let text = '';
      for await (const chunk of await client.chat.completions.create(REQUEST, { headers: faulty(fault) })) {
        text += chunk.choices[0]?.delta.content ?? '';
      }
      return text;
    },
    events: async (fault, options) => {
      let text = '';
      const seqs: (number | undefined)[] = [];
      for await (const { seq, data } of await open(options, { headers: faulty(fault) })) {
        seqs.push(seq);
        text += contentOf(data);
      }
      assert.deepEqual(
        seqs,
        seqs.map((_, at) => at),
      );
      return text;
    },
    'a plain reader of the body': async (fault, options) => {
      const response = await baton(options).fetch(`${origin}/v1/chat/completions`, {
        method: 'POST',
        headers: faulty(fault),
        body: JSON.stringify(REQUEST),
      });
      // As people write it by hand: an event is what stands between two blank lines, and begins with its data.
      const events = (await response.text()).split('\n\n');
      assert.equal(events.pop(), '');
      assert.equal(events.at(-1), 'data: [DONE]');
      return events
        .map((event) => {
          assert.ok(event.startsWith('data: '), event);
          return contentOf(event.slice('data: '.length));
        })
        .join('');
    },
  };
  const ask = READERS['the official client'] as (typeof READERS)[string];

  /** Both requests of an answer whose engine died where it was to: the second goes on, and is exactly right. */
  function assertDied(asked: readonly Seen[], fault: string): void {
    assert.deepEqual(asked.map(({ leg }) => leg).sort(), ['continuation', 'first']);
    for (const { leg, faults, refused, end } of asked) {
      assert.equal(refused, null);
      assert.deepEqual([leg, faults, end], leg === 'first' ? [leg, [fault], 'cut'] : [leg, [], 'complete']);
    }
  }

  it('is read whole by seeds of dropped connections and dying engines, and generates each answer once', async (t) => {
    const readers = Object.keys(READERS);
    const all = seeds(120, t);
    const continued = () => rig.metric('baton_continuations_total', { outcome: 'continued' });
    const failed = () => rig.metric('baton_legs_failed_total', { reason: 'reset' });
    const [continuedBefore, failedBefore] = [await continued(), await failed()];
    let deaths = 0;
    for (const seed of all) {
      const dice = chance(seed);
      const cuts = Array.from({ length: 1 + dice.below(4) }, () => ({ bytes: 1 + dice.below(7000) }));
      const reader = readers[seed % readers.length] as string;
      // Every reader sees engines that die and engines that do not.
      const dies = Math.floor(seed / readers.length) % 2 === 0;
      // Behind the first word at the earliest: before it there is nothing to go on from, and the request is sent again.
      const fault = `leg1 rst@${2 + dice.below(59)}`;
      const drops = wire.drops;
      wire.drop();
      wire.cuts = [...cuts];
      try {
        assert.equal(await READERS[reader]?.(dies ? fault : undefined), uncut);
        assert.ok(wire.drops > drops, 'nothing was dropped');
        const asked = await rig.asked();
        if (dies) assertDied(asked, fault);
        else
          assert.deepEqual(
            asked.map(({ leg, end }) => [leg, end]),
            [['first', 'complete']],
          );
      } catch (error) {
        const engine = dies ? fault : 'a sound engine';
        throw new Error(`seed ${seed}: ${reader}, ${engine}, cuts ${JSON.stringify(cuts)}`, { cause: error });
      }
      deaths += dies ? 1 : 0;
      await rig.forget();
    }
    assert.deepEqual(
      [(await continued()) - continuedBefore, (await failed()) - failedBefore],
      [deaths, deaths],
    );
  });

  it('says that another engine takes over, and the text is the same', async () => {
    const hints: string[] = [];
    const options = {
      onRecovering: () => void hints.push('recovering'),
      onContinued: () => void hints.push('continued'),
    };
    assert.equal(await ask('leg1 rst@30', options), uncut);
    assert.deepEqual(hints, ['recovering', 'continued']);
    assertDied(await rig.asked(), 'leg1 rst@30');
  });

  /** Reads the first events of an answer whose engine then waits. */
  async function begin(options: BatonOptions, init: RequestInit = {}) {
    const stream = await open(options, { headers: faulty('stall@20'), ...init });
    const events = stream[Symbol.asyncIterator]();
    const seqs: (number | undefined)[] = [];
    let text = '';
    while (seqs.length < 5) {
      const { value } = await events.next();
      assert.ok(value);
      seqs.push(value.seq);
      text += contentOf(value.data);
    }
    return { stream, events, seqs, text };
  }

  const statusOf = async (stream: BatonStream) =>
    (await (await fetch(`${origin}/v1/streams/${stream.id}/status`)).json()) as {
      state: string;
      end: string | null;
    };

  it('stops the engine when it is told to', async () => {
    const { stream } = await begin({});
    assert.deepEqual(await rig.asked().then((asked) => asked.map(({ end }) => end)), [null]);
    await stream.cancel();
    await until(async () => (await statusOf(stream)).state === 'ended');
    assert.equal((await statusOf(stream)).end, 'cancelled');
    // The engine was let go in the middle, and nobody was asked for the rest.
    await until(async () => (await rig.asked()).every(({ end }) => end !== null));
    assert.deepEqual(
      (await rig.asked()).map(({ leg, end }) => [leg, end]),
      [['first', 'left']],
    );
    await until(async () => (await rig.metric('baton_streams_total', { outcome: 'cancelled' })) === 1);
  });

  it('only detaches when its signal is aborted: the engine goes on, and the rest can be had', async () => {
    const abort = new AbortController();
    const client = { key: 'chat', storage: memoryStorage() };
    const { stream, events, seqs, text } = await begin(client, {
      signal: abort.signal,
      headers: faulty('stall@20'),
    });
    const next = events.next();
    abort.abort();
    // What was on its way may still come; then it is over.
    await assert.rejects(
      async () => {
        for (let event = await next; !event.done; event = await events.next()) seqs.push(event.value.seq);
      },
      { name: 'AbortError' },
    );
    await until(async () => (await statusOf(stream)).state === 'unattended');
    assert.deepEqual(
      (await rig.asked()).map(({ end }) => end),
      [null],
    );
    await rig.release();
    const rest = await baton(client).resume('chat', { after: 4 });
    assert.ok(rest);
    let whole = text;
    for await (const { data } of rest) whole += contentOf(data);
    assert.equal(whole, uncut);
    assert.equal((await statusOf(stream)).end, 'finished');
    assert.deepEqual(
      (await rig.asked()).map(({ leg, end }) => [leg, end]),
      [['first', 'complete']],
    );
  });

  it('generates once when the connection is lost before the header, twice', async () => {
    wire.cuts = [{ bytes: 1 }, { bytes: 1 }];
    const drops = wire.drops;
    assert.equal(await ask(), uncut);
    assert.deepEqual([(await rig.asked()).length, wire.drops - drops], [1, 2]);
  });

  it('lets go of what was acknowledged where the route has a window, and of nothing else', async () => {
    const read = async (ack: BatonOptions['ack']) => {
      const acks: { readonly seq: number; readonly status: number }[] = [];
      const watched: typeof fetch = async (input, init) => {
        const response = await fetch(input, init);
        if (String(input).endsWith('/ack')) {
          acks.push({ ...JSON.parse(String(init?.body)), status: response.status });
        }
        return response;
      };
      const storage = memoryStorage();
      const expired: string[] = [];
      const onExpired: BatonOptions['onExpired'] = ({ code }) => void expired.push(code);
      const options: BatonOptions = { key: 'chat', storage, ack: ack ?? false, fetch: watched, onExpired };
      let place: string | null = null;
      let events = 0;
      for await (const _ of await open(options, { headers: { 'mock-content': '2000' } }, 'narrow')) {
        place ??= await storage.getItem('baton:chat');
        events += 1;
      }
      if (ack !== false) await until(async () => acks.at(-1)?.seq === events - 1);
      assert.ok(acks.every(({ status }) => status === 204));
      // As if the page had been left before the end.
      await storage.setItem('baton:chat', place ?? '');
      return { client: baton(options), acks: acks.length, events, expired };
    };

    const kept = await read(false);
    assert.equal(kept.acks, 0);
    const again = await kept.client.resume('chat', { after: -1 });
    assert.ok(again);
    let events = 0;
    for await (const { seq } of again) assert.equal(seq, events++);
    assert.equal(events, kept.events);

    const trimmed = await read({ every: 5 });
    await assert.rejects(trimmed.client.resume('chat', { after: -1 }), { code: 'trimmed' });
    assert.deepEqual(trimmed.expired, ['trimmed']);
  });

  it('says that an answer has expired', async () => {
    let expired = 0;
    const storage = memoryStorage();
    const options = { key: 'chat', storage, onExpired: () => void expired++ };
    let place: string | null = null;
    for await (const _ of await open(options, {}, 'brief')) place ??= await storage.getItem('baton:chat');
    await storage.setItem('baton:chat', place ?? '');
    await assert.rejects(baton(options).resume('chat'), { code: 'stream_expired' });
    assert.equal(expired, 1);
  });

  it('goes on after a reader has left', async () => {
    const client = { key: 'chat', storage: memoryStorage() };
    const seqs: (number | undefined)[] = [];
    for await (const { seq } of await open(client)) if (seqs.push(seq) === 5) break;
    const rest = await baton(client).resume('chat');
    assert.ok(rest);
    for await (const { seq } of rest) seqs.push(seq);
    assert.deepEqual(
      seqs,
      seqs.map((_, at) => at),
    );
    assert.equal((await rig.asked()).length, 1);
  });
});

describe('Baton without room', { skip: withoutBaton, timeout: 60_000 }, () => {
  /** With nine of ten places taken, a new stream is not kept; with all ten, requests are turned away. */
  const HELD = 9;
  let rig: Rig;
  let wire: Wire;
  let uncut = '';
  const abort = new AbortController();

  const request = (headers: Record<string, string> = {}): RequestInit => ({
    method: 'POST',
    headers: { ...headers },
    body: JSON.stringify(REQUEST),
  });
  const left = async () => (await rig.asked()).filter(({ end }) => end === 'left').length;
  const path = '/v1/chat/completions';

  before(async () => {
    rig = await Rig.start({ journal: 'max_streams: 10' });
    wire = new Wire(rig.origin);
    uncut = await rig.uncut(REQUEST);
    for (let held = 0; held < HELD; held += 1) {
      const headers = { 'baton-resume': 'on', 'mock-fault': 'stall@20' };
      const response = await fetch(rig.origin + path, { ...request(headers), signal: abort.signal });
      assert.ok(response.headers.has('location'));
    }
  });
  after(async () => {
    abort.abort();
    wire?.close();
    await rig?.close();
  });

  it('begins an answer that is not kept, and its cut is passed on', async () => {
    const origin = await wire.listen();
    wire.cuts = [{ events: 8 }];
    const saved: string[] = [];
    const storage = { ...memoryStorage(), setItem: (key: string) => void saved.push(key) };
    const asked: string[] = [];
    const watched: typeof fetch = async (input, init) => {
      asked.push(`${init?.method} ${new URL(String(input)).pathname}`);
      const response = await fetch(input, init);
      assert.ok(response.headers.has('baton-stream') && !response.headers.has('location'));
      return response;
    };
    const client = createBaton({ clock: patientClock, key: 'k', storage, ack: { every: 1 }, fetch: watched });
    const stream = await client.open(origin + path, request({ 'mock-fault': 'stall@20' }));
    let events = 0;
    await assert.rejects(
      async () => {
        for await (const { seq } of stream) {
          assert.equal(seq, undefined);
          events += 1;
        }
      },
      { name: 'TypeError', message: 'terminated' },
    );
    assert.ok(events > 0);
    assert.deepEqual([asked, saved], [[`POST ${path}`], []]);
    // Nobody can come back to it: its engine is let go.
    await until(async () => (await left()) === 1);
  });

  it('turns requests away, which is waited out', async () => {
    const last = new AbortController();
    const headers = { 'mock-fault': 'stall@20', 'baton-resume': 'on' };
    const before = await left();
    const tenth = await fetch(rig.origin + path, { ...request(headers), signal: last.signal });
    assert.equal(tenth.status, 200);

    const refused = createBaton({ retry: { openAttempts: 1 } }).open(rig.origin + path, request());
    await assert.rejects(refused, { name: 'RequestRefusedError', status: 503, retryAfterMs: 5000 });

    const waits: number[] = [];
    const clock: typeof patientClock = {
      ...patientClock,
      after(ms, run) {
        if (ms !== 5000) return patientClock.after(ms, run);
        // In these five seconds, somebody leaves.
        waits.push(ms);
        last.abort();
        void until(async () => (await left()) > before).then(run);
        return () => {};
      },
    };
    let text = '';
    // The engine may see it before the place is free, so that one wait need not be enough.
    const client = createBaton({ clock, retry: { openAttempts: 50 } });
    for await (const { data } of await client.open(rig.origin + path, request())) {
      if (data !== '[DONE]') text += JSON.parse(data).choices[0]?.delta.content ?? '';
    }
    assert.equal(text, uncut);
    assert.ok(waits.length > 0);
  });
});
