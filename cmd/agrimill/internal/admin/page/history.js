// What the routes did in the last hour and day.

import { ask, onlyThese, OTHERS } from "./api.js";
import { byId, keyed, make, seen, setHidden, setText } from "./dom.js";
import { count, rateText, seconds, stamp, time } from "./format.js";
import { drawGraph, newGraph } from "./graph.js";

const HISTORY_MS = 10000; // between two polls
const OPEN_ROUTES = 3; // whose history is shown at first

const past = { range: "hour", at: 0, path: "", record: null };

export async function pollHistory() {
  const path = `api/history?range=${past.range}${onlyThese()}`, now = performance.now();
  if (path === past.path && now - past.at < HISTORY_MS) return;
  Object.assign(past, { path, at: now });
  const empty = byId("history-empty");
  try {
    const record = await ask(path);
    if (path !== past.path) return;
    past.record = record;
    showHistory(record);
  } catch (err) {
    if (path !== past.path) return;
    setText(empty, `The history is unavailable: ${err.message}`);
    setHidden(empty, false);
  }
}

function showHistory(record) {
  const empty = byId("history-empty");
  setHidden(empty, record.routes.length > 0);
  setText(empty, "Nothing yet: the history begins with the process.");
  const chosen = Boolean(record.tenant || record.endpoint);
  const notes = [`Known since ${stamp(time(record.since) ?? Date.now())}, in this process, ${chosen ? "of what is selected" : "of all tenants together"}`];
  if (!record.timed) notes.push(chosen ? "only lag is known by tenant without the journal, which is off" : "latencies need the journal, which is off");
  const lost = time(record.timed_incompletely_until);
  if (lost) notes.push(`the journal was too small for all ${chosen ? "of it" : "latencies"} until ${stamp(lost)}`);
  if (chosen && record.crowded && record.tenant !== OTHERS) notes.push("there are more endpoints than are distinguished: what is not here is with the tenant “other”");
  setText(byId("history-since"), `${notes.join("; ")}. Times are in UTC.`);
  keyed(byId("history-routes"), record.routes, (r) => r.name, newPast, (node, route) => showPast(node, route, record));
}

for (const range of ["hour", "day"]) {
  byId(`history-${range}`).addEventListener("click", () => {
    past.range = range;
    for (const other of ["hour", "day"]) byId(`history-${other}`).setAttribute("aria-pressed", String(other === range));
    pollHistory();
  });
}

function newPast(route) {
  const details = make("details", byId("history-routes").children.length < OPEN_ROUTES ? { open: "" } : {},
    make("summary", {}, make("span", { class: "ext", dir: "auto", text: route.name }), make("span", { class: "muted small sum" })));
  const node = make("div", { class: "panel past" }, details);
  details.addEventListener("toggle", () => { // a closed one has no graphs
    const now = past.record?.routes.find((r) => r.name === route.name);
    if (details.open && now) showPast(node, now, past.record);
  });
  return node;
}

function addGraphs(details, name) {
  const head = make("tr", {}, make("th", { scope: "col", text: "Step" }), ...["Messages", "Half within", "99 % within"].map((text) => make("th", { scope: "col", class: "num", text })));
  const title = seen(`Latency by step: ${name}`);
  details.append(make("div", { class: "graphs" }, ...["throughput", "lag", "errors", "latency"].map(newGraph)),
    make("div", { class: "scroll steps", role: "region", tabindex: "0", "aria-label": title },
      make("table", {}, make("caption", { class: "hidden", text: title }), make("thead", {}, head), make("tbody"))));
}

const errorsOf = (p) => p.poisoned + p.returned + p.retries;

const STEPS = [["hold", "Wait for a file"], ["fetch", "Fetch the payload"], ["wait", "Wait for the route"], ["handle", "Filter and transform"], ["store", "Store in the sink"],
  ["end_to_end", "End to end, until delivered"], ["confirm", "Then confirm"]];

function showPast(node, route, record) {
  const from = time(record.from), step = record.step_seconds * 1000, to = from + (step >= 900000 ? 96 : 60) * step;
  const frame = { from, to, step };
  const total = route.total;
  setText(node.querySelector(".sum"), [`${count(total.delivered)} delivered`, total.filtered && `${count(total.filtered)} filtered`,
    total.duplicates && `${count(total.duplicates)} duplicates`, total.poisoned && `${count(total.poisoned)} poisoned`].filter(Boolean).join(", "));
  const details = node.firstElementChild;
  if (!details.open) return;
  if (!details.querySelector(".graphs")) addGraphs(details, route.name);
  const points = (value) => route.periods.map((p) => [time(p.time), value(p)]).filter((p) => p[1] !== undefined);
  // The current period has only begun, and so perhaps has the process in the first one.
  const spans = new Map(route.periods.map((p) => [p.time, Math.max(1, (Math.min(time(p.time) + step, time(record.to)) - Math.max(time(p.time), time(record.since))) / 1000)]));
  drawGraph(node.querySelector(".throughput"), frame, { title: "Delivered", lines: [points((p) => p.delivered / spans.get(p.time))], text: (v) => `${rateText(v)}/s`, area: true });
  const backlog = route.periods.some((p) => p.backlog !== undefined);
  if (backlog) drawGraph(node.querySelector(".lag"), frame, { title: "Backlog in the source", lines: [points((p) => p.backlog)], text: count, area: true });
  else if (!route.from_gateway && (record.tenant || record.endpoint)) drawGraph(node.querySelector(".lag"), frame, { title: "Backlog: unknown by tenant", lines: [[]], text: count });
  else if (route.from_gateway) drawGraph(node.querySelector(".lag"), frame, { title: "Oldest pending", lines: [points((p) => p.age_seconds)], text: seconds, area: true });
  else drawGraph(node.querySelector(".lag"), frame, { title: "In flight", lines: [points((p) => p.in_flight)], text: count, area: true });
  drawGraph(node.querySelector(".errors"), frame, { title: "Poisoned, returned, retried", lines: [points(errorsOf)], text: count, bars: true, tone: errorsOf(total) ? "bad" : "" });
  const latency = (name) => points((p) => p.latency?.end_to_end?.[name]);
  drawGraph(node.querySelector(".latency"), frame, { title: "Latency: half, 99 % (dashed)", lines: [latency("p50_seconds"), latency("p99_seconds")], text: seconds });
  const steps = STEPS.filter(([name]) => total.latency?.[name]).map(([name, title]) => ({ title, ...total.latency[name] }));
  setHidden(node.querySelector(".steps"), steps.length === 0);
  keyed(node.querySelector("tbody"), steps, (s) => s.title, (s) => make("tr", {}, make("th", { scope: "row", text: s.title }), ...[1, 2, 3].map(() => make("td", { class: "num" }))), (row, s) => {
    [count(s.count), seconds(s.p50_seconds), seconds(s.p99_seconds)].forEach((text, i) => setText(row.children[i + 1], text));
  });
}
