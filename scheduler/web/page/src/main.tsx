// The page: navigation, the verdict above everything, and the chosen page below it.
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { signal } from "@preact/signals";
import { render, type ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { duration, percent } from "./format";
import { ActorsPage } from "./pages/actors";
import { CheckpointsPage } from "./pages/checkpoints";
import { EventsPage } from "./pages/events";
import { HealthPage } from "./pages/health";
import { LogsPage } from "./pages/logs";
import { MemoryPage } from "./pages/memory";
import { RunPage } from "./pages/run";
import { RunsPage } from "./pages/runs";
import { StepPage } from "./pages/step";
import { WorkersPage } from "./pages/workers";
import { Failure } from "./source";
import { dark, given_up, go, link, lost, pageKeys, route, source, summary, toggleTheme, tryAgain, usePolled } from "./store";
import type { RunRow, Summary, Verdict } from "./types";
import { Command, Pill, Problem } from "./ui";

const cluster = signal(false);
const session = signal("");
const runs = signal<RunRow[]>([]);
const refused = signal<Failure | null>(null);
const ready = signal(false);
const helping = signal(false);

const PAGES: { page: string; name: string; show: () => ComponentChildren }[] = [
  { page: "run", name: "Run", show: () => <RunPage /> },
  { page: "step", name: "Step", show: () => <StepPage /> },
  { page: "memory", name: "Memory", show: () => <MemoryPage /> },
  { page: "workers", name: "Workers", show: () => <WorkersPage /> },
  { page: "actors", name: "Actors & shards", show: () => <ActorsPage cluster={cluster.value} /> },
  { page: "events", name: "Events", show: () => <EventsPage /> },
  { page: "checkpoints", name: "Checkpoints", show: () => <CheckpointsPage /> },
  { page: "logs", name: "Logs", show: () => <LogsPage cluster={cluster.value} /> },
  { page: "health", name: "Health", show: () => <HealthPage /> },
];
const OF_CLUSTER = new Set(["actors", "logs"]);

const STATES: Record<string, { sign: string; word: string }> = {
  ok: { sign: "✓", word: "healthy" },
  slow: { sign: "▲", word: "slow" },
  stopped: { sign: "■", word: "stopped" },
  failed: { sign: "✕", word: "failed" },
};

// Other texts are advice, not to be copied to a shell.
const COMMAND = /^(shoal|ssh|ps|df|iostat|kill|journalctl|timedatectl)\b/;

function VerdictBanner({ verdict, more }: { verdict: Verdict; more: Verdict[] }) {
  const state = Object.hasOwn(STATES, verdict.state) ? verdict.state : "ok";
  const evidence = verdict.evidence ?? [];
  return (
    <section class={`verdict ${state}`} role="status">
      <span class="sign" aria-hidden="true">
        {STATES[state]!.sign}
      </span>
      <div>
        <p class="sentence">{verdict.sentence}</p>
        {(evidence.length > 0 || verdict.cost != null) && (
          <ul class="evidence">
            {verdict.cost != null && <li>costs {percent(verdict.cost)} of the steps' time</li>}
            {evidence.map((line) => (
              <li key={line}>{line}</li>
            ))}
          </ul>
        )}
        {(verdict.next || verdict.rank != null) && (
          <div class="next">
            {verdict.next && (
              <>
                <span>next:</span> {COMMAND.test(verdict.next) ? <Command text={verdict.next} /> : verdict.next}
              </>
            )}
            {verdict.rank != null && verdict.state !== "ok" && <a href={link("workers", { sort: "score" })}>rank {verdict.rank} beside the others</a>}
          </div>
        )}
        {more.length > 0 && (
          <details>
            <summary>
              {more.length} more {more.length === 1 ? "finding" : "findings"}
            </summary>
            <ul class="evidence">
              {more.map((one) => (
                <li key={one.code + one.sentence}>{one.sentence}</li>
              ))}
            </ul>
          </details>
        )}
      </div>
    </section>
  );
}

// What stands above a page whose run has no verdict.
function fallback(now: Summary): Verdict {
  const about = { code: "none", state: "ok", evidence: [] };
  if (now.end && now.end.code !== 0) return { ...about, state: "failed", sentence: `the run failed with code ${now.end.code}${now.end.cause ? `: ${now.end.cause}` : ""}` };
  if (now.state === "lost") return { ...about, state: "failed", sentence: "no process of this run lives any more, and none has written why it ended" };
  if (now.state === "ended") return { ...about, sentence: `the run has ended after step ${now.step}` };
  if (now.step === 0) return { ...about, sentence: "the run has begun; no step has ended yet" };
  return { ...about, sentence: "nothing slows this run" };
}

function Above() {
  const polled = usePolled<Summary & { cursor?: string }>("summary", {});
  useEffect(() => {
    summary.value = polled.data;
    document.title = polled.data ? `${polled.data.name} · Shoal` : "Shoal";
  }, [polled.data]);
  const now = polled.data;
  if (!now) return polled.error ? <Problem error={polled.error} /> : null;
  const [first, ...more] = now.verdicts.length > 0 ? now.verdicts : [fallback(now)];
  return <VerdictBanner verdict={first!} more={more} />;
}

const RUN_TONES: Record<string, string> = { running: "good", lost: "bad", ended: "quiet" };

function Lost() {
  const why = lost.value;
  if (!why) return null;
  return (
    <span class="lost" role="alert" title={why.hint}>
      {why.message}
      {given_up.value && (
        <>
          , so this page has stopped: {why.hint}{" "}
          <button type="button" onClick={tryAgain}>
            try again
          </button>
        </>
      )}
    </span>
  );
}

function Header() {
  const now = summary.value;
  const { run } = route.value;
  if (!run)
    return (
      <header class="top">
        <h1>Cluster</h1>
        <span class="since">{session.value}</span>
        <Lost />
      </header>
    );
  const failed = now?.end && now.end.code !== 0;
  return (
    <header class="top">
      <div>
        <h1>{now?.name ?? run}</h1>
        {now && (
          <Pill tone={failed ? "bad" : (RUN_TONES[now.state] ?? "quiet")}>
            {failed ? `failed with ${now.end!.code}` : now.state}
          </Pill>
        )}
        {source.exported && <Pill tone="quiet">exported file</Pill>}
      </div>
      {now && (
        <span class="since">
          {now.state === "running" ? `training for ${duration(now.now - now.begin)}` : `trained for ${duration(now.last - now.begin)}`}
        </span>
      )}
      <Lost />
    </header>
  );
}

function Fish() {
  return (
    <svg viewBox="0 0 32 20" aria-hidden="true">
      <path d="M2 10c5-7 13-8 19-2l6-5v14l-6-5C15 18 7 17 2 10z" />
      <circle cx="9" cy="9" r="1.4" />
    </svg>
  );
}

function Side() {
  const { run, page } = route.value;
  return (
    <nav class="side" aria-label="Pages">
      <a class="brand" href={runs.value.length > 1 || cluster.value ? "#/" : link("run")}>
        <Fish />
        Shoal
      </a>
      {(runs.value.length > 1 || (cluster.value && runs.value.length > 0)) && (
        <select aria-label="Run" value={run} onChange={(event) => go(run ? page : "run", {}, event.currentTarget.value)}>
          {!run && <option value="">choose a run</option>}
          {run && !runs.value.some((row) => row.name === run) && <option>{run}</option>}
          {runs.value.map((row) => (
            <option key={row.name}>{row.name}</option>
          ))}
        </select>
      )}
      <ul>
        {PAGES.map(({ page: one, name }, i) => (
          <li key={one}>
            <a href={link(one)} aria-current={page === one && (run || OF_CLUSTER.has(one)) ? "page" : undefined} class={!run && !OF_CLUSTER.has(one) ? "off" : ""}>
              <kbd>{i + 1}</kbd>
              {name}
            </a>
          </li>
        ))}
      </ul>
      <div class="foot">
        <button type="button" onClick={toggleTheme} title="Light or dark (t)">
          {dark.value ? "☀ light" : "☾ dark"}
        </button>
        <button type="button" onClick={() => (helping.value = true)} title="Keys (?)">
          ? keys
        </button>
      </div>
    </nav>
  );
}

function Help() {
  if (!helping.value) return null;
  const rows = [
    ["1 … 9", "the pages, from top to bottom"],
    ["← →", "step before and after; page of a table"],
    ["+ −", "zoom the lanes of a step"],
    ["drag", "zoom a chart of the page Run; a double click shows all of it"],
    ["t", "light or dark"],
    ["?", "this list"],
  ];
  return (
    <div class="veil" onClick={() => (helping.value = false)}>
      <div class="dialog" role="dialog" aria-label="Keys">
        <h2>Keys</h2>
        <dl>
          {rows.map(([key, text]) => (
            <div key={key}>
              <dt>
                <kbd>{key}</kbd>
              </dt>
              <dd>{text}</dd>
            </div>
          ))}
        </dl>
      </div>
    </div>
  );
}

function App() {
  if (refused.value) return <main class="alone"><Problem error={refused.value} /></main>;
  if (!ready.value)
    return (
      <>
        <div class="side">
          <span class="brand">
            <Fish />
            Shoal
          </span>
        </div>
        <main class="alone">
          <div class="empty waiting">opening …</div>
        </main>
      </>
    );
  const { run, page } = route.value;
  const chosen = PAGES.find((one) => one.page === page) ?? PAGES[0]!;
  return (
    <>
      <Side />
      <main key={run}>
        <Header />
        {run && <Above />}
        {run || OF_CLUSTER.has(page) ? <div key={chosen.page}>{chosen.show()}</div> : <RunsPage />}
      </main>
      <Help />
    </>
  );
}

function onKey(event: KeyboardEvent): void {
  const at = event.target as HTMLElement;
  if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT", "TEXTAREA"].includes(at.tagName)) return;
  if (event.key === "Escape") helping.value = false;
  else if (event.key === "?") helping.value = !helping.value;
  else if (event.key === "t") toggleTheme();
  else if (event.key === "ArrowLeft") pageKeys.value.left?.();
  else if (event.key === "ArrowRight") pageKeys.value.right?.();
  else if (/^[1-9]$/.test(event.key)) {
    const page = PAGES[Number(event.key) - 1]!.page;
    if (route.value.run || OF_CLUSTER.has(page)) go(page);
  } else return;
  if (event.key.startsWith("Arrow")) event.preventDefault();
}

async function open(): Promise<void> {
  try {
    const about = await source.about();
    cluster.value = about.cluster;
    session.value = about.session ?? "";
    runs.value = (await source.runs()).rows;
    const only = runs.value.length === 1 && !about.cluster ? runs.value[0]!.name : "";
    if (only && !route.value.run) {
      history.replaceState(null, "", link("run", {}, only));
      window.dispatchEvent(new HashChangeEvent("hashchange"));
    }
    ready.value = true;
  } catch (error) {
    const why = error instanceof Failure ? error : new Failure("the server does not answer", "start `shoal dashboard` again", 0);
    refused.value = why.status === 401 ? new Failure("this page needs its token", "open the URL that `shoal dashboard` prints, with all that follows #", 401) : why;
  }
}

window.addEventListener("keydown", onKey);
render(<App />, document.getElementById("app")!);
void open();
