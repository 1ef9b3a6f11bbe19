// Charts that grow: an answer of the server replaces the last bucket of what is there, and goes on behind it.
import type { ChartAnswer, Memory, Metrics, Steps } from "./types";

// How many values of the old x stay: those before the first bucket that is new.
function kept(old: number[], answer: ChartAnswer): number {
  let size = old.length;
  while (size > 0 && old[size - 1]! >= answer.since) --size;
  return size;
}

export function mergeSteps(old: Steps | null, next: Steps): Steps {
  if (!old || next.reset) return next;
  const size = kept(old.columns["step"]!, next);
  const columns = Object.fromEntries(Object.entries(next.columns).map(([name, values]) => [name, [...old.columns[name]!.slice(0, size), ...values]]));
  return { ...next, columns };
}

type Named = { values: (number | null)[] };

// Joins series by name: one that is absent on a side has no values there.
function join<S extends Named>(old: S[], next: S[], keep: number, added: number, name: (series: S) => string): S[] {
  const gap = (size: number): null[] => new Array<null>(size).fill(null);
  const fresh = new Map(next.map((series) => [name(series), series]));
  const out = old.map((series) => {
    const more = fresh.get(name(series));
    fresh.delete(name(series));
    return { ...series, ...more, values: [...series.values.slice(0, keep), ...(more?.values ?? gap(added))] };
  });
  return [...out, ...[...fresh.values()].map((series) => ({ ...series, values: [...gap(keep), ...series.values] }))];
}

export function mergeMetrics(old: Metrics | null, next: Metrics): Metrics {
  if (!old || next.reset) return next;
  const size = kept(old.steps, next);
  const series = join(old.series, next.series, size, next.steps.length, (one) => one.name);
  const before = new Map(old.series.map((one) => [one.name, one.not_finite]));
  for (const one of series) one.not_finite = Math.max(one.not_finite, before.get(one.name) ?? 0);
  return { ...next, steps: [...old.steps.slice(0, size), ...next.steps], series };
}

export function mergeMemory(old: Memory | null, next: Memory): Memory {
  if (!old || next.reset) return next;
  const size = kept(old.t, next);
  return {
    ...next,
    t: [...old.t.slice(0, size), ...next.t],
    series: join(old.series, next.series, size, next.t.length, (s) => s.id),
    hosts: join(old.hosts, next.hosts, size, next.t.length, (s) => s.host),
  };
}
