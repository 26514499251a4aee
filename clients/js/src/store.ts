/**
 * Where a client keeps its place in a stream, so that a reload goes on.
 *
 * Kept are the stream's id, its address and the last seq: no text, and no credentials.
 */

/** What of the Web Storage API is used. An implementation may answer later; it is waited for. */
export interface BatonStorage {
  getItem(key: string): string | null | Promise<string | null>;
  setItem(key: string, value: string): void | Promise<void>;
  removeItem(key: string): void | Promise<void>;
}

/** A place in a stream. */
export interface Place {
  /** The stream's id. */
  readonly id: string;
  /** The address of the stream, absolute where there was a base to resolve it with. */
  readonly url: string;
  /** The last seq that was handed on; -1 when none was. */
  readonly seq: number;
}

/** A storage that lives as long as the program. */
export function memoryStorage(): BatonStorage {
  const items = new Map<string, string>();
  return {
    getItem: (key) => items.get(key) ?? null,
    setItem: (key, value) => void items.set(key, value),
    removeItem: (key) => void items.delete(key),
  };
}

/** `sessionStorage` where there is one that may be used, else memory. */
export function defaultStorage(): BatonStorage {
  try {
    // Reading the property throws where the page may not store anything.
    return globalThis.sessionStorage ?? memoryStorage();
  } catch {
    return memoryStorage();
  }
}

/** One key of a storage. A storage that fails costs the reload, never the stream. */
export class Bookmark {
  readonly #storage: BatonStorage;
  readonly #key: string;

  constructor(storage: BatonStorage, key: string) {
    this.#storage = storage;
    this.#key = `baton:${key}`;
  }

  async load(): Promise<Place | undefined> {
    try {
      return parsePlace((await this.#storage.getItem(this.#key)) ?? '');
    } catch {
      return undefined;
    }
  }

  /** A promise only where the storage gave one: the usual case costs an event no turn of the loop. */
  save(place: Place): void | Promise<void> {
    return this.#try(() => this.#storage.setItem(this.#key, JSON.stringify(place)));
  }

  /** Forgets the place, unless another stream has taken the key meanwhile. */
  async clear(id: string): Promise<void> {
    const place = await this.load();
    if (place === undefined || place.id === id) await this.#try(() => this.#storage.removeItem(this.#key));
  }

  #try(action: () => void | Promise<void>): void | Promise<void> {
    try {
      return action()?.catch(() => {});
    } catch {
      // Full, or not allowed.
    }
  }
}

function parsePlace(text: string): Place | undefined {
  if (text === '') return undefined;
  const value: unknown = JSON.parse(text);
  if (typeof value !== 'object' || value === null) return undefined;
  const { id, url, seq } = value as Record<string, unknown>;
  const valid =
    typeof id === 'string' && typeof url === 'string' && typeof seq === 'number' && Number.isSafeInteger(seq);
  return valid ? { id, url, seq } : undefined;
}
