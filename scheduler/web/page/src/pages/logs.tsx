// Logs: the output of a job of the cluster.
import { useRef, useState } from "preact/hooks";
import { amend, route, source, usePolled } from "../store";
import { Card, Empty, Loaded } from "../ui";

const LINES = 2000;
const RUNNING_MS = 60_000; // between two searches of all jobs for those that run

interface Job {
  id: string;
  name: string;
  state: string;
  submission_id: string;
}
interface Jobs {
  rows: Job[];
  next?: string | null;
  cursor?: string;
}

const list = (query: Record<string, string | number>): Promise<Jobs> => source.get<Jobs>("/api/v0/jobs", { limit: 200, total: 0, ...query });

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
  const query = route.value.query;
  const [job, wanted] = [query.get("job") ?? "", query.get("of") ?? ""];
  // A list of jobs is bounded. A search finds running jobs, and the chosen one, that are beyond the bound.
  const found = useRef<{ at: number; rows: Job[] }>({ at: 0, rows: [] });
  const jobs = usePolled<Jobs>(
    "cluster jobs",
    { wanted, job },
    undefined,
    async () => {
      const some = await list(wanted ? { contains: wanted } : {});
      if (!some.next || wanted) return some;
      if (Date.now() - found.current.at > RUNNING_MS) {
        const more = [await list({ state: "running" }), ...(job ? [await list({ contains: job })] : [])];
        found.current = { at: Date.now(), rows: more.flatMap((one) => one.rows) };
      }
      return { rows: [...new Map([...some.rows, ...found.current.rows].map((row) => [row.id, row])).values()] };
    },
    5000,
  );
  const [contains, setContains] = useState("");
  return (
    <Loaded polled={jobs}>
      {({ rows }) => {
        const chosen = rows.find((row) => row.id === job) ?? rows.findLast((row) => row.state.toLowerCase() === "running") ?? rows.at(-1);
        const search = (
          <input type="search" placeholder="job …" aria-label="Text in jobs" value={wanted} onChange={(event) => amend({ of: event.currentTarget.value, job: "" })} />
        );
        if (!chosen)
          return (
            <Card title="Logs" aside={<div class="tools">{wanted && search}</div>}>
              <Empty title={wanted ? "No job has this text" : "The cluster has run no job yet"} />
            </Card>
          );
        return (
          <Card
            title="Logs"
            aside={
              <div class="tools">
                {search}
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
