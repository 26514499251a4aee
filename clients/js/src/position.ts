/** Where in a stream the client is, and what an event's id means for it. Pure. */

/**
 * What to do with an event:
 * `next` hand it on; `seen` drop it; `gap` events are missing before it; `foreign` it is another stream's;
 * `unnumbered` it has no position, so the stream cannot be resumed.
 */
export type Verdict = 'next' | 'seen' | 'gap' | 'foreign' | 'unnumbered';

/** Splits `<stream id>.<seq>`; undefined when it is not of that form. */
export function parsePosition(id: string): { stream: string; seq: number } | undefined {
  const dot = id.lastIndexOf('.');
  const digits = id.slice(dot + 1);
  if (dot <= 0 || !/^[0-9]{1,16}$/.test(digits)) return undefined;
  const seq = Number(digits);
  return Number.isSafeInteger(seq) ? { stream: id.slice(0, dot), seq } : undefined;
}

export class Position {
  readonly stream: string;
  /** The last seq that counts as handed on; -1 before the first. */
  seq: number;

  constructor(stream: string, seq: number) {
    this.stream = stream;
    this.seq = seq;
  }

  /** Judges an event by its id, and returns its seq where it has one. Changes nothing. */
  judge(id: string | undefined): { verdict: Verdict; seq: number } {
    if (id === undefined) return { verdict: 'unnumbered', seq: -1 };
    const position = parsePosition(id);
    if (position === undefined || position.stream !== this.stream) return { verdict: 'foreign', seq: -1 };
    const { seq } = position;
    if (seq <= this.seq) return { verdict: 'seen', seq };
    return { verdict: seq === this.seq + 1 ? 'next' : 'gap', seq };
  }

  /** The `Last-Event-ID` to come back with; undefined asks for everything. */
  lastEventId(): string | undefined {
    return this.seq < 0 ? undefined : `${this.stream}.${this.seq}`;
  }
}

/** Does this event end its stream? `done`: as it should. `error`: it says that the answer is not whole. */
export function ending(data: string): 'done' | 'error' | undefined {
  if (data.trim() === '[DONE]') return 'done';
  // Inside a JSON string the quotes are escaped, so that ordinary chunks are not parsed here.
  if (!data.includes('"error"')) return undefined;
  try {
    const value: unknown = JSON.parse(data);
    const error =
      typeof value === 'object' && value !== null ? (value as { error?: unknown }).error : undefined;
    return error === undefined || error === null ? undefined : 'error';
  } catch {
    return undefined;
  }
}
