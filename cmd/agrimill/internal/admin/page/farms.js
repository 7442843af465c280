// Tenants and endpoints: who waits longest, a list of all, and one of them in full.

import { ask, only, onlyThese } from "./api.js";
import { directory, endpointOf, onDirectory, pollTenants, tenantName } from "./directory.js";
import { byId, keyed, make, setHidden, setText } from "./dom.js";
import { select } from "./filter.js";
import { count, short, time } from "./format.js";
import { newList } from "./list.js";
import { enter } from "./rooms.js";

const plural = (n, one) => `${count(n)} ${n === 1 ? one : `${one}s`}`;
const typesOf = (list) => [...new Set(list ?? [])].join(", ");

export async function pollFarms(status) {
  await pollTenants(); // which has the names
  showWaiting(time(status.time));
}

async function showWaiting(now) {
  let answer;
  try {
    answer = await ask(`api/waiting?${onlyThese().slice(1)}`);
  } catch (err) {
    setText(byId("waiting-note"), `What waits is unknown: ${err.message}`);
    return;
  }
  const { waiting, more } = answer;
  setText(byId("waiting-note"), waiting.length ? (more ? `and ${plural(more, "more endpoint")}` : "") : "Nothing waits.");
  keyed(byId("waiting"), waiting, (w) => `${w.tenant} ${w.endpoint}`, (w) => {
    const button = make("button", { type: "button", class: "link ext", dir: "auto" });
    button.addEventListener("click", () => showFarm(endpointOf(w.endpoint), button));
    return make("li", {}, button, " ", make("span", { class: "muted" }));
  }, (node, w) => {
    const known = endpointOf(w.endpoint), oldest = time(w.oldest);
    node.firstElementChild.disabled = !known;
    setText(node.firstElementChild, known?.e.name || known?.e.external_id || w.endpoint || tenantName(w.tenant));
    setText(node.lastElementChild, [plural(w.in_flight + w.held + w.pending_confirmations, "message"), oldest && `the oldest for ${short(now - oldest)}`].filter(Boolean).join(", "));
  });
}

function newRow() {
  const cell = (name, ...children) => make("td", { role: "cell", class: name }, ...children);
  const button = make("button", { type: "button", class: "link ext name", dir: "auto" });
  const row = make("tr", { role: "row" }, cell("", button, make("span", { class: "tag", text: "ours" }), make("span", { class: "sub ext external" })),
    cell("kind"), cell("of"), cell("types sends"), cell("types receives"));
  button.addEventListener("click", () => showFarm(row.shown, button));
  return row;
}

function showRow(row, endpoint) {
  const { tenant, e } = endpoint;
  row.shown = endpoint;
  setText(row.querySelector(".name"), e.name || "unnamed");
  setHidden(row.querySelector(".tag"), !e.mine);
  setText(row.querySelector(".external"), e.external_id || e.id);
  setText(row.querySelector(".kind"), e.type.replaceAll("_", " "));
  setText(row.querySelector(".of"), tenantName(tenant.id).replace(/^tenant /, ""));
  setText(row.querySelector(".sends"), typesOf(e.sends));
  setText(row.querySelector(".receives"), typesOf(e.receives));
}

const setRows = newList(byId("tenants"), byId("tenants-rows"), ({ tenant, e }) => `${tenant.id} ${e.id}`, newRow, showRow);

function showList() {
  const { tenants, endpoints, error } = directory, empty = byId("tenants-empty");
  const wanted = byId("tenants-query").value.trim().toLowerCase(), ours = byId("tenants-ours").checked;
  const found = endpoints.filter(({ tenant, e, text }) => (!ours || e.mine) && (!only.tenant || tenant.id === only.tenant) && (!only.endpoint || e.id === only.endpoint)
    && (!wanted || text.includes(wanted)));
  const all = `${plural(tenants?.length ?? 0, "tenant")}, ${plural(endpoints.length, "endpoint")}`;
  setText(byId("tenants-count"), tenants ? (found.length === endpoints.length ? all : `${count(found.length)} of ${plural(endpoints.length, "endpoint")}`) : "");
  setHidden(empty, found.length > 0 && !error);
  setText(empty, error ? `Tenants unavailable: ${error}` : endpoints.length ? "No endpoint is like that." : tenants?.length ? "No endpoint is in these tenants." : "No tenant has authorized the application yet.");
  setHidden(byId("tenants"), found.length === 0);
  byId("tenants-table").setAttribute("aria-rowcount", String(found.length + 1));
  setRows(found);
}

let from = null; // the button that has opened the details

function showFarm(endpoint, button) {
  from = button;
  const { tenant, e } = endpoint;
  setText(byId("h-farm"), e.name || "unnamed");
  const facts = [["Tenant", tenantName(tenant.id)], ["Scopes", typesOf(tenant.scopes)], ["ID", e.id], ["External ID", e.external_id], ["Type", e.type.replaceAll("_", " ")], ["Sends", typesOf(e.sends)],
    ["Receives", typesOf(e.receives)], ["Connected now", e.routed_to === undefined ? "unknown" : `sends to ${count(e.routed_to)}, receives from ${count(e.routed_from)}`]];
  byId("farm-facts").replaceChildren(...facts.filter(([, text]) => text).flatMap(([term, text]) => [make("dt", { text: term }), make("dd", { class: "ext", text })]));
  const offers = [e.mine && ["Show only this endpoint", () => select({ tenant: tenant.id, endpoint: e.id })], ["Show only this tenant", () => select({ tenant: tenant.id, endpoint: "" })],
    ["Why does nothing arrive?", () => {
      byId("why-tenant").value = tenant.id;
      byId("why-from").value = e.mine ? "" : e.id;
      enter("messages");
      byId("why-type").focus();
    }]];
  byId("farm-does").replaceChildren(...offers.filter(Boolean).map(([text, does]) => {
    const node = make("button", { type: "button", text });
    node.addEventListener("click", does);
    return node;
  }));
  setHidden(byId("farm"), false);
  byId("farm").focus();
}

byId("farm-close").addEventListener("click", () => {
  setHidden(byId("farm"), true);
  if (from?.isConnected) from.focus();
  else byId("tenants").focus();
});
byId("tenants-form").addEventListener("submit", (event) => event.preventDefault());
byId("tenants-form").addEventListener("input", showList);
onDirectory(showList);
only.addEventListener("change", showList);
