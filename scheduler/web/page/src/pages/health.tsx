// Health: the hosts' room and pressure, and the run's processes.
import { ago, bytes, day, percent } from "../format";
import { amend, route, summary, usePolled } from "../store";
import { Pager, Rows, type Field } from "../table";
import type { HealthHost, HealthProcess, Table } from "../types";
import { Card, Empty, Life, Loaded } from "../ui";

const LIMIT = 100;
type Health = Table<HealthProcess> & { hosts: HealthHost[]; version: string; processes_left_out: number };

const pressure = (value: number | undefined): preact.JSX.Element => (
  <b class={(value ?? 0) > 20 ? "alarm" : "calm"}>{value === undefined ? "–" : `${value.toFixed(1)} %`}</b>
);

const HOSTS: Field<HealthHost>[] = [
  { name: "host", cell: (row) => <b>{row.host || "–"}</b> },
  { name: "processes", cell: (row) => row.processes, number: true },
  { name: "CPU pressure", cell: (row) => pressure(row.psi_cpu), number: true, hint: "part of the last 10 s in which something waited for a CPU" },
  { name: "I/O pressure", cell: (row) => pressure(row.psi_io), number: true },
  { name: "memory pressure", cell: (row) => pressure(row.psi_mem), number: true },
  { name: "free memory", cell: (row) => (row.total ? `${bytes(row.free)} (${percent((row.free ?? 0) / row.total)})` : "–"), number: true },
  { name: "disk of the run", cell: (row) => <span class={(row.disk_free ?? 1e12) < 2e9 ? "alarm" : ""}>{row.disk_free === undefined ? "–" : `${bytes(row.disk_free)} free`}</span>, number: true },
  { name: "clock jumps", cell: (row) => <span class={row.clock_jumps > 0 ? "alarm" : ""}>{row.clock_jumps}</span>, number: true },
  { name: "recording stops", cell: (row) => <span class={row.recording_stops > 0 ? "alarm" : ""}>{row.recording_stops}</span>, number: true },
];

const processes = (now: number): Field<HealthProcess>[] => [
  { name: "rank", cell: (row) => (row.rank >= 0 ? <b>{row.rank}</b> : row.role || "–"), number: true },
  { name: "host", cell: (row) => row.host },
  { name: "pid", cell: (row) => row.pid, number: true },
  { name: "device", cell: (row) => row.device || "–" },
  { name: "state", cell: (row) => <Life life={row.life} /> },
  { name: "started", cell: (row) => (row.start > 0 ? day(row.start) : "–") },
  { name: "last row", cell: (row) => (row.last > 0 ? ago(now - row.last) : "–"), number: true },
  { name: "major faults", cell: (row) => row.faults ?? "–", number: true },
  { name: "lines skipped", cell: (row) => row.skipped_lines, number: true },
  { name: "command", cell: (row) => <code>{row.argv.join(" ")}</code>, grow: true },
];

export function HealthPage() {
  const offset = Number(route.value.query.get("offset") ?? "") || 0;
  const polled = usePolled<Health>("health", { offset, limit: LIMIT });
  return (
    <Loaded polled={polled}>
      {(data) => (
        <>
          <Card title="Hosts" aside={`Shoal ${data.version} reads this run`} flush>
            {data.hosts.length > 0 ? <Rows fields={HOSTS} rows={data.hosts} rowKey={(row) => row.host} /> : <Empty title="No process has started yet" />}
          </Card>
          <Card title="Processes" aside={data.processes_left_out > 0 ? `${data.processes_left_out} more are not read` : ""} flush>
            {data.rows.length > 0 ? <Rows fields={processes(summary.value?.now ?? 0)} rows={data.rows} rowKey={(row) => row.id} /> : <Empty title="No process has started yet" />}
            <Pager offset={offset} limit={LIMIT} total={data.total} shown={data.rows.length} go={(to) => amend({ offset: to || "" })} />
          </Card>
          <p class="note">
            <code>shoal doctor</code> checks a host before a run.
          </p>
        </>
      )}
    </Loaded>
  );
}
