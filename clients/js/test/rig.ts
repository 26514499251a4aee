/** The real Baton before real mock engines, each a process of its own. */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const BIN = process.env.BATON_BIN;

/** Why tests with Baton do not run; false where they do. */
export const withoutBaton = BIN === undefined && 'BATON_BIN does not name the folder of the binaries';

/** How often a taken port may be answered with other ones. A machine where this is not enough has no free ports. */
const MAX_STARTS = 20;

/** A program that is running. */
class Program {
  readonly address: string;
  readonly #child: ChildProcess;

  private constructor(child: ChildProcess, address: string) {
    this.#child = child;
    this.address = address;
  }

  /** Starts a program of Baton's, and waits until it says where it listens. */
  static async start(name: string, args: readonly string[]): Promise<Program> {
    const child = spawn(join(BIN ?? '', name), args, { stdio: ['ignore', 'pipe', 'pipe'] });
    const said: string[] = [];
    const address = await new Promise<string>((resolve, reject) => {
      child.once('error', reject);
      // Not at its exit: what it said last may still be on its way then.
      child.once('close', (code) => reject(new StartError(`${name} ended with ${code}`, said)));
      for (const stream of [child.stdout, child.stderr]) {
        createInterface(stream).on('line', (line) => {
          said.push(line);
          const found = /listening on (\S+)/.exec(line)?.[1];
          if (found !== undefined) resolve(found);
        });
      }
    });
    return new Program(child, address);
  }

  /** SIGKILL; resolves when it is gone. */
  async kill(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await ended;
  }
}

class StartError extends Error {
  readonly portTaken: boolean;

  constructor(what: string, said: readonly string[]) {
    super(`${what}:\n${said.join('\n')}`);
    this.portTaken = said.some((line) => line.includes('cannot listen on') && /in use/i.test(line));
  }
}

/** A request as an engine saw it; see docs/MOCK.md. */
export interface Seen {
  readonly number: number;
  readonly leg: 'first' | 'continuation' | 'other';
  readonly headers: readonly (readonly [string, string])[];
  readonly body: string;
  readonly events: number;
  /** Null while it is going on. */
  readonly end: 'complete' | 'refused' | 'cut' | 'left' | 'killed' | null;
  readonly refused: string | null;
  readonly faults: readonly string[];
}

export class MockEngine {
  readonly #program: Program;

  private constructor(program: Program) {
    this.#program = program;
  }

  static async start(name: string, args: readonly string[]): Promise<MockEngine> {
    const all = ['--name', name, '--family', 'qwen3', '--strict', ...args];
    return new MockEngine(await Program.start('mock-engine', all));
  }

  get url(): string {
    return `http://${this.#program.address}`;
  }

  /** The requests for an answer that it has had. */
  async asked(): Promise<Seen[]> {
    const all = (await (await fetch(`${this.url}/mock/requests`)).json()) as Seen[];
    return all.filter((seen) => seen.leg !== 'other');
  }

  async #tell(what: string): Promise<void> {
    const response = await fetch(`${this.url}/mock/${what}`, { method: 'POST' });
    if (!response.ok) throw new Error(`the mock engine does not know ${what}`);
    await response.arrayBuffer();
  }

  /** Forgets the requests. */
  forget(): Promise<void> {
    return this.#tell('reset');
  }

  /** Lets every stalled stream go on. */
  release(): Promise<void> {
    return this.#tell('release');
  }

  /** Ends its process, as the kernel does. */
  kill(): Promise<void> {
    return this.#program.kill();
  }
}

export interface Setup {
  /** Options of all engines, which their answers depend on. */
  readonly answers?: readonly string[];
  /** For every engine its own options. Default: two without any. They are strict, and have names: a, b, … */
  readonly engines?: readonly (readonly string[])[];
  /** Further keys of `server`, as YAML flow. */
  readonly server?: string;
  /** The keys of `journal`, as YAML flow. */
  readonly journal?: string;
  /** The routes, as YAML flow; their upstream is `mock`. */
  readonly routes?: string;
}

export class Rig {
  readonly engines: readonly MockEngine[];
  /** Where Baton listens. */
  readonly origin: string;
  readonly #baton: Program;
  readonly #admin: string;
  readonly #folder: string;
  readonly #reference: MockEngine;

