// Actors & shards: the cluster's actors, nodes, workers and jobs, a page of the head's list at a time.
import { useRef, useState } from "preact/hooks";
import { bytes, count } from "../format";
import { amend, link, route, source, usePageKeys, usePolled } from "../store";
import { Rows, type Field } from "../table";
import { Card, Empty, Loaded, Pill } from "../ui";

const LIMIT = 100;

type Row = Record<string, unknown>;
interface List {
  rows: Row[];
  next: string | null;
  total: number | null;
  cursor?: string;
}

// An id or a pid of zeros is none.
const text = (row: Row, key: string): string => (row[key] == null || /^0{16}$/.test(String(row[key])) || (key === "pid" && row[key] === 0) ? "" : String(row[key]));
const field = (name: string, key: string, more: Partial<Field<Row>> = {}): Field<Row> => ({ name, cell: (row) => text(row, key) || "–", ...more });
const id = (name: string, key: string): Field<Row> => ({ name, cell: (row) => <code>{text(row, key) || "–"}</code> });
const TONES: Record<string, string> = {
  alive: "good",
  running: "good",
  succeeded: "good",
  pending: "warn",
  starting: "warn",
  restarting: "warn",
  draining: "warn",
  cordoned: "warn",
  dead: "bad",
  failed: "bad",
};
const STATES: Record<string, string[]> = {
  actors: ["pending", "starting", "alive", "restarting", "dead"],
  nodes: ["alive", "cordoned", "draining", "dead"],
  workers: ["starting", "running", "exited", "stopped"],
  jobs: ["pending", "running", "succeeded", "failed", "stopped"],
};
const state: Field<Row> = { name: "state", cell: (row) => <Pill tone={TONES[text(row, "state").toLowerCase()] ?? "quiet"}>{text(row, "state").toLowerCase()}</Pill> };

function why(row: Row): string {
  const cause = row["cause"] as { message?: string } | null;
  return text(row, "pending_reason") || cause?.message || "";
}
// A cause may be long: three lines of it are there, and more under the pointer.
const long = (words: string) => (words ? <span class="why" title={words.slice(0, 2000)}>{words.slice(0, 600)}</span> : <span class="quiet">–</span>);
const reason: Field<Row> = { name: "why pending or dead", cell: (row) => long(why(row)), grow: true };
const amounts = (row: Row, key: string): string =>
  Object.entries((row[key] ?? {}) as Record<string, number>)
    .filter(([name]) => !name.startsWith("node:"))
    .map(([name, value]) => `${name} ${name.endsWith("memory") ? bytes(value) : count(value)}`)
    .join(", ");

const LISTS: Record<string, Field<Row>[]> = {
  actors: [id("id", "id"), field("class", "class"), field("name", "name"), state, field("rank", "rank", { number: true }), field("of", "world_size", { number: true }), field("pid", "pid", { number: true }), id("node", "node"), field("restarts", "num_restarts", { number: true }), reason],
  nodes: [id("id", "id"), field("host", "host"), state, field("pid", "pid", { number: true }), { name: "free", cell: (row) => amounts(row, "available") }, { name: "of", cell: (row) => amounts(row, "total"), grow: true }],
  workers: [id("id", "id"), field("role", "role"), state, field("rank", "rank", { number: true }), field("pid", "pid", { number: true }), id("node", "node"), id("job", "job"), reason],
  jobs: [{ name: "id", cell: (row) => <a href={link("logs", { job: text(row, "id") })} title="Its output"><code>{text(row, "id")}</code></a> }, field("name", "name"), state, field("workers", "num_workers", { number: true }), field("exit code", "exit_code", { number: true }), { name: "command", cell: (row) => long(text(row, "entrypoint")), grow: true }, reason],
};

function Listing({ what, contains, state: wanted }: { what: string; contains: string; state: string }) {
  const [stack, setStack] = useState<string[]>([]);
  const after = stack[stack.length - 1] ?? "";
  const filter = { ...(contains ? { contains } : {}), ...(wanted ? { state: wanted } : {}) };
  // The head counts all rows, which takes time, only for the first answer and then for one in twelve.
  const answers = useRef(0);
  const polled = usePolled<List>(
    `cluster ${what}`,
    { after, ...filter },
    (old, next) => ({ ...next, total: next.total ?? old?.total ?? null }),
    () => source.get<List>(`/api/v0/${what}`, { limit: LIMIT, ...(after ? { after } : {}), ...(answers.current++ % 12 ? { total: 0 } : {}), ...filter }),
    5000,
  );
  const back = (): void => setStack(stack.slice(0, -1));
  const on = (): void => {
    if (polled.data?.next) setStack([...stack, polled.data.next]);
  };
  usePageKeys({ left: back, right: on });
  return (
    <Loaded polled={polled}>
      {(list) => (
        <>
          {list.rows.length === 0 ? (
            <Empty title={contains || wanted ? `No row of ${what} fits the filter` : `The cluster has no ${what}`} />
          ) : (
            <Rows fields={LISTS[what]!} rows={list.rows} rowKey={(row) => text(row, "id")} />
          )}
          {(stack.length > 0 || list.next) && (
            <nav class="pager" aria-label="Pages of the table">
              <button type="button" disabled={stack.length === 0} onClick={back}>
                ← Back
              </button>
              <span>
                page {stack.length + 1}
                {list.total !== null && `, ${count(list.total)} in all`}
              </span>
              <button type="button" disabled={!list.next} onClick={on}>
                Next →
              </button>
            </nav>
          )}
        </>
      )}
    </Loaded>
  );
}

export function ActorsPage({ cluster }: { cluster: boolean }) {
  const query = route.value.query;
  const what = query.get("list") ?? "actors";
  const [contains, wanted] = [query.get("contains") ?? "", query.get("state") ?? ""];
  if (!cluster)
    return (
      <Card title="Actors & shards">
        <Empty title="A run's folder does not record actors">
          <code>shoal dashboard</code> without --run shows those of the running cluster. <code>shoal list actors</code> prints them.
        </Empty>
      </Card>
    );
  const known = Object.hasOwn(LISTS, what) ? what : "actors";
  return (
    <Card
      flush
      title={
        <span class="tabs">
          {Object.keys(LISTS).map((name) => (
            <button type="button" key={name} aria-pressed={name === known} onClick={() => amend({ list: name, contains: "", state: "" })}>
              {name}
            </button>
          ))}
        </span>
      }
      aside={
        <div class="tools">
          <select aria-label="State" value={wanted} onChange={(event) => amend({ state: event.currentTarget.value })}>
            <option value="">all states</option>
            {STATES[known]!.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
          <input type="search" placeholder="contains …" aria-label="Text in rows" value={contains} onChange={(event) => amend({ contains: event.currentTarget.value })} />
        </div>
      }
    >
      <Listing key={`${known} ${contains} ${wanted}`} what={known} contains={contains} state={wanted} />
    </Card>
  );
}
