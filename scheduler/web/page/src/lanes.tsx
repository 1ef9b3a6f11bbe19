// The lanes of a step on a canvas: two tracks per rank, work above and waits below, or one track per kind. The critical path has a dark
// outline and joins lanes where it changes the rank. Wheel with Ctrl zooms, dragging moves.
import { useEffect, useRef } from "preact/hooks";
import { duration, tick } from "./format";
import { ACTIVITIES, WAITS, WORK } from "./palette";
import { dark } from "./store";
import type { StepDetail } from "./types";

const LABEL = 112;
const AXIS = 26;
const WAIT_KEYS = new Set(WAITS.map((activity) => activity.key));
const KINDS = [...WORK.filter((activity) => activity.key !== "out"), ...WAITS.filter((activity) => activity.key !== "sync")].map((activity) => activity.key);

interface Props {
  detail: StepDetail;
  byKind: boolean;
  critical: boolean;
}

interface Hit {
  x: number;
  y: number;
  width: number;
  height: number;
  text: string[];
}

const css = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function ticks(from: number, to: number, room: number): number[] {
  const wanted = (to - from) / Math.max(room / 90, 1);
  const magnitude = 10 ** Math.floor(Math.log10(Math.max(wanted, 1)));
  const step = [1, 2, 5, 10].map((factor) => factor * magnitude).find((one) => one >= wanted) ?? wanted;
  const out: number[] = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) out.push(at);
  return out;
}

// Light text on dark colours and dark text on light ones.
function inkOn(colour: string): string {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)) as [number, number, number];
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10202e" : "#ffffff";
}

class Drawing {
  readonly hits: Hit[] = [];
  readonly height: number;
  private readonly track: number;
  private readonly rank: number;

  constructor(private readonly props: Props) {
    const many = props.detail.lanes.length > 16;
    this.track = props.byKind ? (many ? 7 : 11) : many ? 9 : 17;
    this.rank = (props.byKind ? KINDS.length : 2) * this.track + (many ? 5 : 10);
    this.height = AXIS + props.detail.lanes.length * this.rank + 6;
  }

  private top(index: number): number {
    return AXIS + index * this.rank;
  }
  private trackOf(activity: string): number {
    if (!this.props.byKind) return WAIT_KEYS.has(activity) ? 1 : 0;
    const kind = KINDS.indexOf(activity);
    return kind >= 0 ? kind : KINDS.length - 1; // waits without a track of their own
  }

  draw(canvas: HTMLCanvasElement, width: number, from: number, to: number): void {
    const ratio = devicePixelRatio;
    canvas.width = width * ratio;
    canvas.height = this.height * ratio;
    canvas.style.height = `${this.height}px`;
    const g = canvas.getContext("2d")!;
    g.scale(ratio, ratio);
    const [ink, muted, grid, card] = [css("--ink"), css("--muted"), css("--grid"), css("--card")];
    const x = (us: number): number => LABEL + ((us - from) / (to - from)) * (width - LABEL - 8);
    g.fillStyle = card;
    g.fillRect(0, 0, width, this.height);
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    g.textAlign = "center";
    for (const at of ticks(from, to, width - LABEL)) {
      g.strokeStyle = grid;
      g.beginPath();
      g.moveTo(Math.round(x(at)) + 0.5, AXIS - 6);
      g.lineTo(Math.round(x(at)) + 0.5, this.height);
      g.stroke();
      g.fillStyle = muted;
      g.fillText(tick(duration(at)), x(at), 10);
    }
    g.save();
    g.beginPath();
    g.rect(LABEL, AXIS - 4, width - LABEL, this.height);
    g.clip();
    this.hits.length = 0;
    this.props.detail.lanes.forEach((lane, index) => this.lane(g, lane, index, x, width));
    if (this.props.critical) this.path(g, x, ink, card);
    g.restore();
    this.labels(g, ink, muted);
  }

  private lane(g: CanvasRenderingContext2D, lane: StepDetail["lanes"][number], index: number, x: (us: number) => number, width: number): void {
    for (const [activity, unit, begin, length] of lane.spans) {
      const style = ACTIVITIES.get(activity);
      const [left, right] = [x(begin), x(begin + length)];
      if (!style || right < LABEL || left > width) continue;
      const [top, size] = [this.top(index) + this.trackOf(activity) * this.track, Math.max(right - left - 0.6, 0.6)];
      g.fillStyle = style.colour;
      g.fillRect(left, top, size, this.track - 1.5);
      const name = unit >= 0 ? this.props.detail.units[unit] || "root" : style.name;
      this.hits.push({ x: left, y: top, width: size, height: this.track, text: [`${style.name} ${unit >= 0 ? name : ""}`, `rank ${lane.rank} on ${lane.host}`, `${duration(length)}, from ${duration(begin)}`] });
      if (size < 34 || this.track < 11) continue;
      g.fillStyle = inkOn(style.colour);
      g.textAlign = "center";
      // The end of a unit's name says more than its begin.
      let shown = name;
      while (shown.length > 2 && g.measureText(shown).width > size - 7) shown = `…${shown.slice(shown.startsWith("…") ? 2 : 1)}`;
      if (shown.length > 2 || shown === name) g.fillText(shown, left + size / 2, top + (this.track - 1) / 2);
    }
  }

