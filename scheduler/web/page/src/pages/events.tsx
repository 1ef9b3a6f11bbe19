// Events: what happened, the newest first; a change of the workers with its phases.
import { useState } from "preact/hooks";
import { bytes, clock, day, duration, plural } from "../format";
import { MARKS, seriesColour } from "../palette";
import { amend, route, usePolled } from "../store";
import { Pager } from "../table";
import type { RunEvent, Table } from "../types";
import { Card, Empty, Loaded } from "../ui";

const LIMIT = 100;
type Events = Table<RunEvent> & { kinds: Record<string, number> };

function Phases({ fields }: { fields: Record<string, unknown> }) {
  const phases = Object.entries((fields["phases"] ?? {}) as Record<string, unknown>).filter((one): one is [string, number] => typeof one[1] === "number").sort((a, b) => b[1] - a[1]);
  const total = phases.reduce((sum, [, us]) => sum + us, 0);
  const lost = Number(fields["steps_lost"] ?? 0);
  return (
    <div class="phases">
      {total > 0 && (
        <>
          <div class="bar" role="img" aria-label="Phases of the pause">
            {phases.map(([name, us], i) => (
              <i key={name} style={{ background: seriesColour(i), width: `${(100 * us) / total}%` }} title={`${name}: ${duration(us)}`} />
            ))}
          </div>
          <ul class="legend">
            {phases.map(([name, us], i) => (
              <li key={name}>
                <span>
                  <i style={{ background: seriesColour(i) }} />
                  {name.replaceAll("_", " ")}
                </span>
                <b>{duration(us)}</b>
              </li>
            ))}
          </ul>
        </>
      )}
      <p>
        pause <b>{duration(Number(fields["pause_us"] ?? 0))}</b> · moved <b>{bytes(Number(fields["bytes"] ?? 0))}</b> ·{" "}
        <b class={lost > 0 ? "bad" : "good"}>{plural(lost, "step")} lost</b>
      </p>
    </div>
  );
}

const same = (a: RunEvent, b: RunEvent): boolean => a.kind === b.kind && (a.text === b.text || ((a.kind === "save" || a.kind === "load") && a.fields["path"] === b.fields["path"]));

// Processes that report the same within two seconds, or one checkpoint, are one entry.
function grouped(rows: RunEvent[]): { event: RunEvent; ranks: number[] }[] {
  const out: { event: RunEvent; ranks: number[] }[] = [];
  for (const event of rows) {
    const last = out[out.length - 1];
    if (last && same(last.event, event) && last.event.t - event.t < 2e6) last.ranks.push(event.rank);
    else out.push({ event, ranks: [event.rank] });
  }
  return out;
}

function who(event: RunEvent, ranks: number[]): string {
  if (ranks.length > 1) {
    const sorted = [...ranks].sort((a, b) => a - b);
    const whole = sorted[sorted.length - 1]! - sorted[0]! === sorted.length - 1 && sorted.length > 2;
    return `ranks ${whole ? `${sorted[0]} to ${sorted[sorted.length - 1]}` : sorted.slice(0, 12).join(", ") + (sorted.length > 12 ? " …" : "")}`;
  }
  return (event.rank >= 0 ? `rank ${event.rank}` : event.role || "process") + (event.host ? ` on ${event.host}` : "");
}

// The text of an event. For a kind without a sentence of its own the server sends the fields as JSON, which is shown as names and values.
function textOf(event: RunEvent): string {
  if (!event.text.startsWith("{")) return event.text;
  const fields = Object.entries(event.fields).filter(([name]) => name !== "t" && name !== "kind");
  return fields.map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "object" ? JSON.stringify(value) : String(value)}`).join(" · ");
}

function Entry({ event, ranks }: { event: RunEvent; ranks: number[] }) {
  const mark = MARKS.get(event.kind);
  const evidence = Array.isArray(event.fields["evidence"]) ? (event.fields["evidence"] as unknown[]) : [];
  return (
    <li class="event">
      <time title={day(event.t)}>{clock(event.t)}</time>
      <span class="sign" style={{ color: mark?.colour ?? "var(--muted)" }} aria-hidden="true">
        {mark?.sign ?? "·"}
      </span>
      <div>
        <span class="kind">{event.kind.replaceAll("_", " ")}</span>
        <span class="who">{who(event, ranks)}</span>
        <p>{textOf(event)}</p>
        {event.kind === "generation" && <Phases fields={event.fields} />}
        {evidence.map((line) => (
          <p class="note" key={String(line)}>
            {String(line)}
          </p>
        ))}
      </div>
    </li>
  );
}

export function EventsPage() {
  const query = route.value.query;
  const [kind, contains, offset] = [query.get("kind") ?? "", query.get("contains") ?? "", Number(query.get("offset") ?? "") || 0];
  const polled = usePolled<Events>("events", { limit: LIMIT, offset, ...(kind ? { kind } : {}), ...(contains ? { contains } : {}) });
  const [typed, setTyped] = useState(contains);
  return (
    <Card
      title="Events"
      aside={
        <div class="tools">
          <select aria-label="Kind of event" value={kind} onChange={(event) => amend({ kind: event.currentTarget.value, offset: "" })}>
            <option value="">all kinds</option>
            {Object.entries(polled.data?.kinds ?? {}).map(([name, number]) => (
              <option key={name} value={name}>
                {name.replaceAll("_", " ")} ({number})
              </option>
            ))}
          </select>
          <input
            type="search"
            placeholder="contains …"
            aria-label="Text in events"
            value={typed}
            onInput={(event) => setTyped(event.currentTarget.value)}
            onChange={(event) => amend({ contains: event.currentTarget.value, offset: "" })}
          />
        </div>
      }
    >
      <Loaded polled={polled}>
        {(data) =>
          data.rows.length === 0 ? (
            <Empty title={kind || contains ? "No event fits the filter" : "Nothing has happened yet"} />
          ) : (
            <>
              <ol class="events">
                {grouped(data.rows).map(({ event, ranks }, i) => (
                  <Entry key={`${event.t} ${event.kind} ${event.rank} ${i}`} event={event} ranks={ranks} />
                ))}
              </ol>
              <Pager offset={offset} limit={LIMIT} total={data.total} shown={data.rows.length} go={(to) => amend({ offset: to || "" })} />
            </>
          )
        }
      </Loaded>
    </Card>
  );
}
