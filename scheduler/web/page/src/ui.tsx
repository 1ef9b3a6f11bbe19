// Small parts of which pages are built.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Failure } from "./source";
import type { Polled } from "./store";

type Children = { children?: ComponentChildren };

export function Card(props: Children & { title?: ComponentChildren; aside?: ComponentChildren; flush?: boolean; wide?: boolean }) {
  return (
    <section class={`card${props.flush ? " flush" : ""}${props.wide ? " wide" : ""}`}>
      {(props.title || props.aside) && (
        <header>
          <h2>{props.title}</h2>
          <div class="aside">{props.aside}</div>
        </header>
      )}
      {props.children}
    </section>
  );
}

export function Tile(props: { name: string; value: string; note?: string | undefined; tone?: "good" | "bad" | "alarm" | undefined }) {
  return (
    <div class="tile">
      <span class="name">{props.name}</span>
      <strong class={props.tone ?? ""}>{props.value}</strong>
      <span class="note">{props.note ?? "\u00a0"}</span>
    </div>
  );
}

export function Legend(props: { items: { name: string; colour: string; value?: string; on?: boolean; toggle?: () => void }[] }) {
  return (
    <ul class="legend">
      {props.items.map((item) => (
        <li key={item.name} class={item.on === false ? "off" : ""}>
          {item.toggle ? (
            <button type="button" onClick={item.toggle} aria-pressed={item.on !== false}>
              <i style={{ background: item.colour }} />
              {item.name}
            </button>
          ) : (
            <span>
              <i style={{ background: item.colour }} />
              {item.name}
            </span>
          )}
          {item.value && <b>{item.value}</b>}
        </li>
      ))}
    </ul>
  );
}

export function Empty(props: Children & { title: string }) {
  return (
    <div class="empty">
      <strong>{props.title}</strong>
      {props.children && <p>{props.children}</p>}
    </div>
  );
}

export function Problem(props: { error: Failure }) {
  return (
    <div class="empty" role="alert">
      <strong>{props.error.message}</strong>
      {props.error.hint && <p>{props.error.hint}</p>}
    </div>
  );
}

// The view's content, or why there is none yet.
export function Loaded<T>(props: { polled: Polled<T>; children: (data: T) => ComponentChildren }) {
  const { data, error } = props.polled;
  if (data !== null) return <>{props.children(data)}</>;
  return error ? <Problem error={error} /> : <div class="empty waiting">reading the run …</div>;
}

export function Pill(props: Children & { tone: string; title?: string }) {
  return (
    <span class={`pill ${props.tone}`} title={props.title}>
      {props.children}
    </span>
  );
}

const LIFE_TONES: Record<string, string> = { alive: "good", silent: "warn", gone: "bad", ended: "quiet", unknown: "quiet" };
export function Life(props: { life: string }) {
  return <Pill tone={LIFE_TONES[props.life] ?? "quiet"}>{props.life}</Pill>;
}

// A command to copy.
export function Command(props: { text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(props.text);
      setCopied(true);
      setTimeout(() => setCopied(false), 1200);
    } catch {
      // without permission the text can still be selected
    }
  };
  return (
    <span class="command">
      <code>{props.text}</code>
      <button type="button" onClick={() => void copy()} title="Copy">
        {copied ? "copied" : "copy"}
      </button>
    </span>
  );
}

// Minimum, quartiles and maximum on a scale that all rows share.
export function Box(props: { values: (number | null)[]; low: number; high: number; usual: number }) {
  const at = (value: number): number => Math.min((100 * (value - props.low)) / Math.max(props.high - props.low, 1), 100);
  const [min, q25, median, q75, max] = props.values;
  if (min == null || q25 == null || median == null || q75 == null || max == null) return null;
  return (
    <svg class="box" viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">
      <line class="usual" x1={at(props.usual)} x2={at(props.usual)} y1="0" y2="14" />
      <line x1={at(min)} x2={at(max)} y1="7" y2="7" />
      <rect x={at(q25)} width={Math.max(at(q75) - at(q25), 0.6)} y="3" height="8" />
      <line class="median" x1={at(median)} x2={at(median)} y1="2" y2="12" />
    </svg>
  );
}
