// Numbers, times and sizes in words.

const numbers = new Intl.NumberFormat("en");
export const number = (value) => numbers.format(value);
export const dollars = (low, high) => `$${number(Number(low))} – $${number(Number(high))}`;
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

const SIZES = ["B", "kB", "MB", "GB", "TB"];
export function bytes(value) {
  let [size, unit] = [value, 0];
  while (size >= 1000 && unit < SIZES.length - 1) [size, unit] = [size / 1000, unit + 1];
  return `${size < 10 && unit > 0 ? size.toFixed(1) : Math.round(size)} ${SIZES[unit]}`;
}

// The two largest parts: `3 min 20 s`, `2 d 4 h`.
const PARTS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];
export function duration(seconds) {
  let left = Math.max(0, Math.round(seconds));
  if (left === 0) return seconds > 0 ? "under 1 s" : "0 s";
  const said = [];
  for (const [unit, size] of PARTS) {
    const count = Math.floor(left / size);
    if (count > 0 || said.length > 0) said.push([count, unit]);
    left -= count * size;
  }
  return said.slice(0, 2).filter(([count]) => count > 0).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

// How long ago, or until when: the larger it is the less it says. `58 s`, `12 min`, `1 h 28 min`, `10 h`, `3 d`.
export function about(seconds) {
  const left = Math.max(0, Math.round(seconds));
  if (left < 60) return `${left} s`;
  if (left < 3600) return `${Math.floor(left / 60)} min`;
  if (left < 6 * 3600) return duration(left - (left % 60));
  return left < 86_400 ? `${Math.floor(left / 3600)} h` : `${Math.floor(left / 86_400)} d`;
}

// In a list: the largest part alone, rounded. `7 min`, `2 h`, `3 d`.
export function rough(seconds) {
  const [unit, size] = PARTS.find(([, each]) => seconds >= each) ?? ["s", 1];
  return `${Math.round(seconds / size)} ${unit}`;
}

// Times are the reader's own, or UTC if they prefer that; which one is kept in this browser.
const KEPT = "baton.utc";
let isUtc = localStorage.getItem(KEPT) === "yes";
export const showsUtc = () => isUtc;
export const showUtc = (wanted) => {
  isUtc = wanted;
  localStorage.setItem(KEPT, wanted ? "yes" : "no");
};
const made = (options) => [undefined, "UTC"].map((timeZone) => new Intl.DateTimeFormat("en-GB", { ...options, timeZone }));
const [moments, clocks, briefs] = [{ dateStyle: "medium", timeStyle: "medium" }, { timeStyle: "medium" }, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }].map(made);
const shown = (formats, text) => formats[Number(isUtc)].format(new Date(text));
export const moment = (text) => `${shown(moments, text)}${isUtc ? " UTC" : ""}`;
export const timeOfDay = (text) => shown(clocks, text);
export const brief = (text) => shown(briefs, text);
// For a hint: the moment as people say it, and the instant itself.
export const instant = (text) => `${moment(text)} (${new Date(text).toISOString()})`;

export const shortId = (id) => id.slice(-8);
export const words = (text) => text.replace(/_/g, " ");
export const sentence = (text) => {
  const said = words(text);
  return said.charAt(0).toUpperCase() + said.slice(1);
};
