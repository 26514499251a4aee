import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { LostKeys } from '../src/keys.js';
import { ending, Position, parsePosition } from '../src/position.js';
import { judgeAnswer, Recovery, type RetryPolicy, retryAfterMs } from '../src/recovery.js';
import { claim, returnHeaders, streamAddress } from '../src/request.js';
import { Bookmark, memoryStorage } from '../src/store.js';
import { browserWake } from '../src/wake.js';

describe('a position', () => {
  it('is read from an id, and from nothing else', () => {
    assert.deepEqual(parsePosition('st_1.0'), { stream: 'st_1', seq: 0 });
    assert.deepEqual(parsePosition('a.b.17'), { stream: 'a.b', seq: 17 });
    for (const id of [
      '',
      '.1',
      'st',
      'st.',
      'st.-1',
      'st.1e3',
      'st. 1',
      'st.9007199254740992',
      `st.${'9'.repeat(40)}`,
    ]) {
      assert.equal(parsePosition(id), undefined, id);
    }
  });

  it('tells what an event is', () => {
    const position = new Position('s', 4);
    const verdicts = ['s.3', 's.4', 's.5', 's.6', 't.5', '5', undefined].map(
      (id) => position.judge(id).verdict,
    );
    assert.deepEqual(verdicts, ['seen', 'seen', 'next', 'gap', 'foreign', 'foreign', 'unnumbered']);
    assert.equal(position.seq, 4);
  });

  it('asks for everything before the first event, and for seq 0 as for any other', () => {
    assert.equal(new Position('s', -1).lastEventId(), undefined);
    assert.equal(new Position('s', 0).lastEventId(), 's.0');
  });

  it('knows an end', () => {
    assert.equal(ending('[DONE]'), 'done');
    assert.equal(ending('{"error":{"code":"stream_incomplete"}}'), 'error');
    for (const data of [
      '{"error":null,"choices":[]}',
      '{"text":"\\"error\\""}',
      '{"a":{"error":1}}',
      '{"error"',
      '"error"',
    ]) {
      assert.equal(ending(data), undefined, data);
    }
  });
});

const policy: RetryPolicy = { attempts: 5, openAttempts: 3, outageMs: 60_000, baseMs: 1000, maxMs: 8000 };

describe('the recovery', () => {
  it('doubles its waits up to the limit, and then gives up', () => {
    const recovery = new Recovery(policy, 5);
    const waits = [0, 0, 0, 0, 0].map(() => recovery.broken(0, 0));
    assert.deepEqual(
      waits,
      [1000, 2000, 4000, 8000, 8000].map((ms) => ({ kind: 'wait', ms })),
    );
    assert.deepEqual(recovery.broken(0, 0), { kind: 'give_up' });
  });

  it('begins anew with a new event', () => {
    const recovery = new Recovery(policy, 1);
    for (let round = 0; round < 100; round += 1) {
      assert.deepEqual(recovery.broken(round * 1e6, 0), { kind: 'wait', ms: 1000 });
      recovery.progress();
    }
  });

  it('gives up when the outage has lasted too long, or would', () => {
    const recovery = new Recovery(policy, 100);
    assert.equal(recovery.broken(0, 0).kind, 'wait');
    assert.equal(recovery.broken(59_000, 0).kind, 'give_up');
    assert.equal(new Recovery(policy, 100).broken(0, 0, 61_000).kind, 'give_up');
  });

  it('never comes sooner than it was asked to, nor much later', () => {
    const numbers = [
      fc.nat(9),
      fc.nat(20_000),
      fc.nat(30_000),
      fc.double({ min: 0, max: 1, noNaN: true }),
    ] as const;
    fc.assert(
      fc.property(...numbers, (attempts, retry, retryAfter, random) => {
        const recovery = new Recovery({ ...policy, outageMs: 1e9 }, 10);
        recovery.retry(retry);
        for (let attempt = 0; attempt < attempts; attempt += 1) recovery.broken(0, random);
        const plan = recovery.broken(0, random, retryAfter);
        assert.equal(plan.kind, 'wait');
        const ms = plan.kind === 'wait' ? plan.ms : 0;
        assert.ok(ms >= retryAfter && ms >= Math.min(retry, policy.maxMs));
        assert.ok(ms <= Math.max(retryAfter, policy.maxMs * 1.5));
      }),
    );
  });

  it('reads Retry-After as seconds or as a date', () => {
    assert.equal(retryAfterMs(null, 0), 0);
    assert.equal(retryAfterMs('7', 0), 7000);
    assert.equal(retryAfterMs('Thu, 01 Jan 1970 00:00:09 GMT', 4000), 5000);
    assert.equal(retryAfterMs('Thu, 01 Jan 1970 00:00:01 GMT', 4000), 0);
    assert.equal(retryAfterMs('soon', 0), 0);
  });

  it('knows what an answer means', () => {
    const statuses = [200, 204, 404, 410, 408, 425, 429, 500, 503, 301, 400, 401, 403];
    assert.deepEqual(
      statuses.map((status) => judgeAnswer(status, true)),
      [
        'reading',
        'over',
        'unknown',
        'expired',
        'later',
        'later',
        'later',
        'later',
        'later',
        ...Array(4).fill('refused'),
      ],
    );
    assert.equal(judgeAnswer(200, false), 'later');
  });
});

