// Where the page's data comes from: the server that served it, or the snapshot inside an exported file.
import type { RunRow, Table } from "./types";

export type Query = Record<string, string | number>;

export class Failure extends Error {
  constructor(
    message: string,
    readonly hint: string,
    readonly status: number,
  ) {
    super(message);
  }
}

export interface Source {
  readonly exported: boolean;
  about(): Promise<{ cluster: boolean; version: string; session?: string }>;
  runs(query?: Query): Promise<Table<RunRow>>;
  view<T>(run: string, view: string, query: Query): Promise<T>;
  // Requests a path of the cluster's API, such as /api/v1/runs or a list of jobs.
  get<T>(path: string, query: Query): Promise<T>;
}

// Characters that would change how text around them is shown: controls, and those that reverse its direction. They become visible.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const visible = (text: string): string => text.replace(CONTROLS, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

function parse(text: string): unknown {
  if (!/\\u(00|061c|20)/i.test(text)) return JSON.parse(text); // the server escapes each of them
  const clean = (value: unknown): unknown => {
    if (typeof value === "string") return visible(value);
    if (Array.isArray(value)) return value.map(clean);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [visible(key), clean(one)]));
  };
  return clean(JSON.parse(text));
}

class Server implements Source {
  readonly exported = false;
  constructor(private readonly token: string) {}

  async get<T>(path: string, query: Query): Promise<T> {
    const words = new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)]));
    const answer = await fetch(`${path}${words.size > 0 ? `?${words}` : ""}`, {
      headers: { Authorization: `Bearer ${this.token}` },
      signal: AbortSignal.timeout(15_000),
    });
    if (answer.ok) return parse(await answer.text()) as T;
    const said = (await answer.json().catch(() => ({}))) as { message?: string; hint?: string };
    throw new Failure(said.message ?? `the server answered with status ${answer.status}`, said.hint ?? "", answer.status);
  }
  about() {
    return this.get<{ cluster: boolean; version: string; session?: string }>("/api/v1/about", {});
  }
  runs(query: Query = {}) {
    return this.get<Table<RunRow>>("/api/v1/runs", query);
  }
  view<T>(run: string, view: string, query: Query) {
    return this.get<T>(`/api/v1/runs/${encodeURIComponent(run)}/${view}`, query);
  }
}

interface SnapshotData {
  run: string;
  now: number;
  views: Record<string, unknown>;
  steps: Record<string, unknown>;
}

// Answers from the whole tables and charts of an exported file.
class Snapshot implements Source {
  readonly exported = true;
  constructor(private readonly data: SnapshotData) {}

  async about() {
    return { cluster: false, version: (this.data.views["summary"] as { version: string }).version };
  }
  async runs() {
    return { rows: [{ name: this.data.run } as RunRow], total: 1, offset: 0, cursor: "" };
  }
  async view<T>(_: string, view: string, query: Query): Promise<T> {
    if (view === "step") {
      const newest = this.data.views["step"] as { step: number | null; steps: number[] };
      const number = Number(query["number"] ?? 0) || newest.step;
      const step = number === newest.step ? newest : this.data.steps[String(number)];
      if (!step) throw new Failure(`the file does not contain step ${number} in detail`, "", 404);
      const steps = newest.steps.filter((one) => one === newest.step || String(one) in this.data.steps);
      return { ...(step as object), steps } as T;
    }
    const whole = this.data.views[view];
    if (!whole) throw new Failure(`the file does not contain ${view}`, "", 404);
    const [offset, limit] = [Number(query["offset"] ?? 0), Number(query["limit"] ?? 100)];
    if (view === "memory") return { ...whole, offset, series: (whole as { series: unknown[] }).series.slice(offset, offset + limit) } as T;
    const table = whole as Table<Record<string, unknown>>;
    if (!Array.isArray(table.rows)) return this.range(whole as Record<string, unknown>, query) as T;
    let rows = table.rows;
    const [kind, contains, sort] = [query["kind"], String(query["contains"] ?? ""), String(query["sort"] ?? "")];
    if (kind) rows = rows.filter((row) => row["kind"] === kind);
    if (contains) rows = rows.filter((row) => String(row["text"]).includes(contains) || row["host"] === contains);
    if (sort) rows = [...rows].sort(compare(sort));
    return { ...table, rows: rows.slice(offset, offset + limit), total: rows.length, offset } as T;
  }
  // A chart's steps from..to, as the server cuts them.
  private range(chart: Record<string, unknown>, query: Query): unknown {
    const [from, to] = [Number(query["from"] ?? 0), Number(query["to"] ?? Infinity)];
    const columns = chart["columns"] as Record<string, number[]> | undefined;
    const steps = columns?.["step"] ?? (chart["steps"] as number[] | undefined);
    if (!steps || (from === 0 && to === Infinity)) return chart;
    const keep = (_: unknown, i: number) => steps[i]! >= from && steps[i]! <= to;
    if (columns) return { ...chart, columns: Object.fromEntries(Object.entries(columns).map(([name, all]) => [name, all.filter(keep)])) };
    const series = (chart["series"] as { values: unknown[] }[]).map((one) => ({ ...one, values: one.values.filter(keep) }));
    return { ...chart, steps: steps.filter(keep), series };
  }
  async get<T>(): Promise<T> {
    throw new Failure("an exported file has no cluster", "", 404);
  }
}

function compare(sort: string): (a: Record<string, unknown>, b: Record<string, unknown>) => number {
  const key = (row: Record<string, unknown>): unknown => (sort === "own" ? (row["own"] as unknown[])[2] : row[sort]);
  return (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (typeof x === "string" && typeof y === "string") return x < y ? -1 : x > y ? 1 : 0;
    const [p, q] = [Number(x ?? -Infinity), Number(y ?? -Infinity)];
    return sort === "rank" ? p - q : q - p;
  };
}

// The token comes in the URL's fragment, which a browser sends to no server; it leaves the address bar at once.
function token(): string {
  const given = /^#token=([0-9a-f]+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem("shoal-token", given[1]!);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("shoal-token") ?? "";
}

export function openSource(): Source {
  const inside = document.getElementById("snapshot")?.textContent;
  return inside ? new Snapshot(parse(inside) as SnapshotData) : new Server(token());
}
