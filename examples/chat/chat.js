/**
 * A chat of one question and one answer, which survives a dropped network and a reload.
 *
 * `?api=` names another server than the one that this page came from (which has to allow it), and `?model=` a model other than the server's first.
 */

import { createBaton, StreamExpiredError, StreamUnknownError } from './baton/index.js';
import { fetchThroughNetwork, setDown } from './network.js';

const KEY = 'chat';
const query = new URLSearchParams(location.search);
const api = (query.get('api') ?? location.origin).replace(/\/+$/, '');

const ids = ['form', 'question', 'answer', 'hint', 'ask', 'cancel', 'network', 'key'];
const [form, question, answer, hint, ask, cancel, network, apiKey] = ids.map((id) =>
  document.getElementById(id),
);

/**
 * What is on the screen and up to which event, kept together: after a reload, the answer goes on behind exactly what is
 * shown. `state` is idle, asked (and no event came yet), going or done.
 */
let page = load() ?? { state: 'idle', question: question.value, text: '', seq: -1, idempotencyKey: '' };
let cancelled = false;

const baton = createBaton({
  key: KEY,
  fetch: fetchThroughNetwork,
  onDropped: ({ waitMs }) => say(`The connection is gone. Coming back in ${Math.ceil(waitMs / 1000)} s …`),
  onResumed: () => say('Connected again.'),
  onGap: () => say('Something was missing. Fetching it …'),
  onRecovering: () => say('One moment: another engine is taking over …'),
  onContinued: () => say('Another engine has taken over. On it goes.'),
});

form.addEventListener('submit', (event) => {
  event.preventDefault();
  cancelled = false;
  page = {
    state: 'asked',
    question: question.value,
    text: '',
    seq: -1,
    // Kept, so that a reload before the first event attaches to the same answer.
    idempotencyKey: Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16)).join(
      '-',
    ),
  };
  show();
  run(send);
});

cancel.addEventListener('click', async () => {
  cancelled = true;
  change({ state: 'done' });
  try {
    await baton.cancel();
    say('Stopped.');
  } catch (error) {
    say(`Stopped here, but the server could not be told: ${error.message}`);
  }
});

network.addEventListener('click', () => {
  const down = network.getAttribute('aria-pressed') !== 'true';
  network.setAttribute('aria-pressed', String(down));
  network.textContent = down ? 'Restore the network' : 'Drop the network';
  setDown(down);
});

apiKey.value = sessionStorage.getItem('chat:key') ?? '';
apiKey.addEventListener('change', () => sessionStorage.setItem('chat:key', apiKey.value));

question.value = page.question;
show();
if (page.state === 'asked' || page.state === 'going') run(takeUp);

/** Sends the question. */
async function send() {
  return baton.open(`${api}/v1/chat/completions`, {
    method: 'POST',
    headers: { ...headers(), 'Content-Type': 'application/json', 'Idempotency-Key': page.idempotencyKey },
    body: JSON.stringify({
      model: query.get('model') ?? (await firstModel()),
      messages: [{ role: 'user', content: page.question }],
      stream: true,
    }),
  });
}

/** Goes on after a reload: behind the last event that is shown, or by asking again under the same key. */
async function takeUp() {
  say('Going on …');
  const resumed = await baton.resume(KEY, { headers: headers(), after: page.seq });
  if (resumed !== undefined || page.state !== 'asked') return resumed;
  return send();
}

/** Shows the events of the stream that `begin` gives. */
async function run(begin) {
  try {
    const stream = await begin();
    if (cancelled) await stream?.cancel();
    for await (const { seq, data } of stream ?? []) {
      const delta = data === '[DONE]' ? {} : read(JSON.parse(data));
      change({ state: 'going', seq: seq ?? -1, text: page.text + (delta.content ?? '') });
      if (delta.content) say('');
    }
    change({ state: 'done' });
  } catch (error) {
    const gone = error instanceof StreamExpiredError || error instanceof StreamUnknownError;
    if (gone || page.state === 'asked') change({ state: 'done' });
    const next = page.state === 'done' ? 'Ask again.' : 'Reload to go on.';
    say(gone ? 'The rest of this answer is gone. Ask again.' : `It did not work: ${error.message} ${next}`);
  } finally {
    show();
  }
}

function read(chunk) {
  if (chunk.error) {
    change({ state: 'done' });
    throw new Error(chunk.error.message ?? 'the answer broke off.');
  }
  return chunk.choices?.[0]?.delta ?? {};
}

async function firstModel() {
  try {
    const response = await fetchThroughNetwork(`${api}/v1/models`, { headers: headers() });
    return (await response.json()).data[0].id;
  } catch {
    return 'default';
  }
}

function headers() {
  return apiKey.value === '' ? {} : { Authorization: `Bearer ${apiKey.value}` };
}

function change(what) {
  page = { ...page, ...what };
  show();
}

function show() {
  sessionStorage.setItem('chat:page', JSON.stringify(page));
  answer.textContent = page.text;
  answer.dataset.state = page.state;
  const busy = page.state === 'asked' || page.state === 'going';
  ask.disabled = busy;
  cancel.disabled = !busy;
}

function load() {
  try {
    return JSON.parse(sessionStorage.getItem('chat:page'));
  } catch {
    return undefined;
  }
}

function say(text) {
  hint.textContent = text;
}
