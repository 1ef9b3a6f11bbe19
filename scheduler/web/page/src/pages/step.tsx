// Step: one step's lanes, its critical path, and a trace to download.
import { useEffect, useState } from "preact/hooks";
import { duration, percent } from "../format";
import { Lanes } from "../lanes";
import { ACTIVITIES, EXPOSED, WAITS, WORK } from "../palette";
import { amend, route, source, usePageKeys, usePolled } from "../store";
import type { StepDetail } from "../types";
import { Card, Empty, Legend, Loaded } from "../ui";

// Chrome's trace format, which Perfetto opens: a process per rank, with one thread of work and one of waits.
function trace(detail: StepDetail): string {
  const events: object[] = [];
  for (const { rank, host, spans } of detail.lanes) {
    events.push({ ph: "M", pid: rank, name: "process_name", args: { name: `rank ${rank} on ${host}` } });
    events.push({ ph: "M", pid: rank, tid: 0, name: "thread_name", args: { name: "work" } });
    events.push({ ph: "M", pid: rank, tid: 1, name: "thread_name", args: { name: "waits" } });
    for (const [activity, unit, from, length] of spans) {
      const name = unit >= 0 ? `${activity} ${detail.units[unit] || "root"}` : activity;
      const tid = WAITS.some((wait) => wait.key === activity) ? 1 : 0;
      events.push({ ph: "X", pid: rank, tid, name, cat: activity, ts: detail.begin + from, dur: length, args: { step: detail.step } });
    }
  }
  return JSON.stringify({ traceEvents: events, displayTimeUnit: "ms" });
}

function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const anchor = Object.assign(document.createElement("a"), { href: url, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function Critical({ detail }: { detail: StepDetail }) {
  if (detail.critical.length === 0) return null;
  const ranks = new Map(detail.lanes.map((lane) => [lane.lane, lane.rank]));
  const sums = new Map<string, { text: string; colour: string; us: number }>();
  let total = 0;
  for (const [lane, , length, activity] of detail.critical) {
    const key = `${lane} ${activity}`;
    const part = sums.get(key) ?? { text: `${ACTIVITIES.get(activity)?.name ?? activity} of rank ${ranks.get(lane) ?? "?"}`, colour: ACTIVITIES.get(activity)?.colour ?? "#888", us: 0 };
    part.us += length;
    total += length;
    sums.set(key, part);
  }
  const parts = [...sums.values()].sort((a, b) => b.us - a.us);
  return (
    <Card title="Critical path" aside={`${duration(total)} of ${duration(detail.us)}`}>
      <div class="bar" role="img" aria-label="Parts of the critical path">
        {parts.map((part) => (
          <i key={part.text} style={{ background: part.colour, width: `${(100 * part.us) / total}%` }} title={`${part.text}: ${duration(part.us)}`} />
        ))}
      </div>
      <ol class="ranking">
        {parts.slice(0, 6).map((part) => (
          <li key={part.text}>
            <i style={{ background: part.colour }} />
            <span>{part.text}</span>
            <b>{duration(part.us)}</b>
            <span class="share">{percent(part.us / total)}</span>
          </li>
        ))}
      </ol>
    </Card>
  );
}

function Detail({ detail, chosen }: { detail: StepDetail; chosen: number }) {
  const [byKind, setByKind] = useState(false);
  const [critical, setCritical] = useState(true);
  const steps = detail.steps ?? [];
  const at = steps.indexOf(detail.step ?? -1);
  const choose = (index: number): void => {
    const step = steps[index];
    if (step !== undefined) amend({ step: index === steps.length - 1 && chosen === 0 ? "" : step });
  };
  const back = (): void => choose(at - 1);
  const on = (): void => choose(at + 1);
  usePageKeys({ left: back, right: on });
  if (detail.step === null)
    return (
      <Card title="Step">
        <Empty title="No step is recorded in detail yet">Ranks detail one step in two seconds or fewer. The first one appears here.</Empty>
      </Card>
    );
  return (
    <>
      <Card
        title={
          <>
            Step {detail.step} <small>{duration(detail.us)}</small>
          </>
        }
        aside={
          <div class="tools">
            <button type="button" onClick={back} disabled={at <= 0} title="Step before (←)">
              ←
            </button>
            <select aria-label="Step" value={String(detail.step)} onChange={(event) => amend({ step: event.currentTarget.value })}>
              {[...steps].reverse().map((step) => (
                <option key={step} value={String(step)}>
                  step {step}
                </option>
              ))}
            </select>
            <button type="button" onClick={on} disabled={at < 0 || at === steps.length - 1} title="Step after (→)">
              →
            </button>
            {!source.exported && (
              <button type="button" aria-pressed={chosen === 0} onClick={() => amend({ step: chosen === 0 ? detail.step! : "" })}>
                newest
              </button>
            )}
            <button type="button" aria-pressed={byKind} onClick={() => setByKind(!byKind)}>
              by kind
            </button>
            <button type="button" aria-pressed={critical} onClick={() => setCritical(!critical)}>
              critical path
            </button>
            <button type="button" onClick={() => download(`step-${detail.step}.trace.json`, trace(detail))} title="For ui.perfetto.dev or chrome://tracing">
              ↓ trace
            </button>
          </div>
        }
      >
        <Legend
          items={[
            { name: "exposed communication", colour: EXPOSED },
            ...WORK.filter((activity) => activity.key !== "out").map(({ name, colour }) => ({ name, colour })),
          ]}
        />
        <Lanes detail={detail} byKind={byKind} critical={critical} />
        <p class="note">
          {detail.total > detail.lanes.length && `${detail.lanes.length} of ${detail.total} ranks are drawn. `}
          Ctrl and wheel, or + and −, zoom; dragging moves; a double click shows the whole step.
        </p>
      </Card>
      <Critical detail={detail} />
    </>
  );
}

export function StepPage() {
  const chosen = Number(route.value.query.get("step") ?? "") || 0;
  // A step that is chosen does not change; only the list of steps grows.
  const polled = usePolled<StepDetail & { cursor?: string }>("step", { number: chosen, limit: 64 }, (old, next) =>
    old && old.step === next.step && old.lanes.length === next.lanes.length && old.steps?.length === next.steps?.length ? old : next,
  );
  useEffect(() => {
    if (polled.error?.status === 404 && chosen > 0) amend({ step: "" });
  }, [polled.error]);
  return <Loaded polled={polled}>{(detail) => <Detail detail={detail} chosen={chosen} />}</Loaded>;
}
