// Whether all is right, and the figures.

import { OTHERS } from "./api.js";
import { byId, keyed, make, setHidden, setText } from "./dom.js";
import { count, short, time } from "./format.js";
import { bothWays, perSecond, rateOf, total } from "./rates.js";

// drawCourse draws how many messages were unconfirmed in each minute of the last hour, the present one at the right.
function drawCourse(values) {
  const svg = byId("chart"), MINUTES = 60;
  const most = Math.max(0, ...values), top = Math.max(1, most) * 1.15;
  const wide = 240 / MINUTES, x = (i) => (240 - (values.length - i) * wide).toFixed(1);
  const line = values.map((value, i) => { const y = (47 - (value / top) * 44).toFixed(1); return `${i ? "L" : "M"}${x(i)} ${y}L${x(i + 1)} ${y}`; }).join("");
  svg.querySelector(".line").setAttribute("d", line);
  svg.querySelector(".area").setAttribute("d", line && `${line}L240 48L${x(0)} 48Z`);
  svg.setAttribute("aria-label", `Unconfirmed messages in the last hour: at most ${count(most)}`);
}

function setTile(id, value, note = "", tone = "") {
  setText(byId(id), value);
  const noteNode = byId(`${id}-note`);
  if (noteNode) setText(noteNode, note);
  const tile = byId(id).closest(".tile");
  if (tone) tile.dataset.tone = tone;
  else delete tile.dataset.tone;
}

const oldestNote = (now, oldest) => (oldest ? `the oldest for ${short(now - oldest)}` : "none waiting");
const oldTone = (now, oldest) => (oldest && now - oldest > 60000 ? "warn" : "");

// showChosen shows the figures of a tenant or an endpoint.
function showChosen(chosen, now) {
  const f = chosen.figures, off = chosen.timed ? "" : "unknown by tenant: the journal is off";
  const tile = (id, n, note, tone) => setTile(id, off ? "–" : count(n), off || note, off ? "" : tone);
  tile("t-received", f.received, perSecond("received"));
  const duplicates = bothWays(f, "duplicates");
  tile("t-stored", bothWays(f, "delivered"), `${perSecond("delivered")}${duplicates ? `, ${count(duplicates)} duplicates` : ""}`);
  tile("t-confirmed", f.confirmed, perSecond("confirmed"));
  const oldest = time(chosen.oldest_unconfirmed);
  setTile("t-open", count(chosen.in_flight + chosen.held + chosen.pending_confirmations), oldestNote(now, oldest), oldTone(now, oldest));
  tile("t-poisoned", bothWays(f, "poisoned"), "since startup; what is in the queue now is below", bothWays(f, "poisoned") > 0 ? "bad" : "");
}

export function showTiles(status) {
  const now = time(status.time);
  byId("chart").style.visibility = status.selected ? "hidden" : ""; // it is not known by tenant
  if (status.selected) {
    showChosen(status.selected, now);
    return;
  }
  const f = status.figures;
  setTile("t-received", count(f.received), perSecond("received"));
  const aside = total({ routes: status.routes.filter((r) => r.direction === "from_gateway") }, "poisoned");
  setTile("t-stored", count(f.stored), `${perSecond("delivered")} delivered${aside ? `, ${count(aside)} poisoned` : ""}`);
  setTile("t-confirmed", count(f.confirmed), perSecond("confirmed"));
  const oldest = time(f.oldest);
  setTile("t-open", count(f.unconfirmed), oldestNote(now, oldest), oldTone(now, oldest));
  drawCourse(status.unconfirmed_course ?? []);
  // What the queue holds outlives the process; what was poisoned since startup does not.
  const poisoned = total(status, "poisoned");
  const depth = status.poison.depth;
  const since = `${count(poisoned)} since startup${rateOf("poisoned") ? `, ${perSecond("poisoned")}` : ""}`;
  const first = time(status.poison.oldest);
  if (status.poison.unreadable) setTile("t-poisoned", "?", `${status.poison.depth_note}; ${since}`, "warn");
  else if (depth === undefined) setTile("t-poisoned", count(poisoned), ["since startup", status.poison.depth_note].filter(Boolean).join("; "), poisoned > 0 ? "bad" : "");
  else setTile("t-poisoned", count(depth), ["in the queue", first && depth > 0 ? `oldest ${short(Math.max(0, now - first))}` : "", since, status.poison.depth_note].filter(Boolean).join("; "), depth > 0 ? "bad" : "");
}

