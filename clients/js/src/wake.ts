/** Moments at which waiting on makes no sense: the network is back, or somebody looks at the page again. */

/** Calls `run` at every such moment; the returned function ends that. */
export type Wake = (run: () => void) => () => void;

/** What of a browser is listened to. */
interface Surroundings {
  readonly addEventListener?: EventTarget['addEventListener'];
  readonly removeEventListener?: EventTarget['removeEventListener'];
  readonly document?: (EventTarget & { readonly visibilityState: string }) | undefined;
}

/** The browser's `online`, and the page's becoming visible. Where there is neither, as in Node, nothing. */
export function browserWake(browser: Surroundings = globalThis): Wake {
  return (run) => {
    const { document } = browser;
    const seen = () => {
      if (document?.visibilityState === 'visible') run();
    };
    browser.addEventListener?.('online', run);
    document?.addEventListener('visibilitychange', seen);
    return () => {
      browser.removeEventListener?.('online', run);
      document?.removeEventListener('visibilitychange', seen);
    };
  };
}
