/**
 * In Chromium, with the real Baton and mock engines, each of them on an origin of its own: whatever breaks, and however much of it at
 * once, the text on the screen is that of an uncut answer, nothing twice.
 */

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Server } from 'node:http';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Browser, Page } from 'playwright-core';
import { type MockEngine, Rig, type Setup, withoutBaton } from '../rig.js';
import { until } from '../support.js';
import { type Cut, Wire } from '../wire.js';
import { launch } from './chromium.js';

const CLIENT = fileURLToPath(new URL('../../..', import.meta.url));
const CHAT = join(CLIENT, '../../examples/chat');
const ANSWERS = ['--content', '160'];

interface Pages {
  readonly server: Server;
  readonly origin: string;
}

/** The chat page, and what a client of Baton's is made from. */
async function servePages(): Promise<Pages> {
  const { servePage } = await import(join(CHAT, 'serve.mjs'));
  const modules = join(CLIENT, 'node_modules');
  return servePage(0, { '/openai-6/': join(modules, 'openai'), '/openai-7/': join(modules, 'openai-7') });
}

/** A page that shows an answer of Baton's, behind a wire that can be cut. */
class Chat {
  readonly rig: Rig;
  readonly wire: Wire;
  readonly page: Page;
  /** What it asks, as it asks it. */
  readonly request: object;

  private constructor(rig: Rig, wire: Wire, page: Page, question: string) {
    this.rig = rig;
    this.wire = wire;
    this.page = page;
    this.request = { model: 'm', messages: [{ role: 'user', content: question }], stream: true };
  }

  static async open(browser: Browser, origin: string, setup: Setup = {}, host = origin): Promise<Chat> {
    const rig = await Rig.start({ answers: ANSWERS, server: `cors: {origins: ["${origin}"]}`, ...setup });
    const wire = new Wire(rig.origin);
    const api = await wire.listen();
    const page = await (await browser.newContext()).newPage();
    await page.goto(`${host}/?api=${api}&model=m`);
    return new Chat(rig, wire, page, await page.inputValue('#question'));
  }

  /** One whose engines wait before this event of an answer's first leg. */
  static async stalling(browser: Browser, origin: string, at: number): Promise<Chat> {
    const fault = ['--fault', `leg1 stall@${at}`];
    return Chat.open(browser, origin, { engines: [fault, fault] });
  }

  async close(): Promise<void> {
    await this.page.context().close();
    this.wire.close();
    await this.rig.close();
  }

  ask(): Promise<void> {
    return this.page.click('#ask');
  }

  text(): Promise<string> {
    return this.page.textContent('#answer').then((text) => text ?? '');
  }

  /** Waits until the page has got to the state; then its text has to be the uncut one. */
  async isWhole(): Promise<void> {
    await this.page.waitForSelector('#answer[data-state=done]', { timeout: 60_000 });
    assert.equal(await this.text(), await this.rig.uncut(this.request));
  }

  async hints(text: string): Promise<void> {
    await this.page.waitForFunction(
      (wanted) => document.getElementById('hint')?.textContent?.includes(wanted),
      text,
    );
  }

  /**
   * Asks, and waits until the engine stalls before its event `at` and the page shows what came before.
   *
   * @returns the engine that answers.
   */
  async askUntil(at: number): Promise<MockEngine> {
    await this.ask();
    let serving: MockEngine | undefined;
    await until(async () => {
      for (const engine of this.rig.engines) {
        if ((await engine.asked()).some(({ events }) => events === at)) serving = engine;
      }
      return serving !== undefined;
    });
    return serving as MockEngine;
  }
}