// showAccount says where what was received went if not everything was delivered. A message that several routes
// take counts with each of them, and one that came again counts again, so these are no parts of a sum.
export function showAccount(status) {
  if (status.selected) {
    showChosenAccount(status.selected);
    return;
  }
  const sub = status.subscriber;
  // What routes from a broker did was not received from the gateway.
  const routes = status.routes.filter((r) => r.direction === "from_gateway");
  const of = (field) => routes.reduce((sum, route) => sum + (route[field] ?? 0), 0);
  const gone = listed([
    [of("filtered"), "filtered"], [sub.unmatched, "refused by every filter"], [of("duplicates"), "duplicates"],
    [sub.joined, "that came again while they were open or confirmed"], [of("poisoned"), "poisoned"],
    [sub.quarantined + sub.quarantine_waiting, "quarantined"], [sub.in_files, "parts of files, confirmed with them"], [sub.untaken, "for no route"],
  ]);
  const open = listed([
    [sub.held, "held back for their file"], [sub.in_flight, "with the routes"], [sub.pending_confirmations, "to be confirmed"], [sub.unsynced, "stored, not yet on disk"],
  ]);
  setHidden(byId("account"), !gone && !open);
  setText(byId("account"), `${count(sub.received)} events, ${count(of("delivered"))} deliveries.${told("Not delivered", gone)}${told("Now", open)} `
    + "A message counts once for each of its routes, and again when it comes again.");
}

// listed names those counts that are not zero.
const listed = (counts) => counts.filter(([n]) => n > 0).map(([n, what]) => `${count(n)} ${what}`).join(", ");

const told = (what, list) => list ? ` ${what}: ${list}.` : "";

// showChosenAccount is the same for a tenant or an endpoint, as far as it is distinguished.
function showChosenAccount(chosen) {
  const f = chosen.figures;
  const gone = listed([
    [f.routes.filtered, "filtered"], [f.routes.duplicates, "duplicates"], [f.routes.poisoned, "poisoned"], [f.in_files, "parts of files, joined to them"],
    [f.untaken, "for no route"],
  ]);
  const open = listed([[chosen.held, "held back for their file"], [chosen.in_flight, "with the routes"], [chosen.pending_confirmations, "to be confirmed"]]);
  const parts = [];
  if (!chosen.timed) parts.push("What happened is known by tenant only with the journal (journal.max_age), which is off; what waits now is.");
  else parts.push(`Received ${count(f.received)}, delivered ${count(f.routes.delivered)}.${told("Not delivered", gone)}${told("Confirmation rejected", listed([[f.rejected, "messages"]]))}`
    + `${told("Now", open)} What came again counts again. Bytes, what every filter refused, and the quarantine are unknown by tenant.`);
  if (chosen.incomplete) parts.push("The journal was too small at times, so some of it is missing.");
  if (chosen.crowded && chosen.tenant !== OTHERS) parts.push("There are more endpoints than are distinguished, so some of it may be with the tenant “other”.");
  setHidden(byId("account"), false);
  setText(byId("account"), parts.join(" "));
}

// showVerdict shows whether all is right, as the server says it, and the problems if there are several.
export function showVerdict(status) {
  const { sentence, ready, problems } = status.verdict;
  const now = time(status.time);
  const tone = !ready && problems.length === 0 && status.state !== "stopped" ? "idle" : !ready ? "bad" : problems.length ? "warn" : "good";
  if (byId("verdict").dataset.tone !== tone) byId("verdict").dataset.tone = tone;
  setText(byId("sentence"), sentence);
  setHidden(byId("problems"), problems.length < 2);
  keyed(byId("problems"), problems.length < 2 ? [] : problems, (p) => `${p.kind} ${p.name ?? ""}`, () => make("li", {}, make("details", {},
    make("summary", {}, make("span", { class: "ext" }), make("span", { class: "when" })), make("p", { class: "ext" }))), (node, p) => {
    const since = time(p.since);
    setText(node.querySelector("summary .ext"), `${p.subject.charAt(0).toUpperCase()}${p.subject.slice(1)} ${p.trouble}`);
    setText(node.querySelector(".when"), `${since ? ` for ${short(now - since)}` : ""}${p.stage === "lasting" ? "" : ` (${p.stage})`}`);
    setText(node.querySelector("p"), `${p.text} Runbook: ${p.runbook}.`);
  });
}
