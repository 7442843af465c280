// Tenants and endpoints: read where they are shown or looked for, and again when they may have changed.

import { ask, only } from "./api.js";
import { byId, offer } from "./dom.js";

const TENANTS_MS = 5000; // between two looks at them, of which most find nothing new
const SLICE = 1000;      // endpoints that are taken in at once

// directory.endpoints are {tenant, e, text}, with the text that a search looks into, and known are the same by their ID in lower case.
export const directory = { tenants: null, endpoints: [], known: new Map(), error: "" };
let at = -Infinity, reading = null;
const listeners = [];

// onDirectory has a listener called when there are others, or when they are unavailable (error): each in a task of its own, because
// with 10,000 endpoints all together take long.
export const onDirectory = (listener) => listeners.push(listener);

// pollTenants returns when the names are known, or cannot be.
export function pollTenants() {
  if (performance.now() - at < TENANTS_MS) return reading;
  at = performance.now();
  return reading = read();
}

async function read() {
  let error = "", tenants = directory.tenants;
  try {
    tenants = (await ask("api/tenants")).tenants;
  } catch (err) {
    error = err.message;
  }
  if (tenants === directory.tenants && error === directory.error) return;
  const endpoints = [], known = new Map();
  for (const tenant of tenants ?? []) {
    if (endpoints.length % SLICE + tenant.endpoints.length >= SLICE) await new Promise((go) => setTimeout(go)); // the browser has other things to do
    for (const e of tenant.endpoints) {
      const text = [e.name, e.external_id, e.id, tenant.id, ...(e.sends ?? []), ...(e.receives ?? [])].join(" ").toLowerCase();
      endpoints.push({ tenant, e, text });
      known.set(e.id.toLowerCase(), endpoints.at(-1));
    }
  }
  Object.assign(directory, { tenants, error, endpoints, known });
  for (const listener of listeners) setTimeout(listener);
}

const same = (a, b) => a.toLowerCase() === b.toLowerCase();

// endpointOf returns the endpoint with an ID.
export const endpointOf = (id) => directory.known.get(id.toLowerCase());

const nameOf = (e) => e.name || e.external_id;

// endpointName is what people call an endpoint, with its ID.
export function endpointName(id) {
  const name = nameOf(endpointOf(id)?.e ?? {});
  return name ? `endpoint “${name}” (${id})` : `endpoint ${id}`;
}

// tenantName is what people may call a tenant, which has no name itself: an endpoint of this application in it, or else the first one.
export function tenantName(id) {
  const endpoints = directory.tenants?.find((t) => same(t.id, id))?.endpoints ?? [];
  const name = nameOf(endpoints.find((e) => e.mine) ?? endpoints[0] ?? {});
  return name ? `tenant of “${name}” (${id})` : `tenant ${id}`;
}

// selectedIDs are the IDs, in lower case, that what waits of the selection may be named by.
export function selectedIDs() {
  const ids = directory.endpoints.filter(({ tenant, e }) => (only.endpoint ? same(e.id, only.endpoint) : same(tenant.id, only.tenant))).map(({ e }) => e.id);
  return new Set([...ids, ...(only.endpoint ? [] : [only.tenant])].map((id) => id.toLowerCase()));
}

// suggest offers those of some choices [value, text] in which a text occurs.
const MAX_CHOICES = 50;

export function suggest(id, choices, text) {
  const wanted = text.trim().toLowerCase(), found = [];
  for (const [value, label] of choices) {
    if (`${value} ${label}`.toLowerCase().includes(wanted)) found.push([value, label]);
    if (found.length === MAX_CHOICES) break;
  }
  offer(id, found);
}

byId("why-tenant").addEventListener("input", offerTenants);

function offerTenants() {
  suggest("why-tenants", (directory.tenants ?? []).map((t) => [t.id, tenantName(t.id)]), byId("why-tenant").value);
}

onDirectory(offerTenants);
onDirectory(() => {
  const types = new Set();
  for (const { e } of directory.endpoints) for (const list of [e.sends, e.receives]) for (const type of list ?? []) types.add(type);
  offer("why-types", [...types].sort().slice(0, MAX_CHOICES).map((t) => [t, ""]));
});
