// What became of messages: the search at the top of the page, and the life of each message that it finds.

import { ask, only, onlyThese, session, whyNot } from "./api.js";
import { hideContents, showContents } from "./contents.js";
import { endpointName, pollTenants, tenantName } from "./directory.js";
import { byId, make, say, seen, setHidden, setText } from "./dom.js";
import { bytes, count, precise, stamp, time } from "./format.js";
import { enter } from "./rooms.js";

const trace = { asked: 0, text: "" };

function traceNames(m) {
  const names = [];
  if (m.message_type) names.push(m.message_type);
  if (m.bytes >= 0) names.push(bytes(m.bytes));
  if (m.context_id) names.push(`context ${m.context_id}`);
  if (m.tenant) names.push(tenantName(m.tenant));
  if (m.endpoint) names.push(endpointName(m.endpoint));
  const ids = m.message_ids ?? [];
  if (ids.length === 1) names.push(`message ${ids[0]}`);
  else if (ids.length > 1) names.push(`${count(ids.length)} messages`);
  else if (m.delivery) names.push(`from ${m.delivery}`);
  return names.join(", ");
}

function traceDetail(e) {
  const parts = [];
  if (e.route) parts.push(e.route);
  if (e.message_id) parts.push(e.message_id);
  if (e.place) parts.push(e.place);
  if (e.bytes) parts.push(bytes(e.bytes));
  if (e.duplicate) parts.push("was there before");
  if (e.attempt) parts.push(`attempt ${e.attempt}`);
  if (e.step === "retry") parts.push(`again in ${((e.delay_ns ?? 0) / 1e9).toFixed(3)} s`);
  if (e.text) parts.push(`${e.class}: ${e.text}`);
  return parts.join(", ");
}

// stepsOf puts together what follows one another in a step: the parts of a file, the attempts of a route.
function stepsOf(events) {
  const steps = [];
  for (const e of events) {
    const last = steps.at(-1);
    if (last && last[0].step === e.step && last[0].route === e.route) last.push(e);
    else steps.push([e]);
  }
  return steps;
}

const lineOf = (when, step, detail) => [when, make("span", { class: "where", text: step }), make("span", { class: "ext", dir: "auto", text: detail })];
const eventLine = (e, step = e.step) => lineOf(make("time", { datetime: e.time, text: precise(e.time) }), step, traceDetail(e));

// newStep shows a step in a line, which opens if it happened several times.
function newStep(events) {
  if (events.length === 1) return make("li", {}, ...eventLine(events[0]));
  return make("li", { class: "several" }, make("details", {}, make("summary", {}, ...eventLine(events.at(-1), `${events[0].step} (${count(events.length)})`)),
    make("ol", {}, ...events.map((e) => make("li", {}, ...eventLine(e))))));
}

function newTraced(m) {
  const title = m.filename || m.message_type || m.uuid || "message", names = traceNames(m);
  const unseen = m.unseen ?? [];
  const lines = [title, names, m.state, ...m.events.map((e) => `  ${precise(e.time)}  ${e.step}  ${traceDetail(e)}`), ...unseen.map((r) => `  never saw it  ${r.route}: ${r.why}`)];
  trace.text += `${lines.map(seen).join("\n")}\n\n`;
  const node = make("li", {}, make("h3", { class: "ext", dir: "auto", text: title }), make("p", { class: "muted small ext", text: names }), make("p", { class: "where", text: m.state }));
  const id = m.message_ids?.[0] ?? m.delivery ?? m.uuid;
  if (id) {
    const look = make("button", { type: "button", class: "look", text: "Contents" });
    look.setAttribute("aria-label", `Show the contents of ${seen(title)}, message ${id}`);
    const path = `api/contents?id=${encodeURIComponent(id)}${m.endpoint ? `&endpoint=${encodeURIComponent(m.endpoint)}` : ""}`;
    look.addEventListener("click", () => showContents(path, title, look));
    node.append(look);
  }
  node.append(make("ol", {}, ...stepsOf(m.events).map(newStep),
    ...unseen.map((r) => make("li", {}, ...lineOf(make("span", { class: "muted", text: "–" }), "never saw it", `${r.route}: ${r.why}`)))));
  return node;
}

// showLooks has contents shown only to who has the token.
export function showLooks() {
  for (const look of byId("trace-messages").querySelectorAll(".look")) {
    setHidden(look, !session.status?.replay);
    look.disabled = byId("token").value === "";
  }
}

// showJSON has the link lead to the answer: a link sends no token.
function showJSON(path, answer) {
  const link = byId("trace-json");
  if (link.href.startsWith("blob:")) URL.revokeObjectURL(link.href);
  link.toggleAttribute("download", Boolean(session.readToken));
  link.setAttribute("href", session.readToken ? URL.createObjectURL(new Blob([JSON.stringify(answer, null, 2)], { type: "application/json" })) : path);
}

async function findMessages() {
  const asked = ++trace.asked;
  const result = byId("trace-result"), path = `api/trace?q=${encodeURIComponent(byId("trace-query").value.trim())}${onlyThese()}`;
  let answer;
  try {
    answer = await ask(path, {}, 4);
    await pollTenants(); // which has the names
  } catch (err) {
    if (asked === trace.asked) say(result, "bad", whyNot(err, "Not found"));
    return;
  }
  if (asked !== trace.asked) return; // another one was asked for
  const found = answer.messages.length, all = found + (answer.more ?? 0);
  trace.text = "";
  if (byId("trace-messages").contains(byId("contents"))) hideContents();
  byId("trace-messages").replaceChildren(...answer.messages.map(newTraced));
  showLooks();
  setHidden(byId("trace-copy"), found === 0 || !navigator.clipboard);
  setHidden(byId("trace-json"), found === 0);
  showJSON(path, answer);
  setText(byId("trace-since"), `Known since ${stamp(time(answer.since) ?? Date.now())}, in this process`);
  if (found === 0) say(result, "warn", "Nothing is known of it. The journal has neither older messages nor those of other instances.");
  else say(result, "good", `${count(all)} ${all === 1 ? "message" : "messages"} found${answer.more ? `, the newest ${count(found)} are shown` : ""}.`);
}

byId("trace-form").addEventListener("submit", (event) => {
  event.preventDefault();
  enter("messages");
  findMessages();
});
only.addEventListener("change", () => { if (trace.asked > 0) findMessages(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  event.preventDefault();
  byId("trace-query").focus();
  byId("trace-query").select();
});
byId("token").addEventListener("input", showLooks);
byId("trace-copy").addEventListener("click", () => navigator.clipboard.writeText(trace.text).catch(() => {}));
