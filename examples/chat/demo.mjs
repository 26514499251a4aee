/**
 * Two scripted engines, Baton before them, and this page: `make demo-web`.
 *
 * BATON_BIN is the folder of the binaries, PORT the page's port (default: a free one). Arguments are options of the engines, in place
 * of `--pace 60ms --content 300`. An engine that is killed is started again, as whatever runs engines would do.
 */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { servePage } from './serve.mjs';

const BIN = process.env.BATON_BIN ?? 'target/release';
const given = process.argv.slice(2);
const ENGINE = ['--family', 'qwen3', ...(given.length > 0 ? given : ['--pace', '60ms', '--content', '300'])];

const children = new Set();
const folder = mkdtempSync(join(tmpdir(), 'baton-demo-'));
let ending = false;

function end(status, why) {
  if (ending) return;
  ending = true;
  if (why !== undefined) console.error(why);
  for (const child of children) child.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
  process.exit(status);
}
process.on('SIGINT', () => end(0));
process.on('SIGTERM', () => end(0));

/** Starts a program, and waits until it says where it listens. */
function start(name, args) {
  const child = spawn(join(BIN, name), args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const said = [];
  children.add(child);
  child.on('close', () => children.delete(child));
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', () => reject(new Error(`${name} did not start:\n${said.join('\n')}`)));
    for (const stream of [child.stdout, child.stderr]) {
      createInterface(stream).on('line', (line) => {
        said.splice(0, said.length - 20);
        said.push(line);
        const address = /listening on (\S+)/.exec(line)?.[1];
        if (address !== undefined) resolve({ child, address });
      });
    }
  });
}

/** Starts an engine, and again whenever it ends. */
async function engine(name, listen) {
  const { child, address } = await start('mock-engine', ['--name', name, '--listen', listen, ...ENGINE]);
  console.log(`engine ${name}   http://${address}   kill -9 ${child.pid}`);
  child.once('exit', () => {
    if (ending) return;
    console.log(`engine ${name} is gone, and starts again`);
    engine(name, address).catch((error) => end(1, error.message));
  });
  return `http://${address}`;
}

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

try {
  const { origin } = await servePage(Number(process.env.PORT ?? 0));
  const endpoints = [await engine('a', '127.0.0.1:0'), await engine('b', '127.0.0.1:0')];
  const config = join(folder, 'baton.yaml');
  writeFileSync(
    config,
    `server:
  listen: [{addr: "127.0.0.1:${await freePort()}"}]
  admin: "127.0.0.1:${await freePort()}"
  cors: {origins: ["${origin}"]}
upstreams: [{name: engines, engine: vllm, family: qwen3, endpoints: ${JSON.stringify(endpoints)}}]
routes: [{match: {model: "*"}, upstream: engines}]
`,
  );
  const { child, address } = await start('baton', ['run', '-c', config]);
  child.once('exit', () => end(1, 'Baton has ended'));
  console.log(`Baton      http://${address}`);
  console.log(
    `\nOpen ${origin}/?api=http://${address} and ask. Then drop the network, reload the page, kill an engine.`,
  );
  console.log('Ctrl-C ends it.');
} catch (error) {
  end(1, error.message);
}