const BODY = '{"model":"m","stream":true}';
const CHAT = 'https://baton.test/v1/chat/completions';
const isChat = (url: URL) => url.pathname.endsWith('/chat/completions');

describe('a request is claimed', () => {
  const claimed: [string, RequestInfo | URL, RequestInit?][] = [
    ['from a string', CHAT, { method: 'POST', body: BODY }],
    ['from a URL, with the method in small letters', new URL(CHAT), { method: 'post', body: BODY }],
    ['with its body in bytes', CHAT, { method: 'POST', body: new TextEncoder().encode(BODY) }],
    ['with its body in a blob', CHAT, { method: 'POST', body: new Blob([BODY]) }],
    ['from a Request', new Request(CHAT, { method: 'POST', body: BODY })],
    [
      'from a Request whose body is replaced',
      new Request(CHAT, { method: 'POST', body: '{}' }),
      { body: BODY },
    ],
  ];
  for (const [name, input, init] of claimed) {
    it(name, async () => {
      const result = await claim(input, init, isChat);
      assert.equal(result?.url.href, CHAT);
      assert.equal(result?.body, BODY);
    });
  }

  it('with what else the caller set', async () => {
    const { signal } = new AbortController();
    const headers = {
      authorization: 'Bearer k',
      'content-type': 'application/json',
      'idempotency-key': 'i',
      'x-a': 'b',
    };
    const result = await claim(
      CHAT,
      { method: 'POST', body: BODY, headers, signal, credentials: 'include' },
      isChat,
    );
    assert.equal(result?.signal, signal);
    assert.deepEqual(result?.init, { credentials: 'include' });
    assert.deepEqual(
      [...returnHeaders(result?.headers ?? new Headers())],
      [
        ['authorization', 'Bearer k'],
        ['x-a', 'b'],
      ],
    );
  });

  it('from a Request, whose body can still be read afterwards', async () => {
    const request = new Request(CHAT, { method: 'POST', body: '{"stream":false}' });
    assert.equal(await claim(request, undefined, isChat), undefined);
    assert.equal(await request.text(), '{"stream":false}');
  });
});

describe('a request is left alone', () => {
  const left: [string, string, RequestInit?][] = [
    ['that is a GET', CHAT],
    ['to another address', 'https://baton.test/v1/responses', { method: 'POST', body: BODY }],
    ['that does not stream', CHAT, { method: 'POST', body: '{"stream":false}' }],
    ['where the word stands elsewhere', CHAT, { method: 'POST', body: '{"messages":[{"stream":true}]}' }],
    ['that is no JSON', CHAT, { method: 'POST', body: '{"stream":true' }],
    ['that is an array', CHAT, { method: 'POST', body: '["stream"]' }],
    ['without a body', CHAT, { method: 'POST' }],
    ['with a body that can be sent once', CHAT, { method: 'POST', body: new Blob([BODY]).stream() }],
    [
      'whose caller wants no resuming',
      CHAT,
      { method: 'POST', body: BODY, headers: { 'Baton-Resume': 'off' } },
    ],
    [
      'with an address that only a page could resolve',
      '/v1/chat/completions',
      { method: 'POST', body: BODY },
    ],
  ];
  for (const [name, input, init] of left) {
    it(name, async () => assert.equal(await claim(input, init, isChat), undefined));
  }
});

