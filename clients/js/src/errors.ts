/** What can go wrong, one class per cause. Every message says what happened and what to do about it. */

/** What an error knows about the stream that it is about. */
export interface Where {
  /** The stream's id, when one is known. */
  readonly id?: string | undefined;
  /** The last seq that was handed on; -1 when none was. */
  readonly seq?: number | undefined;
}

/** The base of all errors of this library. An abort by the caller is not one: it stays an `AbortError`. */
export class BatonError extends Error {
  /** The cause in one word, stable across versions. */
  readonly code: string;
  readonly streamId: string | undefined;
  readonly seq: number;

  constructor(code: string, message: string, where: Where = {}, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = code;
    this.streamId = where.id;
    this.seq = where.seq ?? -1;
  }
}

/** No connection brought a new event within the allowed attempts or time. The stream may still be going on. */
export class ConnectionLostError extends BatonError {
  readonly attempts: number;

  constructor(attempts: number, outageMs: number, where: Where, cause: unknown) {
    const what = where.id === undefined ? 'no response' : 'the connection was lost, and no new event came';
    const advice =
      where.id === undefined
        ? 'Check the address and the network; the same request with the same Idempotency-Key attaches to the same answer'
        : 'The answer is kept for a while: call resume(key), or allow more with the option retry';
    super(
      'connection_lost',
      `${what} after ${attempts} attempt(s) in ${Math.round(outageMs)} ms. ${advice}.`,
      where,
      cause,
    );
    this.attempts = attempts;
  }
}

/** 410: the server no longer has the answer, or (`trimmed`) no longer the part that is missing here. */
export class StreamExpiredError extends BatonError {
  constructor(code: 'stream_expired' | 'trimmed', where: Where) {
    const what =
      code === 'trimmed'
        ? 'the server has dropped the events that are missing here, since they had been acknowledged'
        : 'the server no longer keeps this answer';
    super(code, `${what}. Show what there is, and ask again with a new request.`, where);
  }
}

/** 404: no such stream, or it belongs to another API key. */
export class StreamUnknownError extends BatonError {
  constructor(where: Where) {
    super(
      'stream_unknown',
      'the server knows no such stream for this API key. Send the same Authorization header as with the first request; ' +
        'if it was the same, the answer is gone: ask again with a new request.',
      where,
    );
  }
}

/** The server is certain that the stream is over, yet its end never came: what there is, is not whole. */
export class StreamIncompleteError extends BatonError {
  constructor(where: Where) {
    super(
      'stream_incomplete',
      'the stream is over without a finish: it was cancelled elsewhere, or the engine broke off. Show what there is as ' +
        'incomplete, or ask again.',
      where,
    );
  }
}

/** A status that trying again would not change, such as 401, or (429, 503) a server that stayed busy for all tries. */
export class RequestRefusedError extends BatonError {
  readonly status: number;
  /** How long the server asked to wait before another try, in ms; 0 when it did not. */
  readonly retryAfterMs: number;

  constructor(status: number, body: string, where: Where = {}, retryAfterMs = 0) {
    const said = body === '' ? '' : `: ${body}`;
    super('refused', `the server answered with status ${status}${said}`, where);
    this.status = status;
    this.retryAfterMs = retryAfterMs;
  }
}

/** One event is longer than the option `maxEventLength` allows. */
export class EventTooLongError extends BatonError {
  constructor(limit: number) {
    super(
      'event_too_long',
      `an event is longer than ${limit} characters. Raise maxEventLength if the server may send such events.`,
    );
  }
}
