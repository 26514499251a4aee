/** A Chromium that pages can be opened in. */

import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { type Browser, chromium } from 'playwright-core';

const FLAGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

/** Chromium by the variable CHROMIUM, or by its usual names in the search path. */
function browserPath(): string {
  const folders = (process.env.PATH ?? '').split(delimiter);
  const names = ['chromium', 'chromium-browser', 'google-chrome'];
  const candidates =
    process.env.CHROMIUM ?? names.flatMap((name) => folders.map((folder) => join(folder, name)));
  for (const path of [candidates].flat()) {
    try {
      accessSync(path, constants.X_OK);
      return path;
    } catch {
      // Not here.
    }
  }
  throw new Error('there is no Chromium: install it (Debian: the package chromium), or name it in CHROMIUM');
}

/** Starts it, with a profile of its own in a temporary folder, which goes with it. */
export function launch(): Promise<Browser> {
  return chromium.launch({ executablePath: browserPath(), args: FLAGS });
}
