/** What the tests share: answers, seeded chance, a clock that is moved by hand. */

import { type Clock, systemClock } from '../src/clock.js';

/** Text whose bytes are worth cutting: several lengths of characters, quotes, line ends of every kind. */
export const WORDS = [
  'The ',
  'baton ',
  '接力棒',
  'не ',
  'падает ',
  '🏃🏽‍♀️',
  '"quoted" ',
  '\n\n',
  '\r\n',
  '\u2028',
  'data: id: 3\n',
  '\\',
  ' ',
  'é',
  '[DONE]',
  '{"error":1}',
];

/** The events of an OpenAI chat answer with these pieces of text. */
export function answer(pieces: readonly string[]): string[] {
  const chunk = (delta: object, finish: string | null) =>
    JSON.stringify({
      id: 'chatcmpl-1',
      object: 'chat.completion.chunk',
      created: 1,
      model: 'm',
      choices: [{ index: 0, delta, finish_reason: finish }],
    });
  return [
    chunk({ role: 'assistant', content: '' }, null),
    ...pieces.map((content) => chunk({ content }, null)),
    chunk({}, 'stop'),
    '[DONE]',
  ];
}

/** Chance that a seed decides (mulberry32). */
export function chance(seed: number): { float(): number; below(limit: number): number } {
  let state = seed >>> 0;
  const float = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  return { float, below: (limit) => Math.floor(float() * limit) };
}

/**
 * The real clock without its long waits: a test that means a timeout moves a `HandClock`, and a slow machine must not
 * make one strike in any other.
 */
export const patientClock: Clock = {
  ...systemClock,
  after: (ms, run) => (ms < 5000 ? systemClock.after(ms, run) : () => {}),
};

/** A clock that stands until it is moved. */
export class HandClock implements Clock {
  time = 0;
  #timers: { readonly at: number; readonly run: () => void }[] = [];

  now(): number {
    return this.time;
  }

  random(): number {
    return 0;
  }

  after(ms: number, run: () => void): () => void {
    const timer = { at: this.time + ms, run };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  }

  /** When the next timer is due. */
  get next(): number | undefined {
    return this.#timers.map((timer) => timer.at).sort((a, b) => a - b)[0];
  }

  /** How many timers are set. */
  get pending(): number {
    return this.#timers.length;
  }

  /** Moves on, and lets what became due run, in order. */
  move(ms: number): void {
    const end = this.time + ms;
    for (;;) {
      const due = this.#timers.filter((timer) => timer.at <= end).sort((a, b) => a.at - b.at)[0];
      if (due === undefined) break;
      this.#timers = this.#timers.filter((timer) => timer !== due);
      this.time = due.at;
      due.run();
    }
    this.time = end;
  }
}

/** Lets everything that is ready to run, run. */
export async function settle(): Promise<void> {
  await new Promise<void>((resolve) => setImmediate(resolve));
}

/** A promise and its key. */
export function gate(): { readonly promise: Promise<void>; readonly open: () => void } {
  let open: () => void = () => {};
  const promise = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { promise, open };
}

/** The seeds of a test by chance: as many as it wants, from 1 on, unless the environment says otherwise. They are printed. */
export function seeds(count: number, t: { diagnostic(text: string): void }): number[] {
  const first = Number(process.env.BATON_TEST_FIRST_SEED ?? 1);
  const wanted = Number(process.env.BATON_TEST_SEEDS ?? count);
  t.diagnostic(`seeds ${first} to ${first + wanted - 1} (BATON_TEST_FIRST_SEED, BATON_TEST_SEEDS)`);
  return Array.from({ length: wanted }, (_, at) => first + at);
}

/** Waits until something that another process does is so; far longer than it takes, and no longer. */
export async function until(holds: () => Promise<boolean>): Promise<void> {
  const end = Date.now() + 30_000;
  // Between two looks the other process, which tells nobody, gets its turn.
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`this did not come true: ${holds}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
