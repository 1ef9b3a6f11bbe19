// What all pages share: the route, the chosen run, the theme, and requests that repeat while the page is visible.
import { batch, effect, signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, openSource, type Query } from "./source";
import type { Summary } from "./types";

export const source = openSource();
export const POLL_MS = 1000;
const GIVE_UP_MS = 30_000; // without an answer

// --- the route: #/RUN/PAGE?key=value

export interface Route {
  run: string;
  page: string;
  query: URLSearchParams;
}

function parseRoute(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [run = "", page = "run"] = path.split("/").map((word) => {
    try {
      return decodeURIComponent(word);
    } catch {
      return "";
    }
  });
  return { run, page, query: new URLSearchParams(query) };
}

export const route = signal(parseRoute());
window.addEventListener("hashchange", () => (route.value = parseRoute()));

export function link(page: string, query: Query = {}, run = route.value.run): string {
  const words = new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)])).toString();
  return `#/${encodeURIComponent(run)}/${page}${words ? `?${words}` : ""}`;
}

export function go(page: string, query: Query = {}, run = route.value.run): void {
  location.hash = link(page, query, run);
}

// Changes some words of the route's query; empty ones go.
export function amend(query: Query, replace = true): void {
  const next = Object.fromEntries(route.value.query);
  for (const [name, value] of Object.entries(query)) value === "" ? delete next[name] : (next[name] = String(value));
  if (replace) history.replaceState(null, "", link(route.value.page, next));
  else history.pushState(null, "", link(route.value.page, next));
  route.value = parseRoute();
}

// --- the theme

function stored(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // a file: URL may have no storage
  }
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const chosenTheme = signal(stored("shoal-theme"));
export const dark = signal(false);
effect(() => {
  dark.value = chosenTheme.value ? chosenTheme.value === "dark" : prefersDark.matches;
});
prefersDark.addEventListener("change", () => {
  if (!chosenTheme.value) dark.value = prefersDark.matches;
});
effect(() => {
  document.documentElement.dataset["theme"] = dark.value ? "dark" : "light";
});

export function toggleTheme(): void {
  chosenTheme.value = dark.value ? "light" : "dark";
  try {
    localStorage.setItem("shoal-theme", chosenTheme.value);
  } catch {
    // the choice then lasts as long as the page
  }
}

// --- requests

export const summary = signal<Summary | null>(null);
export const lost = signal<Failure | null>(null); // why the last request failed
// No request follows until the user wants one, since another process may listen on this port by then.
export const given_up = signal(false);
let failing_since = 0;

function answered(): void {
  failing_since = 0;
  lost.value = null;
}
function unanswered(why: Failure): void {
  if (why.status !== 0 && why.status !== 401) return;
  failing_since ||= Date.now();
  lost.value = why.status === 401 ? new Failure("the server was started again", "open the URL that `shoal dashboard` prints now", 401) : why;
  given_up.value ||= why.status === 401 || Date.now() - failing_since >= GIVE_UP_MS;
}
export function tryAgain(): void {
  failing_since = 0;
  given_up.value = false;
}

export interface Polled<T> {
  data: T | null;
  error: Failure | null;
}

function failure(error: unknown): Failure {
  if (error instanceof Failure) return error;
  return new Failure("the server does not answer", "it may have ended: start `shoal dashboard` again", 0);
}

// A view of the chosen run, again and again. `merge` adds an answer to what earlier ones said; the cursor goes back with the next request.
export function usePolled<T extends { cursor?: string }>(
  view: string,
  query: Query,
  merge: (old: T | null, next: T) => T = (_, next) => next,
  fetcher?: () => Promise<T>,
  every = POLL_MS,
): Polled<T> {
  const run = route.value.run;
  const key = JSON.stringify([run, view, query]);
  const [state, setState] = useState<Polled<T> & { key: string }>({ key, data: null, error: null });
  const latest = useRef(merge);
  latest.current = merge;
  useEffect(() => {
    let ended = false;
    let timer = 0;
    let data: T | null = null;
    let wait = every;
    const poll = async (): Promise<void> => {
      if (!document.hidden || data === null) {
        try {
          const cursor: Query = data?.cursor ? { cursor: data.cursor } : {};
          const next = fetcher ? await fetcher() : await source.view<T>(run, view, { ...query, ...cursor });
          if (ended) return;
          wait = every;
          batch(() => {
            answered();
            if ((next as { unchanged?: boolean }).unchanged) return;
            data = latest.current(data, next);
            setState({ key, data, error: null });
          });
        } catch (error) {
          if (ended) return;
          const why = failure(error);
          wait = Math.min(wait * 2, 15_000);
          unanswered(why);
          setState({ key, data, error: why });
        }
      }
      if (!ended && !source.exported && !given_up.value) timer = window.setTimeout(() => void poll(), wait);
    };
    if ((run || fetcher) && !given_up.value) void poll();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [key, given_up.value]);
  // The old view's data stays until the new one's arrives, so that nothing flickers, unless it is another run's.
  const shown = state.key === key || JSON.parse(state.key)[0] === run ? state : { data: null, error: null };
  return given_up.value && shown.data === null ? { data: null, error: lost.value } : shown;
}

// --- keys that the present page handles

export const pageKeys = signal<{ left?: () => void; right?: () => void }>({});

export function usePageKeys(keys: { left?: () => void; right?: () => void }): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    pageKeys.value = { left: () => latest.current.left?.(), right: () => latest.current.right?.() };
    return () => {
      pageKeys.value = {};
    };
  }, []);
}
