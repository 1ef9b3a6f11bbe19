import { dark } from "./store";

// Okabe and Ito's colours, which colour-blind people tell apart. Vermilion means exposed communication, and nothing else in a chart.
export interface Activity {
  key: string;
  name: string;
  colour: string;
}

export const EXPOSED = "#d55e00";

export const WORK: Activity[] = [
  { key: "fwd", name: "forward", colour: "#56b4e9" },
  { key: "bwd", name: "backward", colour: "#0072b2" },
  { key: "opt", name: "optimizer", colour: "#009e73" },
  { key: "load", name: "loader", colour: "#f0e442" },
  { key: "save", name: "save", colour: "#cc79a7" },
  { key: "out", name: "elsewhere", colour: "#a3a8ae" },
];

export const WAITS: Activity[] = [
  { key: "gather", name: "gather", colour: EXPOSED },
  { key: "reduce", name: "reduce", colour: EXPOSED },
  { key: "window", name: "window", colour: EXPOSED },
  { key: "sync", name: "sync", colour: EXPOSED },
];

export const ACTIVITIES = new Map([...WORK, ...WAITS].map((activity) => [activity.key, activity]));

// For series without a meaning of their own, as of metrics or ranks.
const LIGHT = ["#0072b2", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#8a6d00", "#5b5ea6", "#7f8790"];

const DARK = ["#56b4e9", "#2fc298", "#e69f00", "#e08fc0", "#4f93d8", "#c9a227", "#9a9be0", "#a3a8ae"];

export function seriesColour(index: number): string {
  const colours = dark.value ? DARK : LIGHT;
  return colours[index % colours.length]!;
}
export const SERIES_COLOURS = LIGHT.length;

// The signs of events in charts, by kind. The more important kinds come first: of two signs in one place, the first one is drawn.
export const MARKS = new Map<string, { colour: string; sign: string; name: string }>([
  ["death", { colour: "#d9483b", sign: "✕", name: "death" }],
  ["not_finite", { colour: "#d9483b", sign: "!", name: "not finite" }],
  ["error", { colour: "#d9483b", sign: "!", name: "error" }],
  ["generation", { colour: "#8e6bbf", sign: "◆", name: "membership" }],
  ["verdict", { colour: "#e69f00", sign: "●", name: "verdict" }],
  ["clock", { colour: "#7f8790", sign: "◷", name: "clock" }],
  ["load", { colour: "#cc79a7", sign: "▴", name: "load" }],
  ["save", { colour: "#cc79a7", sign: "▾", name: "checkpoint" }],
]);
