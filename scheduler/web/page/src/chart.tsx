// A chart of uPlot in the page's colours: series or stacked areas, marks of events, a tooltip, and zoom by dragging.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { clock, tick as short } from "./format";
import { MARKS } from "./palette";
import { dark } from "./store";
import type { Mark } from "./types";

export interface Column {
  name: string;
  colour: string;
  values: (number | null | undefined)[];
  dash?: boolean;
}

interface Options {
  x: number[];
  columns: Column[];
  stacked?: boolean;
  time?: boolean; // x is seconds since 1970, not steps
  height?: number;
  value: (value: number | null | undefined) => string;
  marks?: Mark[];
  zero?: boolean; // the axis begins at 0
  top?: number; // the axis ends there; higher values are cut off
  log?: boolean;
  sync?: string;
  onZoom?: (from: number, to: number) => void;
  onReset?: () => void;
  label: string;
}

const css = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Areas lie on each other: each is drawn down to zero, the highest first, so that the later ones cover its lower part.
function stack(columns: Column[], length: number): (number | null)[][] {
  const sums: (number | null)[][] = [];
  let below = new Array<number>(length).fill(0);
  for (const column of columns) {
    below = below.map((sum, i) => sum + (column.values[i] ?? 0));
    sums.push(below);
  }
  return sums.reverse();
}

function dataOf(options: Options): uPlot.AlignedData {
  const { x, columns, stacked } = options;
  return [x, ...(stacked ? stack(columns, x.length) : columns.map((column) => column.values))] as uPlot.AlignedData;
}

function drawMarks(u: uPlot, marks: Mark[]): void {
  const { ctx } = u;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.font = `bold ${12 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.lineWidth = ratio;
  const signs: number[] = [];
  const weights = [...MARKS.keys()];
  for (const mark of [...marks].sort((a, b) => weights.indexOf(a.kind) - weights.indexOf(b.kind))) {
    const style = MARKS.get(mark.kind);
    const x = u.valToPos(mark.step, "x", true);
    if (!style || x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = style.colour;
    ctx.globalAlpha = 0.75;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, u.bbox.top);
    ctx.lineTo(x, u.bbox.top + u.bbox.height);
    ctx.stroke();
    if (signs.every((sign) => Math.abs(sign - x) > 9 * ratio)) {
      ctx.globalAlpha = 1;
      ctx.fillText(style.sign, x, u.bbox.top - 4 * ratio);
      signs.push(x);
    }
  }
  ctx.restore();
}

function nearMarks(u: uPlot, marks: Mark[], left: number): Mark[] {
  return marks.filter((mark) => Math.abs(u.valToPos(mark.step, "x") - left) < 5).slice(0, 3);
}

function fillTip(tip: HTMLElement, u: uPlot, options: Options): void {
  const { idx, left } = u.cursor;
  if (idx == null || left == null || left < 0) {
    tip.hidden = true;
    return;
  }
  tip.replaceChildren();
  const row = (text: string, value: string, colour?: string): void => {
    const line = document.createElement("div");
    const name = document.createElement("span");
    if (colour) {
      const dot = document.createElement("i");
      dot.style.background = colour;
      name.append(dot);
    }
    name.append(text);
    const number = document.createElement("b");
    number.textContent = value;
    line.append(name, number);
    tip.append(line);
  };
  const at = options.x[idx]!;
  row(options.time ? clock(at * 1e6) : `step ${at}`, "");
  const order = options.stacked ? [...options.columns].reverse() : options.columns;
  for (const column of order.slice(0, 12)) row(column.name, options.value(column.values[idx]), column.colour);
  if (order.length > 12) row(`and ${order.length - 12} more`, "");
  for (const mark of nearMarks(u, options.marks ?? [], left)) {
    const line = document.createElement("p");
    line.textContent = `${MARKS.get(mark.kind)?.sign ?? ""} ${mark.text}`;
    tip.append(line);
  }
  tip.hidden = false;
  const room = u.over.clientWidth - left;
  tip.style.left = `${u.over.offsetLeft + (room > tip.offsetWidth + 24 ? left + 14 : left - tip.offsetWidth - 14)}px`;
  tip.style.top = `${u.over.offsetTop + 6}px`;
}

export function Chart(options: Options) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(options);
  latest.current = options;
  const shape = JSON.stringify([dark.value, options.columns.map((c) => [c.name, c.colour]), options.stacked, options.log, options.height]);

  useEffect(() => {
    const element = box.current!;
    const { columns, stacked, time, zero, log, sync } = latest.current;
    const [ink, grid, surface] = [css("--muted"), css("--grid"), css("--card")];
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    const font = "11px system-ui, sans-serif";
    const axis = { stroke: ink, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
    const series = (stacked ? [...columns].reverse() : columns).map((column): uPlot.Series => ({
      label: column.name,
      stroke: column.colour,
      width: stacked ? 0 : 1.6,
      ...(stacked ? { fill: column.colour } : {}),
      ...(column.dash ? { dash: [5, 4] } : {}),
      points: { show: !stacked && latest.current.x.length < 3, size: 5 },
    }));
    const u = new uPlot(
      {
        width: Math.max(element.clientWidth, 50),
        height: latest.current.height ?? 190,
        legend: { show: false },
        padding: [16, time ? 28 : 12, 0, 0],
        cursor: {
          ...(sync ? { sync: { key: sync } } : {}),
          drag: { x: Boolean(latest.current.onZoom), y: false, setScale: false },
          points: { show: !stacked, size: 6, stroke: surface },
        },
        select: { show: true, left: 0, top: 0, width: 0, height: 0 },
        scales: {
          x: { time: Boolean(time) },
          y: log
            ? { distr: 3 }
            : {
                range: (_, low, highest) => {
                  const high = Math.min(highest, latest.current.top ?? Infinity);
                  return [zero ? 0 : low - (high - low || Math.abs(high) || 1) * 0.06, high + (high - (zero ? 0 : low) || Math.abs(high) || 1) * 0.08];
                },
              },
        },
        axes: [
          { ...axis, space: 76, size: 22, ...(time ? { values: (_: uPlot, at: number[]) => at.map((one) => clock(one * 1e6)) } : { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7] }) },
          { ...axis, size: 64, space: 34, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : short(latest.current.value(tick)))) },
        ],
        series: [{}, ...series],
        hooks: {
          draw: [(self) => drawMarks(self, latest.current.marks ?? [])],
          setCursor: [(self) => fillTip(tip, self, latest.current)],
          setSelect: [
            (self) => {
              if (self.select.width < 4) return;
              const from = Math.max(1, Math.round(self.posToVal(self.select.left, "x")));
              const to = Math.round(self.posToVal(self.select.left + self.select.width, "x"));
              self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              latest.current.onZoom?.(from, Math.max(to, from));
            },
          ],
        },
      },
      dataOf(latest.current),
      element,
    );
    u.root.append(tip);
    u.over.addEventListener("dblclick", () => latest.current.onReset?.());
    u.over.addEventListener("mouseleave", () => (tip.hidden = true));
    plot.current = u;
    const resized = new ResizeObserver(() => u.setSize({ width: Math.max(element.clientWidth, 50), height: u.height }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      u.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => plot.current?.setData(dataOf(options)), [options.x, options.columns, options.marks]);
  return <div class="chart" ref={box} role="img" aria-label={options.label} />;
}