describe('a page, and Baton on another origin', { skip: withoutBaton, timeout: 300_000 }, () => {
  let browser: Browser;
  let pages: Pages;

  before(async () => {
    [browser, pages] = await Promise.all([launch(), servePages()]);
  });
  after(async () => {
    await browser?.close();
    pages?.server.close();
  });

  /** Runs with a chat of its own. */
  async function chatting(open: () => Promise<Chat>, run: (chat: Chat) => Promise<void>): Promise<void> {
    const chat = await open();
    try {
      await run(chat);
    } finally {
      await chat.close();
    }
  }

  /** Where connections break, by how many events the answer has. */
  const CUTS: Record<string, (events: number) => Cut[]> = {
    'before the header, twice': () => [{ bytes: 0 }, { events: 0 }],
    'inside the header': () => [{ bytes: 100 }],
    'behind the first events': () => [{ events: 1 }, { events: 1 }],
    'inside events': () => [{ bytes: 1500 }, { bytes: 3777 }],
    'early, in the middle and near the end': () => [{ events: 30 }, { bytes: 20_000 }, { events: 60 }],
    'before its last event': (events) => [{ events: events - 1 }],
    'behind its last event': (events) => [{ events }],
  };

  describe('an answer is whole', { concurrency: 5 }, () => {
    for (const [where, cuts] of Object.entries(CUTS)) {
      it(`when the connection breaks ${where}`, () =>
        chatting(
          () => Chat.open(browser, pages.origin),
          async (chat) => {
            const events = (await chat.rig.events(chat.request)).length;
            chat.wire.cuts = cuts(events);
            const expected = chat.wire.cuts.length;
            await chat.ask();
            await chat.isWhole();
            const asked = await chat.rig.asked();
            assert.deepEqual(
              asked.map(({ leg, end }) => [leg, end]),
              [['first', 'complete']],
            );
            assert.equal(chat.wire.drops, expected);
          },
        ));
    }

    for (const at of [0, 1, 27, 60, 130]) {
      it(`when the page is reloaded before event ${at}`, () =>
        chatting(
          () => Chat.stalling(browser, pages.origin, at),
          async (chat) => {
            await chat.askUntil(at);
            for (let reloads = 0; reloads < 2; reloads += 1) {
              const shown = await chat.text();
              await chat.page.reload();
              assert.ok((await chat.text()).startsWith(shown), 'what was shown is shown');
            }
            await chat.rig.release();
            await chat.isWhole();
            assert.deepEqual(
              (await chat.rig.asked()).map(({ leg, end }) => [leg, end]),
              [['first', 'complete']],
            );
          },
        ));
    }

    for (const [at, what] of [
      [5, 'kill drop reload'],
      [20, 'kill'],
      [33, 'kill drop'],
      [60, 'kill reload'],
      [77, 'kill drop reload'],
      [140, 'drop kill reload drop'],
    ] as const) {
      it(`when before event ${at} this happens at the same time: ${what}`, () =>
        chatting(
          () => Chat.stalling(browser, pages.origin, at),
          async (chat) => {
            const serving = await chat.askUntil(at);
            const happenings: Record<string, () => unknown> = {
              kill: () => serving.kill(),
              drop: () => chat.wire.drop(),
              reload: () => chat.page.reload(),
            };
            // The connection that the answer comes back on breaks as well.
            if (what.includes('drop')) chat.wire.cuts = [{ events: 3 }];
            await Promise.all(what.split(' ').map((happening) => happenings[happening]?.()));
            await chat.isWhole();
            const [left] = chat.rig.engines.filter((engine) => engine !== serving);
            const asked = (await left?.asked()) ?? [];
            assert.deepEqual(
              asked.map(({ leg, refused, end }) => [leg, refused, end]),
              [['continuation', null, 'complete']],
            );
            assert.equal(chat.wire.drops, what.includes('drop') ? 1 : 0);
          },
        ));
    }
  });

  it('stops the engine when it is told to', () =>
    chatting(
      () => Chat.stalling(browser, pages.origin, 60),
      async (chat) => {
        await chat.askUntil(60);
        await chat.page.click('#cancel');
        await chat.hints('Stopped');
        await until(async () => (await chat.rig.asked()).every(({ end }) => end !== null));
        assert.deepEqual(
          (await chat.rig.asked()).map(({ leg, end }) => [leg, end]),
          [['first', 'left']],
        );
        await until(
          async () => (await chat.rig.metric('baton_streams_total', { outcome: 'cancelled' })) === 1,
        );
      },
    ));

  it('may not ask when Baton does not know its origin', () =>
    chatting(
      () => Chat.open(browser, pages.origin, {}, pages.origin.replace('127.0.0.1', 'localhost')),
      async (chat) => {
        await chat.ask();
        await chat.hints('It did not work');
        assert.deepEqual(await chat.rig.asked(), []);
        assert.ok(chat.wire.connections > 0, 'the browser has asked whether it may');
      },
    ));

  /** What the library in the page told, in order. */
  async function told(
    chat: Chat,
    how: { readonly model: string; readonly lose?: number; readonly again?: boolean },
  ): Promise<{ readonly hooks: string[]; readonly text: string }> {
    const api = new URL(chat.page.url()).searchParams.get('api');
    return chat.page.evaluate(
      async ({ request, api, model, lose, again }) => {
        const { createBaton } = await import(/* of the page */ `${location.origin}/baton/index.js`);
        const hooks: string[] = [];
        /** Takes one event out of the first response, as a faulty hop would. */
        const losing = (response: Response) => {
          let rest = '';
          const sieve = new TransformStream<string, string>({
            transform(piece, controller) {
              const events = (rest + piece).split('\n\n');
              rest = events.pop() ?? '';
              const kept = events.filter((event) => !new RegExp(`^id: .*\\.${lose}$`, 'm').test(event));
              for (const event of kept) controller.enqueue(`${event}\n\n`);
            },
          });
          const body = response.body?.pipeThrough(new TextDecoderStream()).pipeThrough(sieve);
          return new Response(body?.pipeThrough(new TextEncoderStream()), response);
        };
        let lost = lose === undefined;
        const baton = createBaton({
          key: 'library',
          ack: false,
          fetch: async (input: RequestInfo, init?: RequestInit) => {
            const response = await fetch(input, init);
            if (lost) return response;
            lost = true;
            return losing(response);
          },
          ...Object.fromEntries(
            ['onStream', 'onDropped', 'onResumed', 'onGap', 'onExpired', 'onRecovering', 'onContinued'].map(
              (name) => [name, () => hooks.push(name)],
            ),
          ),
        });
        const stream = await baton.open(`${api}/v1/chat/completions`, {
          method: 'POST',
          body: JSON.stringify({ ...request, model }),
        });
        let text = '';
        let place: string | null = null;
        for await (const { data } of stream) {
          place ??= sessionStorage.getItem('baton:library');
          if (data !== '[DONE]') text += JSON.parse(data).choices[0]?.delta.content ?? '';
        }
        if (again) {
          // As after a reload before the end.
          sessionStorage.setItem('baton:library', place ?? '');
          await baton.resume('library').catch((error: Error) => hooks.push(error.name));
        }
        return { hooks, text };
      },
      { request: chat.request, api, ...how },
    );
  }

  it('is told what happens: a dying engine, a drop, a gap, an answer that is gone', () => {
    const fault = ['--fault', 'leg1 rst@70'];
    const routes = `{match: {model: brief}, upstream: mock, resume: {ttl: 0s}}, {match: {model: "*"}, upstream: mock}`;
    return chatting(
      () => Chat.open(browser, pages.origin, { engines: [fault, fault], routes }),
      async (chat) => {
        const text = await chat.rig.uncut(chat.request);
        assert.deepEqual(await told(chat, { model: 'm' }), {
          hooks: ['onStream', 'onRecovering', 'onContinued'],
          text,
        });
        chat.wire.cuts = [{ events: 9 }];
        const dropped = await told(chat, { model: 'm' });
        // Where the engine died meanwhile, its successor is told of only to those who read.
        const own = dropped.hooks.filter((hook) => !['onRecovering', 'onContinued'].includes(hook));
        assert.deepEqual([own, dropped.text], [['onStream', 'onDropped', 'onResumed'], text]);
        const gap = await told(chat, { model: 'm', lose: 12 });
        const missed = gap.hooks.filter((hook) => !['onRecovering', 'onContinued'].includes(hook));
        assert.deepEqual([missed, gap.text], [['onStream', 'onGap', 'onDropped', 'onResumed'], text]);
        const brief = await told(chat, { model: 'brief', again: true });
        assert.deepEqual(brief.hooks.slice(-2), ['onExpired', 'StreamExpiredError']);
        assert.equal(brief.text, text);
      },
    );
  });

  for (const release of ['openai-6', 'openai-7']) {
    it(`may use the official client there (${release}), alone and with the library's fetch`, () =>
      chatting(
        () => Chat.open(browser, pages.origin),
        async (chat) => {
          const api = new URL(chat.page.url()).searchParams.get('api');
          const texts = await chat.page.evaluate(
            async ({ api, release, request }) => {
              const { default: OpenAI } = await import(`${location.origin}/${release}/index.mjs`);
              const { createBaton } = await import(`${location.origin}/baton/index.js`);
              const texts: string[] = [];
              for (const fetch of [undefined, createBaton().fetch]) {
                const options = { baseURL: `${api}/v1`, apiKey: 'key', maxRetries: 0, fetch };
                const client = new OpenAI({ ...options, organization: 'o', dangerouslyAllowBrowser: true });
                let text = '';
                for await (const chunk of await client.chat.completions.create(request)) {
                  text += chunk.choices[0]?.delta.content ?? '';
                }
                texts.push(text);
              }
              return texts;
            },
            { api, release, request: chat.request },
          );
          const text = await chat.rig.uncut(chat.request);
          assert.deepEqual(texts, [text, text]);
          // What the preflight has to allow is really sent.
          const asked = await chat.rig.asked();
          assert.ok(asked.every(({ headers }) => headers.some(([name]) => name.startsWith('x-stainless-'))));
        },
      ));
  }
});