  private path(g: CanvasRenderingContext2D, x: (us: number) => number, ink: string, card: string): void {
    const rows = new Map(this.props.detail.lanes.map((lane, index) => [lane.lane, index]));
    let before: { x: number; y: number } | null = null;
    g.lineJoin = "round";
    for (const [lane, from, length, activity] of this.props.detail.critical) {
      const index = rows.get(lane);
      if (index === undefined) {
        before = null;
        continue;
      }
      const y = this.top(index) + this.trackOf(activity) * this.track;
      const [left, right, middle] = [x(from), x(from + length), y + (this.track - 1.5) / 2];
      const strokes = (): void => {
        g.beginPath();
        g.rect(left, y - 0.5, Math.max(right - left, 0.5), this.track - 0.5);
        if (before && Math.abs(before.y - middle) > 1) {
          g.moveTo(before.x, before.y);
          g.lineTo(left, middle);
        }
        g.stroke();
      };
      g.strokeStyle = card;
      g.lineWidth = 3.5;
      strokes();
      g.strokeStyle = ink;
      g.lineWidth = 1.6;
      strokes();
      before = { x: right, y: middle };
    }
  }

  private labels(g: CanvasRenderingContext2D, ink: string, muted: string): void {
    this.props.detail.lanes.forEach((lane, index) => {
      const top = this.top(index);
      g.textAlign = "left";
      g.fillStyle = ink;
      const small = this.rank < 26;
      const host = lane.host.length > 8 ? `${lane.host.slice(0, 7)}…` : lane.host;
      g.font = `600 ${small ? 10 : 12}px system-ui, sans-serif`;
      g.fillText(`rank ${lane.rank}`, 4, top + (small ? 9 : 8));
      g.font = "11px system-ui, sans-serif";
      g.fillStyle = muted;
      if (!this.props.byKind) {
        if (small) g.fillText(host, 56, top + 9);
        else g.fillText(host, 4, top + 24);
      } else if (this.track >= 9) {
        g.font = "9px system-ui, sans-serif";
        g.textAlign = "right";
        KINDS.forEach((kind, i) => g.fillText(kind, LABEL - 5, top + i * this.track + this.track / 2 - 0.5));
      }
    });
  }

  at(x: number, y: number): Hit | undefined {
    // Waits lie inside their work: the last one drawn is on top.
    return this.hits.findLast((hit) => x >= hit.x && x <= hit.x + Math.max(hit.width, 2) && y >= hit.y && y <= hit.y + hit.height);
  }
}

export function Lanes(props: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const tip = useRef<HTMLDivElement>(null);
  const view = useRef({ from: 0, to: 1, of: -1 });
  const theme = dark.value;

  useEffect(() => {
    const element = canvas.current!;
    const box = element.parentElement!;
    const whole = Math.max(props.detail.us * 1.01, 1);
    if (view.current.of !== props.detail.step) view.current = { from: 0, to: whole, of: props.detail.step ?? -1 };
    const drawing = new Drawing(props);
    const draw = (): void => drawing.draw(element, box.clientWidth, view.current.from, view.current.to);
    const perPixel = (): number => (view.current.to - view.current.from) / (box.clientWidth - LABEL - 8);
    const move = (from: number, length: number): void => {
      const size = Math.min(Math.max(length, 20), whole);
      view.current.from = Math.min(Math.max(from, 0), whole - size);
      view.current.to = view.current.from + size;
      draw();
    };
    let dragged: number | null = null;
    const onWheel = (event: WheelEvent): void => {
      if (!event.ctrlKey && !event.shiftKey) return; // the page scrolls
      event.preventDefault();
      const { from, to } = view.current;
      const centre = from + (event.offsetX - LABEL) * perPixel();
      const factor = 1.0015 ** (event.deltaY || event.deltaX);
      move(centre - (centre - from) * factor, (to - from) * factor);
    };
    const onMove = (event: PointerEvent): void => {
      const label = tip.current!;
      if (dragged !== null) {
        move(view.current.from - (event.offsetX - dragged) * perPixel(), view.current.to - view.current.from);
        dragged = event.offsetX;
      }
      const hit = dragged === null ? drawing.at(event.offsetX, event.offsetY) : undefined;
      label.hidden = !hit;
      if (!hit) return;
      label.replaceChildren(...hit.text.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
      const left = event.offsetX + 14;
      label.style.left = `${left + label.offsetWidth > box.clientWidth ? event.offsetX - label.offsetWidth - 10 : left}px`;
      label.style.top = `${event.offsetY + 14}px`;
    };
    const onDown = (event: PointerEvent): void => {
      dragged = event.offsetX;
      element.setPointerCapture(event.pointerId);
    };
    const onUp = (): void => {
      dragged = null;
    };
    const onLeave = (): void => {
      tip.current!.hidden = true;
    };
    const onDouble = (): void => move(0, whole);
    const onKey = (event: KeyboardEvent): void => {
      const { from, to } = view.current;
      const size = to - from;
      const factor = event.key === "+" ? 0.5 : event.key === "-" ? 2 : 0;
      if (factor > 0) move(from + (size - size * factor) / 2, size * factor);
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    element.addEventListener("pointermove", onMove);
    element.addEventListener("pointerdown", onDown);
    element.addEventListener("pointerup", onUp);
    element.addEventListener("pointerleave", onLeave);
    element.addEventListener("dblclick", onDouble);
    window.addEventListener("keydown", onKey);
    const resized = new ResizeObserver(draw);
    resized.observe(box);
    return () => {
      resized.disconnect();
      window.removeEventListener("keydown", onKey);
      element.removeEventListener("wheel", onWheel);
      element.removeEventListener("pointermove", onMove);
      element.removeEventListener("pointerdown", onDown);
      element.removeEventListener("pointerup", onUp);
      element.removeEventListener("pointerleave", onLeave);
      element.removeEventListener("dblclick", onDouble);
    };
  }, [props.detail, props.byKind, props.critical, theme]);

  return (
    <div class="lanes">
      <canvas ref={canvas} role="img" aria-label={`Lanes of step ${props.detail.step}`} />
      <div class="tip" ref={tip} hidden />
    </div>
  );
}