describe('the address of a stream', () => {
  const cases: [string, string, string | null, string][] = [
    ['is the Location', CHAT, '/v1/streams/s', 'https://baton.test/v1/streams/s'],
    [
      'keeps a prefix',
      'https://a.test/llm/v1/chat/completions',
      '/v1/streams/s',
      'https://a.test/llm/v1/streams/s',
    ],
    ['stays on the origin', CHAT, 'https://evil.test/v1/streams/s', 'https://baton.test/v1/streams/s'],
    ['is made up without a Location', 'https://a.test/x/completions', null, 'https://a.test/x/streams/s'],
    ['leaves the query behind', `${CHAT}?a=b`, null, 'https://baton.test/v1/streams/s'],
  ];
  for (const [name, request, location, address] of cases) {
    it(name, () => assert.equal(streamAddress('s', new URL(request), location), address));
  }
});

describe('a bookmark', () => {
  const place = { id: 's', url: 'https://baton.test/v1/streams/s', seq: 3 };

  it('keeps a place, until it is cleared by its own stream', async () => {
    const bookmark = new Bookmark(memoryStorage(), 'chat');
    assert.equal(await bookmark.load(), undefined);
    bookmark.save(place);
    assert.deepEqual(await bookmark.load(), place);
    await bookmark.clear('another');
    assert.deepEqual(await bookmark.load(), place);
    await bookmark.clear('s');
    assert.equal(await bookmark.load(), undefined);
  });

  it('takes what it cannot read for nothing', async () => {
    for (const text of [
      '',
      'x',
      '1',
      'null',
      '{}',
      '{"id":"s","url":"u","seq":"1"}',
      '{"id":"s","url":"u","seq":1.5}',
    ]) {
      const storage = memoryStorage();
      storage.setItem('baton:chat', text);
      assert.equal(await new Bookmark(storage, 'chat').load(), undefined, text);
    }
  });

  it('does not fail when its storage does', async () => {
    const full = () => {
      throw new Error('full');
    };
    const late = () => Promise.reject(new Error('late'));
    for (const fault of [full, late]) {
      const bookmark = new Bookmark({ getItem: fault, setItem: fault, removeItem: fault }, 'chat');
      await bookmark.save(place);
      assert.equal(await bookmark.load(), undefined);
      await bookmark.clear('s');
    }
  });
});

describe('a browser', () => {
  it('wakes when it is online again, and when its page becomes visible', () => {
    const document = Object.assign(new EventTarget(), { visibilityState: 'hidden' });
    const browser = Object.assign(new EventTarget(), { document });
    let woken = 0;
    const end = browserWake(browser)(() => void woken++);
    const happens = (target: EventTarget, type: string) => {
      target.dispatchEvent(new Event(type));
      return woken;
    };
    assert.equal(happens(browser, 'online'), 1);
    assert.equal(happens(document, 'visibilitychange'), 1);
    document.visibilityState = 'visible';
    assert.equal(happens(document, 'visibilitychange'), 2);
    end();
    assert.equal(happens(browser, 'online'), 2);
    assert.equal(happens(document, 'visibilitychange'), 2);
  });

  it('that is none, as in Node, wakes nobody', () => {
    browserWake()(() => assert.fail())();
  });
});

describe('the key of a lost request', () => {
  const repeat = new Headers({ 'X-Stainless-Retry-Count': '1' });

  it('is used once, by a repeat of the same request', () => {
    const keys = new LostKeys();
    keys.add('a', 'key-a');
    assert.equal(keys.take('a', new Headers({ 'X-Stainless-Retry-Count': '0' })), undefined);
    assert.equal(keys.take('a', new Headers()), undefined);
    assert.equal(keys.take('b', repeat), undefined);
    assert.equal(keys.take('a', repeat), 'key-a');
    assert.equal(keys.take('a', repeat), undefined);
  });

  it('is forgotten when many others were lost since, or when its request is long', () => {
    const keys = new LostKeys();
    for (let count = 0; count < 40; count += 1) keys.add(`r${count}`, `k${count}`);
    assert.equal(keys.take('r0', repeat), undefined);
    assert.equal(keys.take('r39', repeat), 'k39');
    const long = 'x'.repeat(2 << 20);
    keys.add(long, 'k');
    assert.equal(keys.take(long, repeat), undefined);
  });
});
