// What the server's views contain (scheduler/runs/views/views.h).
export interface Verdict {
  code: string;
  sentence: string;
  state: string;
  rank?: number | null;
  host?: string;
  since_step?: number;
  since?: number;
  cost?: number | null;
  evidence?: string[];
  next?: string;
}

export interface Summary {
  name: string;
  state: string;
  verdicts: Verdict[];
  step: number;
  world: number;
  generation: number;
  living: number;
  processes: number;
  hosts: number;
  begin: number;
  last: number;
  now: number;
  us: number | null;
  exposed: number | null;
  goodput: number | null;
  metrics: Record<string, number | string>;
  events: number;
  version: string;
  checkpoint: string;
  end?: { code: number; cause: string; retryable: boolean; rank: number | null; unix_s: number };
}

export interface Mark {
  t: number;
  step: number;
  kind: string;
  text: string;
}

export interface ChartAnswer {
  reset: boolean;
  cursor: string;
  since: number; // the first x of the answer
  width: number;
}

export interface Steps extends ChartAnswer {
  columns: Record<string, number[]>;
  marks: Mark[];
  first: number;
  last: number;
}

export interface Metrics extends ChartAnswer {
  steps: number[];
  series: { name: string; values: (number | null)[]; not_finite: number }[];
  left_out: number;
}

type Values = { values: (number | null)[] };
export interface Memory extends ChartAnswer {
  t: number[];
  // kinds and predicted: bytes by kind after the first step
  series: ({ id: string; rank: number; host: string; role: string; kinds?: Record<string, number>; predicted?: Record<string, number> } & Values)[];
  hosts: ({ host: string; total: number } & Values)[];
  total: number;
  offset: number;
}

export interface Table<Row> {
  rows: Row[];
  total: number;
  offset: number;
  cursor: string;
}

export interface Worker {
  id: string;
  rank: number;
  host: string;
  pid: number;
  life: string;
  step: number;
  own: (number | null)[];
  us: number | null;
  exposed: number | null;
  score: number | null;
  activity?: string;
  unit?: string;
  for_us?: number;
  rss?: number;
  cpu?: number | null;
  runq?: number | null;
}

export interface RunEvent {
  t: number;
  kind: string;
  rank: number;
  host: string;
  role: string;
  text: string;
  fields: Record<string, unknown>;
}

export interface Checkpoint {
  t: number;
  step: number;
  path: string;
  bytes: number;
  us: number;
  ranks: number;
  latest: boolean;
  verify: string;
  load: string;
}

export type Span = [activity: string, unit: number, from: number, length: number];
export interface StepDetail {
  step: number | null;
  steps?: number[];
  begin: number;
  us: number;
  units: string[];
  lanes: { rank: number; host: string; lane: number; spans: Span[] }[];
  total: number;
  critical: [lane: number, from: number, length: number, activity: string][];
}

export interface HealthProcess {
  id: string;
  role: string;
  rank: number;
  host: string;
  pid: number;
  device: string;
  argv: string[];
  start: number;
  life: string;
  last: number;
  rss?: number;
  faults?: number;
  skipped_lines: number;
}

export interface HealthHost {
  host: string;
  processes: number;
  clock_jumps: number;
  recording_stops: number;
  disk_free?: number;
  free?: number;
  total?: number;
  psi_cpu?: number;
  psi_io?: number;
  psi_mem?: number;
}

export interface RunRow {
  name: string;
  state: string;
  step: number;
  world: number;
  last: number;
  sentence: string;
}
