/**
 * The client of Baton, for browsers and Node: an answer that has begun is read to its end, over as many connections as
 * it takes.
 *
 * Reading order: `sse` (bytes to events), `position` (what an event's id means), `recovery` (when to come back),
 * `stream` (the loop that uses them), `fetch` (the way in).
 */

export type { AckPolicy } from './acks.js';
export type { Clock } from './clock.js';
export {
  BatonError,
  ConnectionLostError,
  EventTooLongError,
  RequestRefusedError,
  StreamExpiredError,
  StreamIncompleteError,
  StreamUnknownError,
  type Where,
} from './errors.js';
export { type Baton, createBaton, type ResumeOptions } from './fetch.js';
export type { At, BatonHooks, BatonOptions } from './options.js';
export type { RetryPolicy } from './recovery.js';
export { type BatonStorage, memoryStorage, type Place } from './store.js';
export { type BatonEvent, BatonStream } from './stream.js';
export type { Wake } from './wake.js';
