// Numbers, times and sizes as people read them.

const DASH = "–";
type Maybe = number | null | undefined;

function digits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

export function duration(us: Maybe): string {
  if (us == null || !Number.isFinite(us)) return DASH;
  if (us === 0) return "0 s";
  const size = Math.abs(us);
  if (size < 1e3) return `${Math.round(us)} µs`;
  if (size < 1e6) return `${digits(us / 1e3)} ms`;
  if (size < 120e6) return `${digits(us / 1e6)} s`;
  const minutes = Math.floor(size / 60e6);
  const [days, hours] = [Math.floor(minutes / 1440), Math.floor(minutes / 60) % 24];
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes % 60} min`;
  return `${minutes} min ${Math.floor(size / 1e6) % 60} s`;
}

export function bytes(value: Maybe): string {
  if (value == null || !Number.isFinite(value)) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  for (; Math.abs(value) >= 1000 && unit + 1 < units.length; ++unit) value /= 1000;
  return `${unit === 0 ? Math.round(value) : digits(value)} ${units[unit]}`;
}

// The text of an axis's value without trailing zeros: "1.50 s" becomes "1.5 s".
export function tick(text: string): string {
  return text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
}

export function ago(us: number): string {
  return us < 2e6 ? "just now" : `${duration(Math.floor(us / 1e6) * 1e6)} ago`;
}

export function percent(part: Maybe, places = 0): string {
  return part == null || !Number.isFinite(part) ? DASH : `${(100 * part).toFixed(places)} %`;
}

export function count(value: Maybe): string {
  return value == null ? DASH : Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

export function plain(value: Maybe | string): string {
  if (value == null) return DASH;
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return Number(value.toPrecision(4)).toString();
}

const two = (value: number): string => String(value).padStart(2, "0");

export function clock(us: number): string {
  const at = new Date(us / 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function day(us: number): string {
  const at = new Date(us / 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(us)}`;
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}
