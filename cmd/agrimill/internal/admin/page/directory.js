// Tenants and endpoints: read where they are shown or looked for, and again when they may have changed.

import { ask, only } from "./api.js";
import { byId, offer } from "./dom.js";

const TENANTS_MS = 5000; // between two looks at them, of which most find nothing new

// directory.endpoints are {tenant, e}; its event "change" says that there are others, or that they are unavailable (error).
export const directory = Object.assign(new EventTarget(), { tenants: null, endpoints: [], error: "" });
let at = -Infinity;

export async function pollTenants() {
  if (performance.now() - at < TENANTS_MS) return;
  at = performance.now();
  let error = "", tenants = directory.tenants;
  try {
    tenants = (await ask("api/tenants")).tenants;
  } catch (err) {
    error = err.message;
  }
  if (tenants === directory.tenants && error === directory.error) return;
  Object.assign(directory, { tenants, error, endpoints: (tenants ?? []).flatMap((tenant) => tenant.endpoints.map((e) => ({ tenant, e }))) });
  directory.dispatchEvent(new Event("change"));
}

const same = (a, b) => a.toLowerCase() === b.toLowerCase();

// endpointOf returns the endpoint with an ID.
export const endpointOf = (id) => directory.endpoints.find(({ e }) => same(e.id, id));

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
  suggest("why-tenants", (directory.tenants ?? []).map((t) => [t.id, ""]), byId("why-tenant").value);
}

directory.addEventListener("change", () => {
  offerTenants();
  const types = new Set(directory.endpoints.flatMap(({ e }) => [...(e.sends ?? []), ...(e.receives ?? [])]));
  offer("why-types", [...types].sort().slice(0, MAX_CHOICES).map((t) => [t, ""]));
});
