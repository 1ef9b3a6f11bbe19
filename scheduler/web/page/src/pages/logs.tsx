// Logs: the output of a job of the cluster.
import { useState } from "preact/hooks";
import { amend, route, source, usePolled } from "../store";
import { Card, Empty, Loaded } from "../ui";

const LINES = 2000;

interface Jobs {
  rows: { id: string; name: string; state: string; submission_id: string }[];
  cursor?: string;
}

function Output({ job, contains }: { job: string; contains: string }) {
  const polled = usePolled<{ logs: string; cursor?: string }>(`logs ${job}`, {}, undefined, () => source.get(`/api/jobs/${encodeURIComponent(job)}/logs`, {}), 3000);
  return (
    <Loaded polled={polled}>
      {({ logs }) => {
        const all = logs.split("\n");
        if (all.at(-1) === "") all.pop();
        const lines = contains ? all.filter((line) => line.includes(contains)) : all;
        if (lines.length === 0) return <Empty title={contains ? "No line contains this text" : "This job has printed nothing"} />;
        return (
          <>
            {lines.length > LINES && <p class="note">The last {LINES} of {lines.length} lines.</p>}
            <pre class="log">{lines.slice(-LINES).join("\n")}</pre>
          </>
        );
      }}
    </Loaded>
  );
}

function Chosen() {
  const jobs = usePolled<Jobs>("cluster jobs", {}, undefined, () => source.get<Jobs>("/api/v0/jobs", { limit: 200, total: 0 }), 5000);
  const job = route.value.query.get("job") ?? "";
  const [contains, setContains] = useState("");
  return (
    <Loaded polled={jobs}>
      {({ rows }) => {
        const chosen = rows.find((row) => row.id === job) ?? rows.findLast((row) => row.state.toLowerCase() === "running") ?? rows.at(-1);
        if (!chosen) return <Card title="Logs"><Empty title="The cluster has run no job yet" /></Card>;
        return (
          <Card
            title="Logs"
            aside={
              <div class="tools">
                <select aria-label="Job" value={chosen.id} onChange={(event) => amend({ job: event.currentTarget.value })}>
                  {[...rows].reverse().map((row) => (
                    <option key={row.id} value={row.id}>
                      {row.submission_id || row.name || row.id} ({row.state.toLowerCase()})
                    </option>
                  ))}
                </select>
                <input type="search" placeholder="contains …" aria-label="Text in lines" value={contains} onInput={(event) => setContains(event.currentTarget.value)} />
              </div>
            }
          >
            <Output key={chosen.id} job={chosen.id} contains={contains} />
          </Card>
        );
      }}
    </Loaded>
  );
}

export function LogsPage({ cluster }: { cluster: boolean }) {
  if (cluster) return <Chosen />;
  return (
    <Card title="Logs">
      <Empty title="A run's folder does not contain its output">
        <code>shoal logs</code> prints that of a running cluster, and the scheduler or terminal that started the run keeps the rest.
      </Empty>
    </Card>
  );
}
