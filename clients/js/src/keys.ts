/**
 * Idempotency keys of requests whose response never came.
 *
 * A client library above this one may repeat a request after this one has given up or the library's own timeout has
 * struck. The answer may be generated already; a repeat under the same key attaches to it. The official openai client says
 * that a request is a repeat; nothing is guessed for others, as two equal requests may well be meant as two.
 */
export class LostKeys {
  readonly #limit = 16;
  /** A longer request is not remembered. */
  readonly #maxLength = 1024 * 1024;
  /** Address and body, and the keys they were sent under. Oldest first. */
  readonly #lost: { readonly request: string; readonly key: string }[] = [];

  /** The response to `request`, sent under `key`, did not come. */
  add(request: string, key: string): void {
    if (request.length > this.#maxLength) return;
    this.#lost.push({ request, key });
    if (this.#lost.length > this.#limit) this.#lost.shift();
  }

  /** The key to send `request` under, if it is a repeat of one that was lost. */
  take(request: string, headers: Headers): string | undefined {
    if (!(Number(headers.get('x-stainless-retry-count')) > 0)) return undefined;
    const at = this.#lost.findIndex((lost) => lost.request === request);
    return at < 0 ? undefined : this.#lost.splice(at, 1)[0]?.key;
  }
}
