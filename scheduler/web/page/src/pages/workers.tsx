// Workers: a row per rank, with the skew of its own work.
import { bytes, duration, percent } from "../format";
import { ACTIVITIES } from "../palette";
import { amend, route, usePolled } from "../store";
import { Pager, Rows, type Field } from "../table";
import type { Table, Worker } from "../types";
import { Box, Card, Empty, Life, Loaded } from "../ui";

const LIMIT = 100;
type Workers = Table<Worker> & { usual: number; counted_steps: number };

function Now({ row }: { row: Worker }) {
  const activity = row.activity ? ACTIVITIES.get(row.activity) : undefined;
  if (!activity) return <span class="quiet">–</span>;
  return (
    <span class="now">
      <i style={{ background: activity.colour }} />
      {activity.name}
      {row.unit ? <em> {row.unit}</em> : null}
      <small> {duration(row.for_us)}</small>
    </span>
  );
}

function Score({ score }: { score: number | null }) {
  if (score === null) return <span class="quiet">–</span>;
  const slow = score > 0.1;
  const text = Math.abs(score) < 0.005 ? "0 %" : `${score > 0 ? "+" : "−"}${percent(Math.abs(score))}`;
  return <b class={slow ? "alarm" : ""}>{text}</b>;
}

function WorkerTable({ data, sort, offset }: { data: Workers; sort: string; offset: number }) {
  if (data.total === 0) return <Empty title="No rank has started yet">A rank appears here once it begins to train.</Empty>;
  const of = (i: number): number[] => data.rows.map((row) => row.own[i]).filter((one): one is number => one != null);
  // One step with a save would leave no room for the others.
  const [low, high] = [Math.min(...of(0)), Math.min(Math.max(...of(4)), 1.12 * Math.max(...of(3)))];
  const fields: Field<Worker>[] = [
    { name: "rank", cell: (row) => <b>{row.rank}</b>, number: true, sort: "rank" },
    { name: "host", cell: (row) => row.host, sort: "host" },
    { name: "pid", cell: (row) => row.pid, number: true },
    { name: "state", cell: (row) => <Life life={row.life} /> },
    { name: "now, and since when", cell: (row) => <Now row={row} /> },
    { name: "step", cell: (row) => row.step, number: true, sort: "step" },
    { name: "own work per step: min, quartiles, max", cell: (row) => <Box values={row.own} low={low} high={high} usual={data.usual} />, grow: true },
    { name: "median", cell: (row) => duration(row.own[2]), number: true, sort: "own", hint: "median of the rank's own work in a step, without waits for others" },
    { name: "slower", cell: (row) => <Score score={row.score} />, number: true, sort: "score", hint: "its median against the middle rank's" },
    { name: "exposed", cell: (row) => percent(row.exposed), number: true, sort: "exposed", hint: "the part of its steps in which it waited for others" },
    { name: "no CPU", cell: (row) => percent(row.runq), number: true, hint: "the part of the last seconds in which its thread was ready, but had no CPU" },
    { name: "resident", cell: (row) => bytes(row.rss), number: true, sort: "rss" },
  ];
  return (
    <>
      <Rows
        fields={fields}
        rows={data.rows}
        rowKey={(row) => row.id}
        rowClass={(row) => ((row.score ?? 0) > 0.1 ? "marked" : row.life === "gone" ? "dimmed" : "")}
        sorted={sort}
        onSort={(by) => amend({ sort: by, offset: "" })}
      />
      <Pager offset={offset} limit={LIMIT} total={data.total} shown={data.rows.length} go={(to) => amend({ offset: to || "" })} />
    </>
  );
}

export function WorkersPage() {
  const sort = route.value.query.get("sort") ?? "rank";
  const offset = Number(route.value.query.get("offset") ?? "") || 0;
  const polled = usePolled<Workers>("workers", { sort, offset, limit: LIMIT });
  return (
    <Card title="Workers" aside={polled.data ? `the last ${polled.data.counted_steps} steps of each rank; the line marks the middle rank` : ""} flush>
      <Loaded polled={polled}>{(data) => <WorkerTable data={data} sort={sort} offset={offset} />}</Loaded>
    </Card>
  );
}
