/** Serves this page and the built client library, as any web server would: files, and nothing of Baton. */

import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';

const TYPES = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.mjs': 'text/javascript; charset=utf-8',
};
const here = (path) => fileURLToPath(new URL(path, import.meta.url));

/** What lies where: the longest beginning that fits decides. */
const FOLDERS = { '/': here('.'), '/baton/': here('../../clients/js/dist') };

/**
 * Serves on loopback; port 0 takes a free one. `more` are further folders by the beginning of their paths.
 *
 * @returns the server, which listens, and the page's origin.
 */
export async function servePage(port = 0, more = {}) {
  const folders = Object.entries({ ...FOLDERS, ...more }).sort(([a], [b]) => b.length - a.length);
  const server = createServer(async (request, response) => {
    try {
      const { pathname } = new URL(request.url, 'http://localhost');
      const [start, folder] = folders.find(([start]) => pathname.startsWith(start));
      const name = normalize(decodeURIComponent(pathname.slice(start.length)) || 'index.html');
      const type = TYPES[extname(name)];
      if (type === undefined || name.startsWith('..')) throw new Error('no such file');
      const file = await readFile(join(folder, name));
      response.writeHead(200, { 'content-type': type, 'cache-control': 'no-store' }).end(file);
    } catch {
      response.writeHead(404, { 'content-type': 'text/plain' }).end('Not found\n');
    }
  });
  server.listen(port, '127.0.0.1');
  await once(server, 'listening');
  return { server, origin: `http://127.0.0.1:${server.address().port}` };
}