  private constructor(
    engines: readonly MockEngine[],
    reference: MockEngine,
    baton: Program,
    admin: string,
    folder: string,
  ) {
    this.engines = engines;
    this.#reference = reference;
    this.origin = `http://${baton.address}`;
    this.#baton = baton;
    this.#admin = admin;
    this.#folder = folder;
  }

  static async start(setup: Setup = {}): Promise<Rig> {
    const answers = setup.answers ?? [];
    const start = (args: readonly string[], at: number) =>
      MockEngine.start(String.fromCharCode(97 + at), [...answers, ...args]);
    const engines = await Promise.all((setup.engines ?? [[], []]).map(start));
    const reference = await MockEngine.start('reference', answers);
    const folder = mkdtempSync(join(tmpdir(), 'baton-'));
    const config = join(folder, 'baton.yaml');
    const urls = JSON.stringify(engines.map((engine) => engine.url));
    // The configuration takes no port 0, and a port that was free a moment ago may be taken by now: Baton itself finds out.
    for (let left = MAX_STARTS; ; left -= 1) {
      const [port, admin] = await freePorts();
      const server = setup.server === undefined ? '' : `, ${setup.server}`;
      writeFileSync(
        config,
        `server: {listen: [{addr: "127.0.0.1:${port}"}], admin: "127.0.0.1:${admin}"${server}}
upstreams: [{name: mock, engine: vllm, family: qwen3, endpoints: ${urls}}]
routes: [${setup.routes ?? '{match: {model: "*"}, upstream: mock}'}]
journal: {${setup.journal ?? ''}}
`,
      );
      try {
        const baton = await Program.start('baton', ['run', '-c', config]);
        return new Rig(engines, reference, baton, `http://127.0.0.1:${admin}`, folder);
      } catch (error) {
        if (!(error instanceof StartError && error.portTaken) || left === 1) {
          await Promise.all([...engines, reference].map((engine) => engine.kill()));
          throw error;
        }
      }
    }
  }

  async close(): Promise<void> {
    await this.#baton.kill();
    await Promise.all([...this.engines, this.#reference].map((engine) => engine.kill()));
    rmSync(this.#folder, { recursive: true, force: true });
  }

  /** The requests for an answer that any engine has had. */
  async asked(): Promise<Seen[]> {
    return (await Promise.all(this.engines.map((engine) => engine.asked()))).flat();
  }

  async forget(): Promise<void> {
    await Promise.all(this.engines.map((engine) => engine.forget()));
  }

  async release(): Promise<void> {
    await Promise.all(this.engines.map((engine) => engine.release()));
  }

  /** The sum of a metric's series that have these labels. */
  async metric(name: string, labels: Readonly<Record<string, string>> = {}): Promise<number> {
    const text = await (await fetch(`${this.#admin}/metrics`)).text();
    const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
    const values = text
      .split('\n')
      .filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
      .filter((line) => wanted.every((label) => line.includes(label)))
      .map((line) => Number(line.slice(line.lastIndexOf(' ') + 1)));
    return values.reduce((sum, value) => sum + value, 0);
  }

  /** An engine that answers like the others, that nothing happens to, and that Baton does not know of. */
  get reference(): string {
    return this.#reference.url;
  }

  /** The data of the events of the answer that nothing happens to. */
  async events(body: object): Promise<string[]> {
    const init = { method: 'POST', body: JSON.stringify(body) };
    const stream = await (await fetch(`${this.reference}/v1/chat/completions`, init)).text();
    return stream.split('\n\n').slice(0, -1);
  }

  /** The text of the answer that nothing happens to. */
  async uncut(body: object): Promise<string> {
    const init = { method: 'POST', body: JSON.stringify({ ...body, stream: false }) };
    const answer = await (await fetch(`${this.reference}/v1/chat/completions`, init)).json();
    const text: unknown = answer.choices?.[0]?.message?.content;
    if (typeof text !== 'string' || text === '') throw new Error(`no answer: ${JSON.stringify(answer)}`);
    return text;
  }
}

/** Two ports that are free at this moment. */
async function freePorts(): Promise<number[]> {
  const servers = [createServer(), createServer()];
  const ports: number[] = [];
  for (const server of servers) {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    ports.push((server.address() as AddressInfo).port);
  }
  for (const server of servers) {
    server.close();
    await once(server, 'close');
  }
  return ports;
}
