// Memory: resident bytes of the processes and free bytes of their hosts, by time.
import { useState } from "preact/hooks";
import { Chart } from "../chart";
import { mergeMemory } from "../charts";
import { bytes, percent } from "../format";
import { SERIES_COLOURS, seriesColour as colour } from "../palette";
import { usePolled } from "../store";
import { Pager } from "../table";
import type { Memory } from "../types";
import { Card, Empty, Legend, Loaded } from "../ui";

const LIMIT = 16;
const newest = (values: (number | null)[]): number | null => values.findLast((value) => value !== null) ?? null;

const title = (kind: string): string => (kind === "unit" ? "largest unit, whole (predicted)" : kind);

// Bytes by kind: measured after the first step, beside those that were predicted.
function Kinds({ memory }: { memory: Memory }) {
  const rows = memory.series.filter((one) => one.kinds);
  if (rows.length === 0)
    return (
      <p class="note">
        This run records memory per process, not by kind. <code>shoal memory</code> lists the objects of a running cluster.
      </p>
    );
  const names = [...new Set(rows.flatMap((one) => [...Object.keys(one.kinds!), ...Object.keys(one.predicted ?? {})]))];
  const sum = (kinds: Record<string, number> | undefined): number => Object.values(kinds ?? {}).reduce((all, value) => all + value, 0);
  const most = Math.max(...rows.flatMap((one) => [sum(one.kinds), sum(one.predicted)]), 1);
  const bar = (kinds: Record<string, number>, what: string) => (
    <div class="kinds">
      <span>{what}</span>
      <div class="bar">
        {names.map((name, i) => (
          <i key={name} style={{ background: colour(i), width: `${(100 * (kinds[name] ?? 0)) / most}%` }} title={`${title(name)}: ${bytes(kinds[name])}`} />
        ))}
      </div>
      <b>{bytes(sum(kinds))}</b>
    </div>
  );
  return (
    <Card title="Memory by kind" aside="after the first step">
      <Legend items={names.map((name, i) => ({ name: title(name), colour: colour(i), value: bytes(rows[0]!.kinds![name] ?? rows[0]!.predicted?.[name]) }))} />
      {rows.map((one) => (
        <div key={one.id}>
          {bar(one.kinds!, `rank ${one.rank}`)}
          {one.predicted && bar(one.predicted, "predicted")}
        </div>
      ))}
    </Card>
  );
}

function Charts({ memory, offset, go }: { memory: Memory; offset: number; go: (offset: number) => void }) {
  const [off, setOff] = useState<Record<string, boolean>>({});
  if (memory.total === 0)
    return (
      <Card title="Memory">
        <Empty title="No memory is recorded yet">Each process writes a sample once a second.</Empty>
      </Card>
    );
  const series = memory.series.map((one, i) => ({
    id: one.id,
    name: one.rank >= 0 ? `rank ${one.rank}` : one.role || "process",
    colour: colour(i),
    values: one.values,
    dash: i >= SERIES_COLOURS,
  }));
  const shown = series.filter((one) => !off[one.id]);
  return (
    <>
      <Card title="Resident memory of each process" aside={`${memory.total} processes`}>
        <Legend
          items={series.map((one) => ({
            name: one.name,
            colour: one.colour,
            value: bytes(newest(one.values)),
            on: !off[one.id],
            toggle: () => setOff({ ...off, [one.id]: !off[one.id] }),
          }))}
        />
        <Chart x={memory.t} columns={shown} time zero height={240} value={bytes} label="Resident memory by time" sync="memory" />
        <Pager offset={offset} limit={LIMIT} total={memory.total} shown={memory.series.length} go={go} />
      </Card>
      <Card title="Free memory of each host" aside="what the kernel can still give">
        <Legend
          items={memory.hosts.map((host, i) => {
            const free = newest(host.values);
            return { name: host.host, colour: colour(i), value: `${bytes(free)} of ${bytes(host.total)} (${percent((free ?? 0) / host.total)})` };
          })}
        />
        <Chart
          x={memory.t}
          columns={memory.hosts.map((host, i) => ({ name: host.host, colour: colour(i), values: host.values }))}
          time
          zero
          height={190}
          value={bytes}
          label="Free memory of hosts by time"
          sync="memory"
        />
      </Card>
      <Kinds memory={memory} />
    </>
  );
}

export function MemoryPage() {
  const [offset, go] = useState(0);
  const polled = usePolled<Memory>("memory", { points: 300, offset, limit: LIMIT }, mergeMemory);
  return <Loaded polled={polled}>{(memory) => <Charts memory={memory} offset={offset} go={go} />}</Loaded>;
}
