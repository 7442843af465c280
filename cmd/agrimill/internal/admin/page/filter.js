// The selection of a tenant or a receiving endpoint.

import { only, OTHERS } from "./api.js";
import { directory, onDirectory, pollTenants, suggest, tenantName } from "./directory.js";
import { byId, setHidden, setText } from "./dom.js";

const NOTE = "Figures, what waits, history, messages, the poison queue and endpoints are those selected. What cannot be distinguished says “all tenants”; states and errors are those of the whole.";

const labelOf = (e) => `${e.name || "unnamed"} (${e.external_id || e.id})`;

function* choices() {
  for (const t of directory.tenants ?? []) yield [t.id, tenantName(t.id)];
  for (const { e } of directory.endpoints) if (e.mine) yield [e.external_id || e.id, e.name || "unnamed"];
  yield [OTHERS, "endpoints without figures of their own"];
}

// find returns what a person names: a tenant by its ID, an endpoint of the application by its ID, external ID or name.
function find(text) {
  const wanted = text.trim().toLowerCase(), is = (name) => name?.toLowerCase() === wanted;
  if (!wanted) return [{ tenant: "", endpoint: "" }];
  if (wanted === OTHERS) return [{ tenant: OTHERS, endpoint: "" }];
  const found = (directory.tenants ?? []).filter((t) => is(t.id)).map((t) => ({ tenant: t.id, endpoint: "" }));
  const own = directory.endpoints.filter(({ e }) => e.mine);
  const byID = own.filter(({ e }) => is(e.id) || is(e.external_id));
  return [...found, ...(byID.length ? byID : own.filter(({ e }) => is(e.name))).map(({ tenant, e }) => ({ tenant: tenant.id, endpoint: e.id }))];
}

export function select(chosen) {
  Object.assign(only, chosen);
  const active = Boolean(only.tenant || only.endpoint);
  const endpoint = directory.endpoints.find(({ e }) => e.id === only.endpoint);
  byId("only").value = endpoint ? labelOf(endpoint.e) : only.endpoint || (only.tenant && only.tenant !== OTHERS ? tenantName(only.tenant) : only.tenant);
  setHidden(byId("only-all"), !active);
  setHidden(byId("only-note"), !active);
  setText(byId("only-note"), NOTE);
  only.dispatchEvent(new Event("change"));
}

byId("only").addEventListener("focus", pollTenants);
byId("only").addEventListener("input", () => suggest("only-choices", choices(), byId("only").value));
onDirectory(() => suggest("only-choices", choices(), byId("only").value));
byId("only").addEventListener("change", () => {
  const found = find(byId("only").value);
  if (found.length === 1) {
    select(found[0]);
    return;
  }
  setText(byId("only-note"), found.length ? `${found.length} endpoints have this name: use the ID.` : "No tenant and no endpoint of this application has this ID or name.");
  setHidden(byId("only-note"), false);
});
byId("filter").addEventListener("submit", (event) => event.preventDefault());
byId("only-all").addEventListener("click", () => {
  select({ tenant: "", endpoint: "" });
  byId("only").focus();
});
