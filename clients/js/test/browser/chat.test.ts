/** examples/chat in a real browser: whatever happens, the text on the screen is that of an uncut answer. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { extname, join } from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Browser, BrowserContext, Page } from 'playwright-core';
import { FakeBaton, type Fault } from '../fake.js';
import { answer, WORDS } from '../support.js';
import { launch } from './chromium.js';

const CLIENT = fileURLToPath(new URL('../../..', import.meta.url));
const FOLDERS: [string, string][] = [
  ['/chat/baton/', join(CLIENT, 'dist')],
  ['/chat/', join(CLIENT, '../../examples/chat')],
];
const TYPES: Record<string, string> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
};
const TEXT = WORDS.join('');
const EVENTS = answer(WORDS);

/** Serves the page and the built library. */
function pages(request: IncomingMessage, response: ServerResponse): void {
  const { pathname } = new URL(request.url ?? '/', 'http://localhost');
  const [prefix, folder] = FOLDERS.find(([start]) => pathname.startsWith(start)) ?? ['', ''];
  const name = pathname.slice(prefix.length) || 'index.html';
  if (folder === '' || !/^[a-z]+\.(html|js)$/.test(name)) {
    response.writeHead(404).end('{}');
    return;
  }
  response.writeHead(200, { 'content-type': TYPES[extname(name)], 'cache-control': 'no-store' });
  response.end(readFileSync(join(folder, name)));
}

/** A chat page, and what it asks. */
class Chat {
  readonly server: FakeBaton;
  readonly page: Page;

  constructor(server: FakeBaton, page: Page) {
    this.server = server;
    this.page = page;
  }

  /** Asks, and waits until the server has the question. */
  async ask(): Promise<void> {
    const asked = once(this.server.happened, 'post');
    await this.page.click('#ask');
    await asked;
  }

  /** Waits until this is what the page shows. */
  async shows(text: string, state?: string): Promise<void> {
    const expected = [text, state] as const;
    await this.page.waitForFunction(([wanted, inState]) => {
      const box = document.getElementById('answer');
      return box?.textContent === wanted && (inState === undefined || box.dataset.state === inState);
    }, expected);
  }

  /** Waits for this hint. */
  async hints(pattern: string): Promise<void> {
    await this.page.waitForFunction(
      (wanted) => new RegExp(wanted).test(document.getElementById('hint')?.textContent ?? ''),
      pattern,
    );
  }

  /** Makes events appear until this many are shown, [DONE] not counted. */
  async goOnTo(count: number, from: number): Promise<void> {
    this.server.advance(count - from);
    // The first event of an answer holds no text.
    await this.shows(WORDS.slice(0, Math.max(0, count - 1)).join(''));
  }
}

describe('the chat page', () => {
  let browser: Browser;
  let context: BrowserContext | undefined;
  let server: FakeBaton | undefined;

  before(async () => {
    browser = await launch();
  });
  after(() => browser?.close());
  afterEach(async () => {
    await context?.close();
    await server?.close();
  });

  async function open(script: readonly Fault[] = [], whole = true): Promise<Chat> {
    server = await new FakeBaton(EVENTS, script).listen();
    server.whole = whole;
    server.other = pages;
    context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(`${server.origin}/chat/?model=m`);
    return new Chat(server, page);
  }

  it('shows an answer', async () => {
    const chat = await open();
    await chat.ask();
    await chat.shows(TEXT, 'done');
  });

  for (const at of [0, 12, 100, 333, 900, 1500, 2222]) {
    for (const how of ['reset', 'clean'] as const) {
      it(`shows it whole when the connection ends (${how}) after ${at} bytes, and again after 200 more`, async () => {
        const chat = await open([
          { cutAt: at, how },
          { cutAt: 200, how },
        ]);
        await chat.ask();
        await chat.shows(TEXT, 'done');
        assert.equal(chat.server.generations, 1);
      });
    }
  }

  for (const seen of [1, 2, 9, EVENTS.length - 1]) {
    it(`goes on after a reload when ${seen} event(s) were shown`, async () => {
      const chat = await open([], false);
      await chat.ask();
      await chat.goOnTo(seen, 0);
      const cameBack = once(chat.server.happened, 'get');
      await chat.page.reload();
      await cameBack;
      await chat.shows(WORDS.slice(0, seen - 1).join(''));
      chat.server.advance(EVENTS.length);
      await chat.shows(TEXT, 'done');
      assert.equal(chat.server.generations, 1);
    });
  }

  it('attaches to the same answer when it is reloaded before the response header', async () => {
    const chat = await open([{ beforeHeader: true }, { beforeHeader: true }]);
    await chat.ask();
    await chat.page.reload();
    await chat.shows(TEXT, 'done');
    assert.equal(chat.server.generations, 1);
  });

  it('goes on when it is reloaded and the connections break at the same time, several times', async () => {
    const chat = await open([], false);
    await chat.ask();
    for (const seen of [3, 6, 10]) {
      await chat.goOnTo(seen, seen === 3 ? 0 : seen === 6 ? 3 : 6);
      chat.server.script = [{ cutAt: 40 }, { status: 503, headers: { 'retry-after': '0' } }];
      chat.server.drop();
      await chat.page.reload();
    }
    chat.server.advance(EVENTS.length);
    await chat.shows(TEXT, 'done');
    assert.equal(chat.server.generations, 1);
  });

  it('goes on when the network was dropped and comes back', async () => {
    const chat = await open([], false);
    await chat.ask();
    await chat.goOnTo(5, 0);
    await chat.page.click('#network');
    await chat.hints('Coming back');
    chat.server.advance(4);
    await chat.page.click('#network');
    await chat.shows(WORDS.slice(0, 8).join(''));
    chat.server.advance(EVENTS.length);
    await chat.shows(TEXT, 'done');
  });

  it('is friendly while another engine takes over', async () => {
    const comments = { before: 4, lines: ['baton recovering', 'ping', 'baton continued'] };
    const chat = await open([{ comments }]);
    await chat.page.evaluate(() => {
      const hint = document.getElementById('hint') as HTMLElement;
      const texts: (string | null)[] = [];
      Object.assign(globalThis, { hints: texts });
      // Every text that was set, also one that the next replaced before anybody could look.
      new MutationObserver((records) => {
        for (const record of records) for (const node of record.addedNodes) texts.push(node.textContent);
      }).observe(hint, { childList: true });
    });
    await chat.ask();
    await chat.shows(TEXT, 'done');
    const hints = await chat.page.evaluate(() => (globalThis as unknown as { hints: string[] }).hints);
    assert.deepEqual(hints, [
      'One moment: another engine is taking over …',
      'Another engine has taken over. On it goes.',
    ]);
  });

  it('stops the engine, and stays stopped after a reload', async () => {
    const chat = await open([], false);
    await chat.ask();
    await chat.goOnTo(4, 0);
    await chat.page.click('#cancel');
    await chat.hints('Stopped');
    assert.equal(chat.server.cancels, 1);
    await chat.page.reload();
    await chat.shows(WORDS.slice(0, 3).join(''), 'done');
    assert.equal(chat.server.asked('GET', /streams/).length, 0);
  });
});
