// Run: what the run does now, where its steps' time goes, and its metrics.
import { Chart } from "../chart";
import { mergeMetrics, mergeSteps } from "../charts";
import { duration, percent, plain, plural } from "../format";
import { EXPOSED, MARKS, WAITS, WORK, seriesColour } from "../palette";
import { amend, route, summary, usePolled } from "../store";
import type { Mark, Metrics, Steps, Summary } from "../types";
import { Card, Empty, Legend, Loaded, Tile } from "../ui";

const POINTS = 400;

function range(): Record<string, number> {
  const out: Record<string, number> = {};
  for (const name of ["from", "to"]) {
    const value = Number(route.value.query.get(name) ?? "");
    if (value > 0) out[name] = value;
  }
  return out;
}

const zoom = {
  onZoom: (from: number, to: number) => amend({ from, to }, false),
  onReset: () => amend({ from: "", to: "" }, false),
  sync: "run",
};

function Tiles({ now }: { now: Summary }) {
  const rate = now.us ? 1e6 / now.us : null;
  const loss = now.metrics["loss"];
  const age = (now.state === "running" ? now.now : now.last) - now.begin;
  return (
    <div class="tiles">
      <Tile name="step" value={now.step > 0 ? String(now.step) : "–"} note={`after ${duration(age)}`} />
      <Tile name="step time" value={duration(now.us)} note={rate ? `${plain(rate)} steps a second` : undefined} />
      <Tile name="exposed" value={percent(now.exposed)} note="waits for others in the last steps" tone={(now.exposed ?? 0) > 0.2 ? "alarm" : undefined} />
      <Tile name="goodput" value={percent(now.goodput, 1)} note="of the run's time in steps" />
      <Tile name="ranks" value={now.state === "running" ? `${now.living} of ${now.world}` : String(now.world)} note={`${plural(now.hosts, "host")} · generation ${now.generation}`} tone={now.state === "running" && now.living < now.world ? "bad" : undefined} />
      <Tile name="loss" value={loss === undefined ? "–" : plain(loss)} note={loss === undefined ? "not reported" : "last step"} tone={typeof loss === "string" ? "bad" : undefined} />
    </div>
  );
}

function MarkLegend({ marks }: { marks: Mark[] }) {
  const kinds = [...new Set(marks.map((mark) => mark.kind))].filter((kind) => MARKS.has(kind));
  if (kinds.length === 0) return null;
  return (
    <ul class="legend marks">
      {kinds.map((kind) => (
        <li key={kind}>
          <span>
            <b style={{ color: MARKS.get(kind)!.colour }}>{MARKS.get(kind)!.sign}</b> {MARKS.get(kind)!.name}
          </span>
        </li>
      ))}
    </ul>
  );
}

const USUAL_PEAK = 4; // times the usual step: higher ones would leave no room for it

// The chart's upper bound, and the number of steps above it: a save or a change of the workers makes a step many times longer.
function peaks(us: number[]): { top: number | undefined; higher: number } {
  const sorted = [...us].sort((a, b) => a - b);
  const top = 1.5 * (sorted[Math.floor(0.9 * (sorted.length - 1))] ?? 0);
  const usual = sorted[Math.floor(sorted.length / 2)] ?? 0;
  if (sorted.length < 20 || sorted[sorted.length - 1]! < USUAL_PEAK * usual) return { top: undefined, higher: 0 };
  return { top, higher: us.filter((one) => one > top).length };
}

function StepTime({ steps }: { steps: Steps }) {
  const columns = steps.columns;
  const x = columns["step"]!;
  if (x.length === 0) return <Empty title="No step has ended yet">A step appears here once its optimizer has run.</Empty>;
  const exposed = x.map((_, i) => WAITS.reduce((sum, activity) => sum + (columns[activity.key]?.[i] ?? 0), 0));
  const last = x.length - 1;
  const total = columns["us"]!.reduce((sum, us) => sum + us, 0) || 1;
  const { top, higher } = peaks(columns["us"]!);
  const work = WORK.filter((activity) => columns[activity.key]!.some((us) => us > 0));
  const parts = [...work.map((activity) => ({ name: activity.name, colour: activity.colour, values: columns[activity.key]! })), { name: "exposed communication", colour: EXPOSED, values: exposed }];
  return (
    <>
      <Legend
        items={[...parts].reverse().map((part) => ({
          name: part.name,
          colour: part.colour,
          value: percent(part.values.reduce((sum, us) => sum + us, 0) / total),
        }))}
      />
      <Chart x={x} columns={parts} stacked zero {...(top ? { top } : {})} height={230} value={duration} marks={steps.marks} label={`Step time by activity, until step ${x[last]}`} {...zoom} />
      <MarkLegend marks={steps.marks} />
      {higher > 0 && <p class="note">{plural(higher, "peak")} higher than the chart; the pointer shows each value.</p>}
    </>
  );
}

function MetricCharts({ metrics, marks }: { metrics: Metrics; marks: Mark[] }) {
  if (metrics.series.length === 0)
    return (
      <Card title="Metrics">
        <Empty title="This run has reported no metrics">
          <code>shoal.train.report(loss=loss)</code> in the training loop draws them here.
        </Empty>
      </Card>
    );
  const first = ["loss", "grad_norm", "lr"];
  const place = (name: string): number => (first.includes(name) ? first.indexOf(name) : first.length);
  const series = [...metrics.series].sort((a, b) => place(a.name) - place(b.name));
  return (
    <>
      <div class="grid two">
        {series.map((one, i) => (
          <Card key={one.name} title={one.name} aside={one.not_finite > 0 ? <b class="bad">not finite {one.not_finite} times</b> : plain(one.values.findLast((value) => value !== null))}>
            <Chart x={metrics.steps} columns={[{ name: one.name, colour: seriesColour(i), values: one.values }]} height={170} value={plain} marks={marks} label={`${one.name} by step`} {...zoom} />
          </Card>
        ))}
      </div>
      {metrics.left_out > 0 && <p class="note">{metrics.left_out} further metrics are not drawn.</p>}
    </>
  );
}

export function RunPage() {
  const within = range();
  const steps = usePolled<Steps>("steps", { points: POINTS, ...within }, mergeSteps);
  const metrics = usePolled<Metrics>("metrics", { points: POINTS, ...within }, mergeMetrics);
  const now = summary.value;
  const zoomed = Object.keys(within).length > 0;
  return (
    <>
      {now && <Tiles now={now} />}
      <Card
        title="Step time"
        aside={
          zoomed ? (
            <button type="button" onClick={zoom.onReset}>
              steps {within["from"]} to {within["to"]} · show all
            </button>
          ) : (
            "mean of the ranks · drag to zoom"
          )
        }
      >
        <Loaded polled={steps}>{(data) => <StepTime steps={data} />}</Loaded>
      </Card>
      <Loaded polled={metrics}>{(data) => <MetricCharts metrics={data} marks={steps.data?.marks ?? []} />}</Loaded>
    </>
  );
}