describe('make demo-web', { skip: withoutBaton, timeout: 120_000 }, () => {
  let browser: Browser | undefined;
  let demo: ChildProcess | undefined;

  after(async () => {
    await browser?.close();
    if (demo === undefined || demo.exitCode !== null) return;
    demo.kill('SIGTERM');
    await once(demo, 'exit');
  });

  it('shows an answer that goes on after the network was dropped and the page reloaded', async () => {
    const args = [join(CHAT, 'demo.mjs'), '--pace', '10ms', '--content', '300'];
    demo = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    const lines: string[] = [];
    let url = '';
    for await (const line of createInterface(demo.stdout as NodeJS.ReadableStream)) {
      lines.push(line);
      url = /^Open (\S+)/.exec(line)?.[1] ?? '';
      if (url !== '') break;
    }
    assert.ok(url !== '', lines.join('\n'));
    browser = await launch();
    const page = await browser.newPage();
    await page.goto(url);
    await page.click('#ask');
    await page.waitForFunction(() => (document.getElementById('answer')?.textContent ?? '').length > 20);
    await page.click('#network');
    await page.waitForFunction(() => /Coming back/.test(document.getElementById('hint')?.textContent ?? ''));
    await page.click('#network');
    await page.reload();
    await page.waitForSelector('#answer[data-state=done]');
    const engine = lines
      .map((line) => /^engine a +(\S+)/.exec(line)?.[1])
      .find((found) => found !== undefined);
    const content = await page.inputValue('#question');
    const { data } = await (await fetch(`${engine}/v1/models`)).json();
    const body = JSON.stringify({ model: data[0].id, messages: [{ role: 'user', content }] });
    const uncut = await (await fetch(`${engine}/v1/chat/completions`, { method: 'POST', body })).json();
    assert.equal(await page.textContent('#answer'), uncut.choices[0].message.content);
  });
});
