// What happens in a second, from the counters of the last polls.

import { onlyThese } from "./api.js";
import { rateText, time } from "./format.js";

const RATE_WINDOW_MS = 5000;   // over which a rate is taken
const KEEP_MS = 10000;         // of the samples for rates

// Samples of the counters, for rates: {at, values: Map}.
let samples = [];

let started = "";

function countersOf(status) {
  const chosen = status.selected;
  if (chosen) {
    const f = chosen.figures;
    const values = new Map([["received", f.received], ["confirmed", f.confirmed], ["delivered", bothWays(f, "delivered")], ["poisoned", bothWays(f, "poisoned")]]);
    for (const route of status.routes) values.set(`route ${route.name}`, chosen.routes[route.name]?.delivered ?? 0);
    return values;
  }
  const values = new Map([
    ["received", status.subscriber.received],
    ["confirmed", status.figures.confirmed],
    ["delivered", total(status, "delivered")],
    ["poisoned", total(status, "poisoned")],
  ]);
  for (const route of status.routes) values.set(`route ${route.name}`, route.delivered);
  return values;
}

// bothWays is a figure of a tenant, on the routes from the gateway and on those to it.
export const bothWays = (figures, field) => figures.routes[field] + figures.outward[field];

export const total = (status, field) => status.routes.reduce((sum, route) => sum + (route[field] ?? 0), 0);

export function remember(status) {
  const of = `${status.started} ${onlyThese()}`;
  if (of !== started) samples = [];
  started = of;
  const at = time(status.time);
  const last = samples.at(-1);
  if (last && at === last.at) return;
  if (last && at < last.at) samples = []; // the clock was set back
  samples.push({ at, values: countersOf(status) });
  while (samples.length > 2 && at - samples[0].at > KEEP_MS) samples.shift();
}

// rateOf is per second over the last few seconds; null when it is not known yet.
export function rateOf(name) {
  const last = samples.at(-1);
  if (!last) return null;
  const from = samples.find((s) => last.at - s.at <= RATE_WINDOW_MS);
  return between(from, last, name);
}

function between(from, to, name) {
  if (!from || from === to || !from.values.has(name) || !to.values.has(name)) return null;
  return Math.max(0, ((to.values.get(name) - from.values.get(name)) * 1000) / (to.at - from.at));
}

export const perSecond = (name) => `${rateText(rateOf(name))}/s`;
