/** Official clients read streams that are silent for long: heartbeats come between the events, and change nothing. */

import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI } from '@langchain/openai';
import { streamText } from 'ai';
import OpenAI from 'openai';
import OpenAI7 from 'openai-7';
import { Rig, withoutBaton } from './rig.js';
import { until } from './support.js';

/** The engine is silent before its first event, in its thinking, in its answer and behind the finish reason. */
const SILENCES = ['0', '9', '50', 'usage'].map((place) => `stall@${place}`);
/** Heartbeats in each silence. */
const BEATS = 3;

const QUESTION = 'Tell me of the race.';
const MESSAGES = [{ role: 'user' as const, content: QUESTION }];

/** What a client makes of an answer. */
interface Read {
  readonly text: string;
  readonly thinking: string;
  readonly finish: string | null | undefined;
  readonly usage: unknown;
}

interface Way {
  readonly baseURL: string;
  readonly headers: Record<string, string>;
  readonly fetch: typeof globalThis.fetch;
}

type Chunk = OpenAI.Chat.ChatCompletionChunk;

async function readOpenAI(chunks: AsyncIterable<Chunk | OpenAI7.Chat.ChatCompletionChunk>): Promise<Read> {
  let [text, thinking] = ['', ''];
  let finish: string | null | undefined;
  let usage: unknown;
  for await (const chunk of chunks) {
    const choice = chunk.choices[0];
    const delta: { content?: string | null; reasoning?: string } = choice?.delta ?? {};
    text += delta.content ?? '';
    thinking += delta.reasoning ?? '';
    finish = choice?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  return { text, thinking, finish, usage };
}

const STREAMING = {
  model: 'm',
  messages: MESSAGES,
  stream: true,
  stream_options: { include_usage: true },
} as const;

const CLIENTS: Record<string, (way: Way) => Promise<Read>> = {
  'openai 6': async ({ baseURL, headers, fetch }) => {
    const client = new OpenAI({ baseURL, apiKey: 'key', maxRetries: 0, defaultHeaders: headers, fetch });
    return readOpenAI(await client.chat.completions.create(STREAMING));
  },
  'openai 7': async ({ baseURL, headers, fetch }) => {
    const client = new OpenAI7({ baseURL, apiKey: 'key', maxRetries: 0, defaultHeaders: headers, fetch });
    return readOpenAI(await client.chat.completions.create(STREAMING));
  },
  'the AI SDK': async ({ baseURL, headers, fetch }) => {
    const provider = createOpenAICompatible({ name: 'baton', baseURL, headers, fetch, includeUsage: true });
    const { stream } = streamText({ model: provider('m'), messages: MESSAGES, maxRetries: 0 });
    let [text, thinking] = ['', ''];
    let finish: string | undefined;
    let usage: unknown;
    for await (const part of stream) {
      if (part.type === 'text-delta') text += part.text;
      if (part.type === 'reasoning-delta') thinking += part.text;
      if (part.type === 'error') throw part.error;
      if (part.type === 'finish') {
        finish = part.finishReason;
        usage = part.totalUsage;
      }
    }
    return { text, thinking, finish, usage };
  },
  LangChain: async ({ baseURL, headers, fetch }) => {
    const model = new ChatOpenAI({
      model: 'm',
      apiKey: 'key',
      maxRetries: 0,
      streamUsage: true,
      configuration: { baseURL, defaultHeaders: headers, fetch },
    });
    let text = '';
    let finish: string | undefined;
    let usage: unknown;
    for await (const chunk of await model.stream(QUESTION)) {
      text += chunk.text;
      finish = (chunk.response_metadata.finish_reason as string | undefined) ?? finish;
      usage = chunk.usage_metadata ?? usage;
    }
    // It does not hand on what is not OpenAI's own.
    return { text, thinking: '', finish, usage };
  },
};

describe('heartbeats', { skip: withoutBaton }, () => {
  let rig: Rig;

  before(async () => {
    rig = await Rig.start({ routes: '{match: {model: "*"}, upstream: mock, heartbeat: 100ms}' });
  });
  after(() => rig?.close());
  afterEach(() => rig.forget());

  /** A `fetch` that notes what is on the wire, and ends a silence of the engine when enough heartbeats have come in it. */
  function tap(): { readonly fetch: typeof globalThis.fetch; readonly wire: () => Promise<string> } {
    let read: Promise<string> | undefined;
    const follow = async (body: ReadableStream<Uint8Array>) => {
      const decoder = new TextDecoder();
      let wire = '';
      let ended = 0;
      for await (const bytes of body) {
        wire += decoder.decode(bytes, { stream: true });
        const due = Math.floor(beats(wire) / BEATS);
        if (due > ended) await rig.release();
        ended = due;
      }
      return wire;
    };
    return {
      fetch: async (input, init) => {
        const response = await fetch(input, init);
        assert.ok(response.body !== null && read === undefined, 'one request for one answer');
        const [one, two] = response.body.tee();
        read = follow(two);
        const { status, headers } = response;
        return new Response(one, { status, headers });
      },
      wire: async () => {
        assert.ok(read !== undefined);
        return read;
      },
    };
  }

  const beats = (wire: string) => wire.split('\n').filter((line) => line === ': ping').length;

  for (const [name, read] of Object.entries(CLIENTS)) {
    for (const numbered of [false, true]) {
      it(`change nothing for ${name}, ${numbered ? 'numbered' : 'plain'}`, async () => {
        const uncut = await read({ baseURL: `${rig.reference}/v1`, headers: {}, fetch: globalThis.fetch });
        assert.equal(uncut.finish, 'stop');
        assert.ok(uncut.text !== '' && uncut.usage !== undefined);
        assert.equal(uncut.thinking !== '', name !== 'LangChain');

        const before = await rig.metric('baton_heartbeats_total');
        const { fetch, wire } = tap();
        const headers = {
          'mock-fault': SILENCES.join(', '),
          ...(numbered ? { 'baton-resume': 'on' } : {}),
        };
        assert.deepEqual(await read({ baseURL: `${rig.origin}/v1`, headers, fetch }), uncut);

        const [seen] = await rig.asked();
        assert.deepEqual(seen?.faults, SILENCES);
        const said = await wire();
        const count = beats(said);
        assert.ok(count >= SILENCES.length * BEATS, `${count} heartbeats`);
        await until(async () => (await rig.metric('baton_heartbeats_total')) - before === count);
        // An empty event behind an id is what several clients fail on: with numbers, a heartbeat is a lone line.
        assert.equal(said.split(': ping\n\n').length - 1, numbered ? 0 : count);
        assert.equal(/^id: \S+\.0$/m.test(said), numbered);
        assert.equal(/^retry: \d+$/m.test(said), numbered);
      });
    }
  }
});
