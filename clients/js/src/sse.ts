/**
 * Bytes to server-sent events, incrementally, after the WHATWG "event stream interpretation" rules.
 *
 * Pure: no IO, no clock. Bytes may be cut anywhere, in the middle of a character or between CR and LF. What is kept
 * between two calls is at most one unfinished event, and its length is limited.
 */

import { EventTooLongError } from './errors.js';

/** One thing that the wire said. */
export type SseItem =
  /** A dispatched event. `id` is the one that stood in this very event, not one inherited from an earlier event. */
  | { readonly kind: 'event'; readonly id: string | undefined; readonly event: string; readonly data: string }
  /** A comment line, without its colon and the space after it. It needs no blank line to be reported. */
  | { readonly kind: 'comment'; readonly text: string }
  /** A `retry:` field of digits only. */
  | { readonly kind: 'retry'; readonly ms: number };

const LF = 10;
const CR = 13;

export class SseParser {
  readonly #limit: number;
  readonly #decoder = new TextDecoder();
  /** The line that has no end yet, in the pieces in which it came, so that a long line is not copied per chunk. */
  #pieces: string[] = [];
  #piecesLength = 0;
  /** The last character was a CR: an LF that follows belongs to it. */
  #afterCr = false;

  #data: string[] = [];
  #dataLength = 0;
  #event = '';
  #id: string | undefined;

  /** @param limit The longest event, in UTF-16 units, fields and unfinished line together. */
  constructor(limit: number) {
    this.#limit = limit;
  }

  /**
   * Takes the next bytes and returns what they completed. An event that is still open when the bytes end for good is
   * no event; there is nothing to flush.
   *
   * @throws EventTooLongError when an event passes the limit; the parser is of no use afterwards.
   */
  push(bytes: Uint8Array): SseItem[] {
    const text = this.#decoder.decode(bytes, { stream: true });
    const items: SseItem[] = [];
    let start = 0;
    if (this.#afterCr && text.length > 0) {
      this.#afterCr = false;
      if (text.charCodeAt(0) === LF) start = 1;
    }
    for (let at = start; at < text.length; at += 1) {
      const unit = text.charCodeAt(at);
      if (unit !== LF && unit !== CR) continue;
      this.#line(this.#complete(text.slice(start, at)), items);
      if (unit === CR) {
        if (at + 1 === text.length) this.#afterCr = true;
        else if (text.charCodeAt(at + 1) === LF) at += 1;
      }
      start = at + 1;
    }
    this.#keep(text.slice(start));
    return items;
  }

  #keep(piece: string): void {
    if (piece === '') return;
    this.#pieces.push(piece);
    this.#piecesLength += piece.length;
    this.#check(this.#piecesLength + this.#dataLength);
  }

  #complete(last: string): string {
    if (this.#pieces.length === 0) return last;
    this.#pieces.push(last);
    const line = this.#pieces.join('');
    this.#pieces = [];
    this.#piecesLength = 0;
    return line;
  }

  #check(length: number): void {
    if (length > this.#limit) throw new EventTooLongError(this.#limit);
  }

  #line(line: string, items: SseItem[]): void {
    if (line === '') {
      this.#dispatch(items);
      return;
    }
    const colon = line.indexOf(':');
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? '' : line.slice(colon + 1);
    if (value.startsWith(' ')) value = value.slice(1);
    switch (name) {
      case '':
        items.push({ kind: 'comment', text: value });
        break;
      case 'data':
        this.#data.push(value);
        this.#dataLength += value.length + 1;
        this.#check(this.#dataLength);
        break;
      case 'event':
        this.#event = value;
        break;
      case 'id':
        if (!value.includes('\0')) this.#id = value;
        break;
      case 'retry':
        if (/^[0-9]+$/.test(value)) items.push({ kind: 'retry', ms: Number(value) });
        break;
    }
  }

  #dispatch(items: SseItem[]): void {
    if (this.#data.length > 0) {
      items.push({ kind: 'event', id: this.#id, event: this.#event, data: this.#data.join('\n') });
    }
    this.#data = [];
    this.#dataLength = 0;
    this.#event = '';
    this.#id = undefined;
  }
}

/**
 * An event as every SSE reader understands it: `data:` lines and a blank line, LF only. No `id:`, no `retry:`, no
 * comment (several published readers stumble over them), and no `event: message`, which says nothing and makes some
 * readers skip the event. An event without data becomes nothing at all, since most readers parse its data as JSON.
 */
export function encodeEvent(event: string, data: string): string {
  if (data === '') return '';
  const name = event === '' || event === 'message' ? '' : `event: ${event}\n`;
  return `${name}data: ${data.replaceAll('\n', '\ndata: ')}\n\n`;
}
