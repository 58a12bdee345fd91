// Numbers, times and sizes as text.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const some = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const rate = (value) => (value >= 100 ? whole : some).format(value ?? 0);
export const about = (value, isExact) => (isExact ? "" : "≈ ") + count(value);
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export const percent = (share) => (share > 0 && share < 0.001 ? "< 0.1 %" : `${some.format(100 * share)} %`);

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (value < 1024 || unit === "TiB") return `${unit === "B" || value >= 100 ? whole.format(value) : some.format(value)} ${unit}`;
    value /= 1024;
  }
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${some.format(value / 1000)} s` : `${value >= 10 ? whole.format(value) : some.format(value)} ms`;
}

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${some.format(seconds)} s`;
  if (seconds < 120) return `${whole.format(seconds)} s`;
  if (seconds < 7200) return `${whole.format(seconds / 60)} min`;
  if (seconds < 172800) return `${whole.format(seconds / 3600)} h`;
  return `${whole.format(seconds / 86400)} days`;
}

export function time(ms) {
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? String(ms) : at.toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
}

export const oneLine = (text) => String(text).replace(/\s+/g, " ").trim();
