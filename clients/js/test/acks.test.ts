import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Acks } from '../src/acks.js';
import { gate, HandClock, settle } from './support.js';

const policy = { every: 20, intervalMs: 1000, keepAliveMs: 20_000 };

function setUp(send?: (seq: number) => Promise<void>) {
  const sent: number[] = [];
  const clock = new HandClock();
  const acks = new Acks(
    async (seq) => {
      sent.push(seq);
      await send?.(seq);
    },
    clock,
    policy,
    -1,
  );
  return { sent, clock, acks };
}

describe('acknowledgements', () => {
  it('go out after 20 events', async () => {
    const { sent, acks } = setUp();
    for (let seq = 0; seq < 60; seq += 1) {
      acks.handled(seq);
      await settle();
    }
    assert.deepEqual(sent, [19, 39, 59]);
  });

  it('go out after a second when fewer came', async () => {
    const { sent, clock, acks } = setUp();
    acks.handled(0);
    clock.move(500);
    acks.handled(3);
    clock.move(499);
    assert.deepEqual(sent, []);
    clock.move(1);
    assert.deepEqual(sent, [3]);
  });

  it('are never two at once; the next one says all that came meanwhile', async () => {
    const held = gate();
    const { sent, clock, acks } = setUp(() => held.promise);
    for (let seq = 0; seq < 90; seq += 1) acks.handled(seq);
    clock.move(5000);
    await settle();
    assert.deepEqual(sent, [19]);
    held.open();
    await settle();
    assert.deepEqual(sent, [19, 89]);
  });

  it('may fail', async () => {
    const { sent, acks } = setUp(() => Promise.reject(new Error('no')));
    for (let seq = 0; seq < 40; seq += 1) {
      acks.handled(seq);
      await settle();
    }
    assert.deepEqual(sent, [19, 39]);
  });

  it('are repeated in silence, so that the server does not take the client for gone', async () => {
    const { sent, clock, acks } = setUp();
    acks.handled(4);
    clock.move(1000);
    await settle();
    clock.move(20_000);
    await settle();
    assert.deepEqual(sent, [4, 4]);
    acks.handled(5);
    clock.move(1000);
    assert.deepEqual(sent, [4, 4, 5]);
  });

  it('are repeated at a heartbeat where the timer is late', async () => {
    const { sent, clock, acks } = setUp();
    acks.heard();
    acks.handled(4);
    clock.move(1000);
    await settle();
    // A hidden page: time passes, and no timer rings.
    clock.time += 19_999;
    acks.heard();
    assert.deepEqual(sent, [4]);
    clock.time += 1;
    acks.heard();
    acks.heard();
    await settle();
    assert.deepEqual(sent, [4, 4]);
    acks.stop();
    clock.time += 60_000;
    acks.heard();
    assert.deepEqual(sent, [4, 4]);
  });

  it('say nothing before the first event, and nothing twice about one', async () => {
    const { sent, clock, acks } = setUp();
    acks.handled(-1);
    clock.move(1e6);
    assert.deepEqual(sent, []);
    assert.equal(clock.pending, 0);
    acks.handled(0);
    acks.handled(0);
    clock.move(1000);
    assert.deepEqual(sent, [0]);
  });

  it('have a last word at the end, after the one that is under way', async () => {
    const held = gate();
    const { sent, clock, acks } = setUp(() => held.promise);
    for (let seq = 0; seq < 25; seq += 1) acks.handled(seq);
    acks.finish();
    assert.deepEqual(sent, [19]);
    held.open();
    await settle();
    assert.deepEqual(sent, [19, 24]);
    acks.handled(30);
    clock.move(1e6);
    await settle();
    assert.deepEqual(sent, [19, 24]);
    assert.equal(clock.pending, 0);
  });

  it('stop without a word when the client only detaches', async () => {
    const { sent, clock, acks } = setUp();
    acks.handled(3);
    acks.stop();
    clock.move(1e6);
    assert.deepEqual(sent, []);
    assert.equal(clock.pending, 0);
  });
});
