/** A network that can be dropped: what the page sends goes through here. */

/** The requests that are under way, each with what ends it. */
const open = new Set();
let down = false;

/** A `fetch` that fails while the network is dropped, and whose responses break when it is. */
export async function fetchThroughNetwork(input, init = {}) {
  if (down) throw new TypeError('the network is dropped');
  const wire = new AbortController();
  init.signal?.addEventListener('abort', () => wire.abort(init.signal.reason), { once: true });
  open.add(wire);
  try {
    const response = await fetch(input, { ...init, signal: wire.signal });
    // Responses without a body that is worth breaking would stay in the set for ever.
    if (!response.headers.get('content-type')?.startsWith('text/event-stream')) open.delete(wire);
    return response;
  } catch (error) {
    open.delete(wire);
    throw error;
  }
}

/** Drops the network, or brings it back. */
export function setDown(value) {
  down = value;
  if (!down) return;
  for (const wire of open) wire.abort(new TypeError('the network was dropped'));
  open.clear();
}
