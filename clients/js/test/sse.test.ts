import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { EventTooLongError } from '../src/errors.js';
import { encodeEvent, type SseItem, SseParser } from '../src/sse.js';

const encoder = new TextEncoder();

function parse(...chunks: (string | Uint8Array)[]): SseItem[] {
  const parser = new SseParser(1 << 20);
  return chunks.flatMap((chunk) => parser.push(typeof chunk === 'string' ? encoder.encode(chunk) : chunk));
}

function event(data: string, id?: string, name = ''): SseItem {
  return { kind: 'event', id, event: name, data };
}

/** The rules once more, on whole text and with no thought of speed. */
function reference(bytes: Uint8Array): SseItem[] {
  const lines = new TextDecoder().decode(bytes).split(/\r\n|\r|\n/);
  lines.pop();
  const items: SseItem[] = [];
  let block: [string, string][] = [];
  for (const line of lines) {
    if (line === '') {
      const values = (wanted: string) => block.filter(([name]) => name === wanted).map(([, value]) => value);
      const id = values('id')
        .filter((value) => !value.includes('\0'))
        .at(-1);
      const data = values('data');
      if (data.length > 0) items.push(event(data.join('\n'), id, values('event').at(-1) ?? ''));
      block = [];
      continue;
    }
    const [, name = '', value = ''] = /^([^:]*)(?:: ?([\s\S]*))?$/.exec(line) ?? [];
    if (line.startsWith(':')) items.push({ kind: 'comment', text: value });
    else if (name === 'retry' && /^[0-9]+$/.test(value)) items.push({ kind: 'retry', ms: Number(value) });
    else block.push([name, value]);
  }
  return items;
}

/** Cuts bytes at the given places, each taken modulo the length. */
function cut(bytes: Uint8Array, places: readonly number[]): Uint8Array[] {
  const ends = [...places.map((place) => place % (bytes.length + 1)), bytes.length].sort((a, b) => a - b);
  let start = 0;
  return ends.map((end) => {
    const piece = bytes.subarray(start, end);
    start = end;
    return piece;
  });
}

const wire = fc
  .array(
    fc.oneof(
      fc.constantFrom(
        'data',
        'id',
        'event',
        'retry',
        ':',
        ': ',
        ' ',
        '\r',
        '\n',
        '\r\n',
        '\n\n',
        '\0',
        '\uFEFF',
      ),
      fc.constantFrom(
        'data: x\n\n',
        'data: é🏃\r\n\r\n',
        ': ping\n',
        'id: s.1\n',
        'retry: 20\n',
        'x',
        '7',
        '接',
      ),
      fc.string({ unit: 'binary', maxLength: 4 }),
    ),
    { maxLength: 40 },
  )
  .map((parts) => encoder.encode(parts.join('')));

describe('the parser', () => {
  const cases: [string, string, SseItem[]][] = [
    ['an event', 'data: a\n\n', [event('a')]],
    ['several data lines', 'data: a\ndata:b\ndata\n\n', [event('a\nb\n')]],
    ['only one space is taken away', 'data:  a\n\n', [event(' a')]],
    [
      'an id of this event and of no later one',
      'id: s.0\ndata: a\n\ndata: b\n\n',
      [event('a', 's.0'), event('b')],
    ],
    ['an id after the data', 'data: a\nid: s.0\n\n', [event('a', 's.0')]],
    ['an id with a NUL does not count', 'id: s\u00000\ndata: a\n\n', [event('a')]],
    ['an event without data is none', 'id: s.0\nevent: x\n\ndata: a\n\n', [event('a')]],
    ['empty data is data', 'data:\n\n', [event('')]],
    ['CR alone', 'data: a\r\rdata: b\r\r', [event('a'), event('b')]],
    ['CRLF', 'data: a\r\ndata: b\r\n\r\n', [event('a\nb')]],
    ['U+2028 does not end a line', 'data: a\u2028b\n\n', [event('a\u2028b')]],
    ['a comment needs no blank line', ': ping\n', [{ kind: 'comment', text: 'ping' }]],
    [
      'a comment inside an event leaves it whole',
      'data: a\n: ping\ndata: b\n\n',
      [{ kind: 'comment', text: 'ping' }, event('a\nb')],
    ],
    ['retry of digits', 'retry: 2000\ndata: a\n\n', [{ kind: 'retry', ms: 2000 }, event('a')]],
    ['retry of anything else', 'retry: 2s\nretry: -1\nretry:\ndata: a\n\n', [event('a')]],
    ['a byte order mark at the start', '\uFEFFdata: a\n\n', [event('a')]],
    ['what is unknown is ignored', 'what: x\nDATA: y\ndata: a\n\n', [event('a')]],
    ['an event that has no end', 'data: a\n\ndata: b\n', [event('a')]],
  ];
  for (const [name, text, items] of cases) {
    it(name, () => {
      assert.deepEqual(parse(text), items);
      assert.deepEqual(parse(...[...encoder.encode(text)].map((byte) => Uint8Array.of(byte))), items);
    });
  }

  it('reports an event as soon as a CR has ended it, and takes the LF that follows for its own', () => {
    const parser = new SseParser(100);
    assert.deepEqual(parser.push(encoder.encode('data: a\r\n\r')), [event('a')]);
    assert.deepEqual(parser.push(encoder.encode('')), []);
    assert.deepEqual(parser.push(encoder.encode('\ndata: b\n\n')), [event('b')]);
  });

  it('says the same however the bytes are cut', () => {
    fc.assert(
      fc.property(wire, fc.array(fc.nat(), { maxLength: 12 }), (bytes, places) => {
        assert.deepEqual(parse(...cut(bytes, places)), reference(bytes));
      }),
      { numRuns: 2000 },
    );
  });

  it('refuses an event over the limit, whether in one line, in many, or without an end', () => {
    for (const text of [
      `data: ${'x'.repeat(100)}\n\n`,
      'data: x\n'.repeat(60),
      'x'.repeat(101),
      `: ${'x'.repeat(200)}`,
    ]) {
      for (const size of [1, 7, 1000]) {
        const parser = new SseParser(100);
        const bytes = encoder.encode(text);
        assert.throws(() => {
          for (let at = 0; at < bytes.length; at += size) parser.push(bytes.subarray(at, at + size));
        }, EventTooLongError);
      }
    }
  });

  it('takes any number of events below the limit', () => {
    const parser = new SseParser(100);
    for (let round = 0; round < 1000; round += 1) {
      assert.equal(parser.push(encoder.encode(`: ping\ndata: ${'x'.repeat(90)}\n\n`)).length, 2);
    }
  });
});

describe('what is handed on', () => {
  it('reads as the same events, with nothing else on the wire', () => {
    fc.assert(
      fc.property(wire, (bytes) => {
        const events = reference(bytes).filter((item) => item.kind === 'event');
        const text = events.map((item) => encodeEvent(item.event, item.data)).join('');
        const expected = events
          .filter((item) => item.data !== '')
          .map((item) => event(item.data, undefined, item.event === 'message' ? '' : item.event));
        assert.deepEqual(parse(text), expected);
        assert.doesNotMatch(text, /^(:|id|retry)|\r/m);
      }),
    );
  });
});
