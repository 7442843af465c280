// Numbers, sizes, times and durations as a person reads them.

const numbers = new Intl.NumberFormat("en");
export const count = (n) => numbers.format(n ?? 0);

export function rateText(perSecond) {
  if (perSecond === null) return "–";
  if (perSecond === 0) return "0";
  if (perSecond < 10) return perSecond.toFixed(1);
  return numbers.format(Math.round(perSecond));
}

export function bytes(n) {
  if (n < 0) return "unknown";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit++;
  }
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

function duration(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const short = (ms) => duration(ms).split(" ").slice(0, 2).join("\u00a0");
export const agoText = (now, at) => (at ? `${short(now - at)} ago` : "never");
export const inText = (now, at) => (at > now ? `in ${short(at - now)}` : "now");

// time reads a time of the API; null when it is absent or Go's zero time.
export function time(text) {
  if (!text || text.startsWith("0001-")) return null;
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? null : ms;
}

// Times are in UTC, as in the log and on the command line.
export const stamp = (ms) => new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z/, " UTC");
export const clock = (ms) => stamp(ms).slice(11);
export const precise = (text) => new Date(text).toISOString().replace("T", " ").replace("Z", " UTC");

// seconds is a duration in the unit that suits it.
export function seconds(s) {
  if (s === 0) return "0";
  if (s < 0.001) return `${(s * 1000).toFixed(1)} ms`;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  return duration(s * 1000);
}
