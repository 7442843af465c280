// The status page. It polls the API once a second and writes the results into the
// page as text, never as HTML: names, reasons and file names are untrusted.
"use strict";

const POLL_MS = 1000;          // between two polls of the status
const POLL_HIDDEN_MS = 15000;  // while the page is hidden
const TIMEOUT_MS = 5000;       // of one request
const RATE_WINDOW_MS = 5000;   // over which a rate is taken
const KEEP_MS = 10000;         // of the samples for rates
const PAGE_SIZE = 25;          // of the poison queue
const GROUPS_MS = 30000;       // between two groupings of it
const FEW = 200;               // messages that are grouped as soon as there are more
const SHOWN_GROUPS = 8;        // at most
const BATCH = 10;              // messages in one request to replay or drop
const QUEUE_MS = 15000;        // between polls of the poison queue when nothing happens
const HISTORY_MS = 10000;      // between polls of the history
const TENANTS_MS = 5000;       // between polls of the tenants

// ---------------------------------------------------------------- elements

const byId = (id) => document.getElementById(id);

// Invisible characters, and those that change the text direction, are escaped.
const UNSEEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
const seen = (text) => String(text).replace(UNSEEN, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);

function setText(node, text) {
  text = seen(text);
  if (node.textContent !== text) node.textContent = text;
}

function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

// make("p", {class: "ext", text: "..."}, children). Attribute names are ours.
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") setText(node, value);
    else if (value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// keyed keeps one child of parent for each item, in their order, so that what is
// there stays there: focus, selection and open details survive an update.
function keyed(parent, items, keyOf, create, update) {
  const known = parent.keyed ?? (parent.keyed = new Map());
  const wanted = new Set();
  items.forEach((item, place) => {
    const key = keyOf(item);
    wanted.add(key);
    let node = known.get(key);
    if (!node) {
      node = create(item);
      known.set(key, node);
    }
    update(node, item);
    if (parent.children[place] !== node) parent.insertBefore(node, parent.children[place] ?? null);
  });
  for (const [key, node] of known) {
    if (!wanted.has(key)) {
      node.remove();
      known.delete(key);
    }
  }
}

// ---------------------------------------------------------------- texts

const numbers = new Intl.NumberFormat("en");
const count = (n) => numbers.format(n ?? 0);

function rateText(perSecond) {
  if (perSecond === null) return "–";
  if (perSecond === 0) return "0";
  if (perSecond < 10) return perSecond.toFixed(1);
  return numbers.format(Math.round(perSecond));
}

function bytes(n) {
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

const short = (ms) => duration(ms).split(" ").slice(0, 2).join("\u00a0");

// time reads a time of the API; null when it is absent or Go's zero time.
function time(text) {
  if (!text || text.startsWith("0001-")) return null;
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? null : ms;
}

function stamp(ms) {
  return new Date(ms).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

// States have a tone (color and shape) and a word.
const TONES = {
  running: "good", connected: "good", "awaiting head": "good", up: "good", ok: "good", standby: "good",
  degraded: "warn", outage: "warn", draining: "warn",
  disconnected: "bad", down: "bad", failed: "bad", failing: "bad", ended: "bad", stopped: "bad", gone: "bad", missing: "bad",
  starting: "idle", connecting: "idle", unused: "idle", unknown: "idle", unchecked: "idle",
};
const toneOf = (state) => (Object.hasOwn(TONES, state) ? TONES[state] : "idle");

function setState(node, state, word = state) {
  if (!state) state = word = "unknown";
  const tone = toneOf(state);
  if (node.dataset.tone !== tone) node.dataset.tone = tone;
  if (node.dataset.state !== state) node.dataset.state = state;
  setText(node.querySelector(".word"), word);
}

const stateBadge = () => make("span", { class: "state" },
  make("span", { class: "mark", "aria-hidden": "true" }), make("span", { class: "word" }));

// ---------------------------------------------------------------- requests

class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// What a protected page was opened with. It is kept nowhere else.
let readToken = "";

async function ask(path, options = {}, timeout = TIMEOUT_MS) {
  const response = await fetch(path, {
    cache: "no-store", credentials: "same-origin", redirect: "error", signal: AbortSignal.timeout(timeout), ...options,
    headers: { ...(readToken && { Authorization: `Bearer ${readToken}` }), ...options.headers },
  });
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Refused(response.status, body?.error ?? `the response was ${response.status}`);
  if (body === null) throw new Error("the response was not JSON");
  return body;
}

// ---------------------------------------------------------------- history

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
    ["confirmed", status.subscriber.confirmed],
    ["delivered", total(status, "delivered")],
    ["poisoned", total(status, "poisoned")],
  ]);
  for (const route of status.routes) values.set(`route ${route.name}`, route.delivered);
  return values;
}

// bothWays is a figure of a tenant, on the routes from the gateway and on those to it.
const bothWays = (figures, field) => figures.routes[field] + figures.outward[field];

const total = (status, field) => status.routes.reduce((sum, route) => sum + (route[field] ?? 0), 0);

function remember(status) {
  const of = `${status.started} ${onlyThese()}`;
  if (of !== started) samples = [];
  started = of;
  const at = time(status.time);
  const last = samples.at(-1);
  if (last && at <= last.at) return;
  samples.push({ at, values: countersOf(status) });
  while (samples.length > 2 && at - samples[0].at > KEEP_MS) samples.shift();
}

// rateOf is per second over the last few seconds; null when it is not known yet.
function rateOf(name) {
  const last = samples.at(-1);
  if (!last) return null;
  const from = samples.find((s) => last.at - s.at <= RATE_WINDOW_MS);
  return between(from, last, name);
}

function between(from, to, name) {
  if (!from || from === to || !from.values.has(name) || !to.values.has(name)) return null;
  return Math.max(0, ((to.values.get(name) - from.values.get(name)) * 1000) / (to.at - from.at));
}

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

// ---------------------------------------------------------------- figures

function setTile(id, value, note = "", tone = "") {
  setText(byId(id), value);
  const noteNode = byId(`${id}-note`);
  if (noteNode) setText(noteNode, note);
  const tile = byId(id).closest(".tile");
  if (tone) tile.dataset.tone = tone;
  else delete tile.dataset.tone;
}

const perSecond = (name) => `${rateText(rateOf(name))}/s`;

const oldestNote = (now, oldest) => (oldest ? `the oldest for ${short(now - oldest)}` : "none waiting");
const oldTone = (now, oldest) => (oldest && now - oldest > 60000 ? "warn" : "");

// showChosen shows the figures of a tenant or an endpoint.
function showChosen(chosen, now) {
  const f = chosen.figures, off = chosen.timed ? "" : "not told by tenant: the journal is off";
  const tile = (id, n, note, tone) => setTile(id, off ? "–" : count(n), off || note, off ? "" : tone);
  tile("t-received", f.received, perSecond("received"));
  const duplicates = bothWays(f, "duplicates");
  tile("t-stored", bothWays(f, "delivered"), `${perSecond("delivered")}${duplicates ? `, ${count(duplicates)} duplicates` : ""}`);
  tile("t-confirmed", f.confirmed, perSecond("confirmed"));
  const oldest = time(chosen.oldest_unconfirmed);
  setTile("t-open", count(chosen.in_flight + chosen.held + chosen.pending_confirmations), oldestNote(now, oldest), oldTone(now, oldest));
  tile("t-poisoned", bothWays(f, "poisoned"), "since startup; what is in the queue now is below", bothWays(f, "poisoned") > 0 ? "bad" : "");
}

function showTiles(status) {
  const now = time(status.time);
  byId("chart").style.visibility = status.selected ? "hidden" : ""; // it is not told by tenant
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
function showAccount(status) {
  if (status.selected) {
    showChosenAccount(status.selected);
    return;
  }
  const sub = status.subscriber;
  // What routes from a broker did was not received from the gateway.
  const routes = status.routes.filter((r) => r.direction === "from_gateway");
  const of = (field) => routes.reduce((sum, route) => sum + (route[field] ?? 0), 0);
  const where = [
    [of("filtered"), "filtered"], [sub.unmatched, "refused by every filter"], [of("duplicates"), "duplicates"],
    [sub.joined, "that came again while they were open or confirmed"], [of("poisoned"), "poisoned"],
    [sub.quarantined + sub.quarantine_waiting, "quarantined"], [sub.in_files, "parts of files, confirmed with them"], [sub.untaken, "for no route"],
    [sub.held, "held back for their file"], [sub.in_flight, "with the routes"], [sub.pending_confirmations, "to be confirmed"],
    [sub.unsynced, "stored, not yet on disk"],
  ].filter(([n]) => n > 0).map(([n, what]) => `${count(n)} ${what}`);
  setHidden(byId("account"), where.length === 0);
  setText(byId("account"), `Received ${count(sub.received)}, delivered ${count(of("delivered"))}. Besides, since startup or now: ${where.join(", ")}. `
    + "With several routes, or when it comes again, a message counts more than once.");
}

// showChosenAccount is the same for a tenant or an endpoint, as far as it is told apart.
function showChosenAccount(chosen) {
  const f = chosen.figures;
  const where = [
    [f.routes.filtered, "filtered"], [f.routes.duplicates, "duplicates"], [f.routes.poisoned, "poisoned"], [f.in_files, "parts of files, joined to them"],
    [f.untaken, "for no route"], [f.rejected, "whose confirmation was rejected"], [chosen.held, "held back for their file"],
    [chosen.in_flight, "with the routes"], [chosen.pending_confirmations, "to be confirmed"],
  ].filter(([n]) => n > 0).map(([n, what]) => `${count(n)} ${what}`);
  const parts = [];
  if (!chosen.timed) parts.push("What happened is told by tenant only with the journal (journal.max_age), which is off; what waits now is.");
  else parts.push(`Received ${count(f.received)}, delivered ${count(f.routes.delivered)}.${where.length ? ` Besides, since startup or now: ${where.join(", ")}.` : ""}`
    + " What came again counts again. Bytes, what every filter refused, and the quarantine are not told by tenant.");
  if (chosen.incomplete) parts.push("The journal was too small at times, so some of it is missing.");
  if (chosen.crowded && chosen.tenant !== OTHERS) parts.push("There are more endpoints than are told apart, so some of it may be with the tenant “others”.");
  setHidden(byId("account"), false);
  setText(byId("account"), parts.join(" "));
}

// showVerdict shows whether all is right, as the server says it, and the problems if there are several.
function showVerdict(status) {
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

// ---------------------------------------------------------------- the picture

function newNode(role, label) {
  const error = make("p", { class: "error", hidden: "" },
    make("span", { class: "when" }), " ", make("span", { class: "ext" }));
  const node = make("article", { class: "node" },
    make("header", {}, make("p", { class: "role", text: role }), stateBadge(), make("h3", { class: "ext", dir: "auto" })),
    make("p", { class: "kind ext" }),
    make("p", { class: "rate", hidden: "" }, make("b"), make("span", { class: "small muted" })),
    make("div", { class: "meter", hidden: "" }, make("i")),
    make("dl"),
    error);
  node.setAttribute("aria-label", seen(label));
  return node;
}

// showNode fills a node: {title, state, word, kind, rate, unit, fill, facts: [[term, text, tone]], error, errorAt}.
function showNode(node, what) {
  setText(node.querySelector("h3"), what.title);
  setState(node.querySelector(".state"), what.state, what.word);
  const tone = toneOf(what.state);
  if (node.dataset.tone !== tone) node.dataset.tone = tone;
  if (node.dataset.state !== what.state) node.dataset.state = what.state;
  const kind = node.querySelector(".kind");
  setText(kind, what.kind ?? "");
  setHidden(kind, !what.kind);
  const rate = node.querySelector(".rate");
  setHidden(rate, what.rate === undefined);
  if (what.rate !== undefined) {
    setText(rate.children[0], what.rate);
    setText(rate.children[1], what.unit);
  }
  const meter = node.querySelector(".meter");
  setHidden(meter, what.fill === undefined);
  if (what.fill !== undefined) meter.firstElementChild.style.width = `${Math.round(Math.min(1, what.fill) * 100)}%`;
  showFacts(node.querySelector("dl"), what.facts);
  const error = node.querySelector(".error");
  setHidden(error, !what.error);
  if (what.error) {
    setText(error.children[0], what.errorAt ?? "");
    setText(error.children[1], what.error);
  }
}

// showFacts keeps a pair of elements for each term.
function showFacts(list, facts) {
  const rows = facts.filter(Boolean).flatMap(([term, text, tone]) => [
    { key: `t ${term}`, tag: "dt", text: term }, { key: `d ${term}`, tag: "dd", text, tone },
  ]);
  keyed(list, rows, (row) => row.key, (row) => make(row.tag, row.tag === "dd" ? { class: "ext" } : {}), (node, row) => {
    setText(node, row.text);
    if (row.tone) node.dataset.tone = row.tone;
    else delete node.dataset.tone;
  });
}

// unless leaves a fact out while it is 0.
const unless0 = (term, n, tone) => (n ? [term, count(n), tone] : null);

const agoText = (now, at) => (at ? `${short(now - at)} ago` : "never");

function leaseFacts(lease, now) {
  if (!lease) return [];
  const since = time(lease.since), until = time(lease.until);
  return [
    ["lease", lease.role + (since ? ` for ${short(now - since)}` : "")],
    lease.role === "standby" && ["held by", lease.holder || "unknown"],
    until && ["lease ends in", until > now ? short(until - now) : "a moment", lease.error ? "bad" : ""],
    ["epoch", lease.epoch ? String(lease.epoch) : "none yet"],
    ["role changes", count(lease.changes)],
    unless0("leases lost", lease.lost, "warn"),
    unless0("leases given up", lease.given_up, "warn"),
  ];
}

function showGateway(status, now) {
  const g = status.gateway;
  const limited = g.rate_limited;
  const until = time(g.rate_limited_until);
  const since = time(g.since);
  const refused = time(g.refused_since), ends = time(g.ends_at);
  const between = g.intermediaries ?? [];
  return {
    title: g.host || "gateway", state: g.state, kind: "sends events, accepts messages",
    facts: [
      since && ["for", short(now - since)],
      ["reconnects", count(g.reconnects)],
      ...leaseFacts(status.lease, now),
      refused && ["refused for", short(now - refused), "warn"],
      ends && ["ends in", ends > now ? short(ends - now) : "a moment", "bad"],
      ...between.map((b) => [b.operation, `not the gateway: ${b.status} ${b.content_type ?? ""}`, "bad"]),
      limited && ["rate limit", until && until > now ? `waiting ${short(until - now)}` : "slowed down", "warn"],
    ],
    error: g.last_error, errorAt: g.state === "connected" || g.state === "awaiting head" ? "before:" : "",
  };
}

function showSubscriber(status, now) {
  const s = status.subscriber;
  const oldest = time(s.oldest_unconfirmed);
  const stopped = status.state === "stopped" || status.state === "draining";
  let state = stopped ? status.state : { connected: "running", "awaiting head": "running", disconnected: "outage" }[status.gateway.state] ?? status.gateway.state;
  const full = s.max_in_flight > 0 && s.in_flight >= s.max_in_flight;
  return {
    title: "event stream", state, word: full && state === "running" ? "full, waiting" : state === "outage" ? "waiting" : state,
    kind: "receives and confirms", rate: rateText(rateOf("received")), unit: "events/s in",
    fill: s.max_in_flight > 0 ? s.in_flight / s.max_in_flight : undefined,
    facts: status.selected ? chosenFacts(status, now) : [
      ["in flight", s.max_in_flight > 0 ? `${count(s.in_flight)}\u00a0/\u00a0${count(s.max_in_flight)}` : count(s.in_flight)],
      ["bytes in flight", bytes(s.in_flight_bytes)],
      ["backlog to confirm", count(s.pending_confirmations)],
      ["oldest unconfirmed", oldest ? short(now - oldest) : "none", oldest && now - oldest > 60000 ? "warn" : ""],
      unless0("held for files", s.held),
      ...(s.waits ?? []).map((w) => waitFact(w, now)),
      unless0("redelivered", s.joined),
      unless0("confirm retries", s.confirm_failures, "warn"),
      unless0("nacked", s.nacked),
      unless0("for no route", s.untaken),
      unless0("refused by every filter", s.unmatched),
      unless0("given up", s.abandoned, "warn"),
      unless0("set aside", s.set_aside, "bad"),
      unless0("of these still waiting", s.set_aside_now, "bad"),
      unless0("malformed", s.malformed, "bad"),
      unless0("in quarantine", s.quarantined, "bad"),
      unless0("waiting for quarantine", s.quarantine_waiting, "warn"),
      unless0("too large", s.too_large, "bad"),
      unless0("confirm rejected", s.rejected, "bad"),
    ],
  };
}

// chosenFacts are what waits of a tenant or an endpoint, and, marked as such, what is not told apart.
function chosenFacts(status, now) {
  const s = status.subscriber, chosen = status.selected;
  const oldest = time(chosen.oldest_unconfirmed);
  const keys = new Set(chosenKeys(chosen));
  const waits = (s.waits ?? []).map((w) => {
    if (w.kind !== "tenant" && w.kind !== "key") return ofAll(waitFact(w, now)); // hosts, messages and files tell no tenant
    if (w.count > w.longest.length) return ofAll(waitFact(w, now)); // not all of them are named
    const theirs = w.longest.filter((x) => keys.has(x.what.toLowerCase()));
    // A key that is no endpoint may be anybody's.
    if (w.kind === "key" && theirs.length === 0 && !w.longest.every((x) => only.known.has(x.what.toLowerCase()))) return ofAll(waitFact(w, now));
    return theirs.length ? waitFact({ ...w, count: theirs.length, longest: theirs }, now) : null;
  });
  return [
    ["in flight", count(chosen.in_flight)],
    ["backlog to confirm", count(chosen.pending_confirmations)],
    ["oldest unconfirmed", oldest ? short(now - oldest) : "none", oldest && now - oldest > 60000 ? "warn" : ""],
    unless0("held for files", chosen.held),
    ...waits,
    ...[
      ["bytes in flight", bytes(s.in_flight_bytes)],
      unless0("redelivered", s.joined), unless0("confirm retries", s.confirm_failures, "warn"), unless0("nacked", s.nacked),
      unless0("refused by every filter", s.unmatched), unless0("given up", s.abandoned, "warn"), unless0("set aside", s.set_aside, "bad"),
      unless0("malformed", s.malformed, "bad"), unless0("in quarantine", s.quarantined, "bad"), unless0("too large", s.too_large, "bad"),
    ].map(ofAll),
  ];
}

// ofAll says that a fact is not about what was selected alone.
const ofAll = (fact) => fact && [`${fact[0]}, all tenants`, ...fact.slice(1)];

// waitFact says how many of a kind wait, and which one has waited longest.
function waitFact(w, now) {
  const first = w.longest[0];
  const since = time(first?.since), seconds = since ? now - since : 0;
  const name = { key: "keys that stand still", subscription: "subscriptions that are slow", nack: "nacked, waiting", payload: "payload hosts failing", tenant: "tenants failing to confirm",
    file: "messages waiting for files", "file confirmation": "confirmations held for files" }[w.kind] ?? w.kind;
  const bad = ["key", "subscription", "payload", "tenant"].includes(w.kind) && seconds > 10000;
  return [name, first ? `${count(w.count)}, ${first.what || "unknown"} for ${short(seconds)}` : count(w.count), bad ? "warn" : ""];
}

function placeText(place) {
  return [place.sink || place.kind, place.detail].filter(Boolean).join(" ");
}

const inText = (now, at) => (at > now ? `in ${short(at - now)}` : "now");

// refusedText names the topic that has been refused for longest, and when it is tried again.
function refusedText(refused, now) {
  const first = refused[0];
  return `${count(refused.length)}, ${first.topic} for ${short(now - time(first.since))}, next attempt ${inText(now, time(first.until))}`;
}

// copiesText names who handles the copies that are waited for longest.
function copiesText(route, now) {
  const first = route.copy_waits?.[0];
  if (!first) return count(route.waiting_for_copies);
  const holder = first.instance || "a process without a name", until = time(first.until);
  return `${count(route.waiting_for_copies)}, of ${holder} for ${short(now - time(first.since))}` + (until ? `, until ${inText(now, until)}` : "");
}

function showRoute(route, now) {
  const chosen = latest?.selected;
  const { handler = 0, outage = 0, shutdown = 0 } = route.retries_by_class ?? {};
  const counts = chosen ? chosen.routes[route.name] ?? {} : { ...route, retries: handler + outage + shutdown };
  const open = chosen ? chosen.waiting[route.name] ?? { open: 0 } : route;
  const told = !chosen || chosen.timed;
  const oldest = time(open.oldest);
  const lag = route.direction === "from_gateway" && ["oldest not done", oldest ? short(now - oldest) : "none", oldest && now - oldest > 60000 ? "warn" : ""];
  const failedAt = time(route.last_error_at);
  const passing = failedAt && time(route.last_success) > failedAt;
  return {
    title: route.name, state: route.state, word: { outage: "outage, waiting", failing: "failing, poisoning all" }[route.state] ?? route.state,
    kind: `${placeText(route.from)} → ${placeText(route.to)}`,
    rate: rateText(rateOf(`route ${route.name}`)), unit: "messages/s",
    facts: [
      ["delivered", told ? count(counts.delivered) : "needs the journal"],
      chosen ? route.direction === "from_gateway" && ["not done", count(open.open)] : null,
      lag,
      (chosen ? ofAll : (fact) => fact)(["in flight", route.waiting ? `${count(route.in_flight)}, ${count(route.waiting)} waiting` : count(route.in_flight), route.waiting ? "warn" : ""]),
      time(route.until) && ["next attempt", inText(now, time(route.until)), "warn"],
      route.refused?.length > 0 && ["refused topics", refusedText(route.refused, now), "warn"],
      route.waiting_for_copies > 0 && ["waiting for copies", copiesText(route, now), "warn"],
      route.backlog !== undefined && [chosen ? "backlog, all tenants" : "backlog", count(route.backlog)],
      unless0("filtered", counts.filtered),
      unless0("duplicates", counts.duplicates),
      unless0("retries", counts.retries),
      unless0("returned", counts.returned),
      unless0("poisoned", counts.poisoned, "bad"),
      route.state === "failing" && ["poisoned in a row", count(route.poisoned_in_a_row), "bad"],
      ["last success", agoText(now, time(route.last_success))],
    ],
    error: route.last_error, errorAt: failedAt ? `${agoText(now, failedAt)}${passing ? ", recovered since" : ""}:` : "",
  };
}

function showSink(sink, now) {
  const checked = time(sink.checked_at);
  const state = !checked ? "unknown" : sink.up ? "up" : "down";
  return {
    title: sink.name, state, word: state === "unknown" ? "not checked yet" : state,
    kind: [sink.kind, sink.target].filter(Boolean).join(" · "),
    facts: [
      sink.durability && sink.durability !== "unknown" && ["stored", sink.durability],
      sink.lost > 0 && ["lost by the broker after it acknowledged them", count(sink.lost)],
      checked && ["asked", agoText(now, checked)],
    ],
    error: sink.up ? "" : sink.error,
  };
}

// besideRoutes orders the sinks like the routes that lead to them, so that few lines
// cross. Those that no route leads to come last.
function besideRoutes(sinks, routes) {
  const place = (sink) => {
    const places = routes.flatMap((r, i) => (r.to.sink === sink.name ? [i] : []));
    return places.length ? places.reduce((a, b) => a + b) / places.length : routes.length;
  };
  return sinks.map((sink) => ({ sink, place: place(sink) })).sort((a, b) => a.place - b.place).map((s) => s.sink);
}

let wires = [];

function showFlow(status) {
  const now = time(status.time);
  const forward = status.routes.filter((r) => r.direction !== "to_gateway");
  const back = status.routes.filter((r) => r.direction === "to_gateway");
  const list = (column, role, items, keyOf, show) => keyed(byId(column), items, keyOf,
    (item) => newNode(role, `${role} ${keyOf(item)}`.trim()), (node, item) => showNode(node, show(item, now)));
  const name = (item) => item.name;
  list("c-gateway", "Gateway", [status], () => "", showGateway);
  list("c-subscriber", "Subscriber", status.gateway.state === "unused" ? [] : [status], () => "", showSubscriber);
  list("c-routes", "Route", forward, name, showRoute);
  list("c-sinks", "Sink", besideRoutes(status.sinks, forward), name, showSink);
  list("c-back", "Route", back, name, showRoute);
  // Where the messages of the way back come from, when that is no sink of its own.
  const sources = new Map();
  for (const route of back) {
    if (!status.sinks.some((s) => s.name === route.from.sink)) sources.set(placeText(route.from), route.from);
  }
  list("c-sources", "Source", [...sources.values()], placeText, (place) => (
    { title: place.sink || place.kind, state: "unknown", word: "read", kind: place.detail, facts: [] }));
  setHidden(byId("way-back"), back.length === 0);

  const node = (column, key) => byId(column).keyed?.get(key);
  const next = [];
  const wire = (from, to, state, rate) => from && to && next.push({ from, to, tone: toneOf(state), rate });
  const gateway = node("c-gateway", "");
  const subscriber = node("c-subscriber", "");
  wire(gateway, subscriber, status.gateway.state, rateOf("received"));
  for (const route of forward) {
    const rate = rateOf(`route ${route.name}`);
    const here = node("c-routes", route.name);
    if (route.direction === "from_gateway") wire(subscriber ?? gateway, here, route.state === "outage" ? "running" : route.state, rate);
    wire(here, node("c-sinks", route.to.sink), route.state, rate);
  }
  for (const route of back) {
    const rate = rateOf(`route ${route.name}`);
    const here = node("c-back", route.name);
    wire(node("c-sinks", route.from.sink) ?? node("c-sources", placeText(route.from)), here, route.state === "outage" ? "running" : route.state, rate);
    wire(here, gateway, route.state, rate);
  }
  wires = next;
  drawWires();
}

const SVG = "http://www.w3.org/2000/svg";

// drawWires draws a curve from node to node, and dots that run along it while
// messages do.
function drawWires() {
  const svg = byId("wires");
  const base = svg.getBoundingClientRect();
  if (base.width === 0) return;
  const box = (node) => {
    const r = node.getBoundingClientRect();
    return { left: r.left - base.left, right: r.right - base.left, top: r.top - base.top, height: r.height };
  };
  // Ends at one side of one node are spread over its height.
  const ports = new Map();
  const shapes = wires.map((wire) => {
    const from = box(wire.from);
    const to = box(wire.to);
    const rightward = from.left < to.left;
    const port = (node, side) => {
      const key = side;
      const list = ports.get(node) ?? ports.set(node, {}).get(node);
      const mine = { order: 0, place: 0 };
      (list[key] ??= []).push(mine);
      return mine;
    };
    const a = port(wire.from, rightward ? "right" : "left");
    const b = port(wire.to, rightward ? "left" : "right");
    a.order = to.top + to.height / 2;
    b.order = from.top + from.height / 2;
    return { wire, from, to, rightward, a, b };
  });
  for (const sides of ports.values()) {
    for (const list of Object.values(sides)) {
      list.sort((x, y) => x.order - y.order);
      list.forEach((p, i) => { p.place = (i + 1) / (list.length + 1); });
    }
  }
  keyed(svg, shapes.map((shape, i) => ({ ...shape, i })), (s) => s.i, () => {
    const group = document.createElementNS(SVG, "g");
    for (const name of ["base", "pulse", "tip"]) {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", name);
      group.append(path);
    }
    return group;
  }, (group, s) => {
    const tip = s.rightward ? 7 : -7;
    const x1 = s.rightward ? s.from.right : s.from.left;
    const x2 = (s.rightward ? s.to.left : s.to.right) - tip;
    const y1 = s.from.top + s.from.height * s.a.place;
    const y2 = s.to.top + s.to.height * s.b.place;
    const bend = Math.min(36, Math.abs(x2 - x1) / 2) * (s.rightward ? 1 : -1);
    // Straight on until shortly before the end: what lies between is passed by.
    const straight = Math.abs(x2 - x1) > 200 ? x2 + (s.rightward ? -60 : 60) : x1;
    const d = `M${x1.toFixed(1)} ${y1.toFixed(1)}H${straight.toFixed(1)}C${(straight + bend).toFixed(1)} ${y1.toFixed(1)} ${(x2 - bend).toFixed(1)} ${y2.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
    const [line, pulse, head] = group.children;
    for (const path of [line, pulse]) if (path.getAttribute("d") !== d) path.setAttribute("d", d);
    head.setAttribute("d", `M${(x2 + tip).toFixed(1)} ${y2.toFixed(1)}l${-1.3 * tip} -5v10z`);
    group.setAttribute("data-tone", s.wire.tone);
    pulse.classList.toggle("on", s.wire.rate > 0 && s.wire.tone === "good");
    pulse.classList.toggle("fast", s.wire.rate > 50);
  });
}

// ---------------------------------------------------------------- one tenant, one endpoint

const OTHERS = "other"; // the tenant that stands for what is not told apart

const only = { tenant: "", endpoint: "", list: [], others: false, known: new Set() };

// chosenKeys are the IDs that what waits may be named by, in lower case.
function chosenKeys(chosen) {
  const ids = [];
  for (const t of only.list) {
    if (chosen.tenant && t.id.toLowerCase() !== chosen.tenant.toLowerCase()) continue;
    if (!chosen.endpoint) ids.push(t.id);
    for (const e of t.endpoints) if (!chosen.endpoint || e.id.toLowerCase() === chosen.endpoint.toLowerCase()) ids.push(e.id);
  }
  return ids.map((id) => id.toLowerCase());
}

// onlyThese is the part of a request that selects them.
const onlyThese = () => (only.tenant ? `&tenant=${encodeURIComponent(only.tenant)}` : "") + (only.endpoint ? `&endpoint=${encodeURIComponent(only.endpoint)}` : "");

// showFilter offers what there is. What is gone and selected stays selected.
function showFilter(list) {
  only.list = list;
  only.known = new Set(list.flatMap((t) => t.endpoints.map((e) => e.id.toLowerCase())));
  const options = (id, all, items, chosen) => {
    if (id === "only-tenant" && (only.others || chosen === OTHERS)) items.push([OTHERS, "others (not told apart)"]);
    if (chosen && !items.some(([value]) => value === chosen)) items.push([chosen, `${chosen} (gone)`]);
    const select = byId(id);
    keyed(select, [["", all], ...items], ([value]) => value, ([value]) => make("option", { value }), (node, [, text]) => setText(node, text));
    if (select.value !== chosen) select.value = chosen;
  };
  const tenantsShown = list.filter((t) => !only.tenant || t.id === only.tenant);
  const own = tenantsShown.flatMap((t) => t.endpoints.filter((e) => e.mine).map((e) => [e.id, `${e.name || "unnamed"} (${e.external_id || e.id})`]));
  options("only-tenant", "all", list.map((t) => [t.id, t.id]), only.tenant);
  options("only-endpoint", "all", own, only.endpoint);
  const active = Boolean(only.tenant || only.endpoint);
  setHidden(byId("filter"), list.length === 0 && !active);
  setHidden(byId("only-all"), !active);
  setHidden(byId("only-note"), !active);
  const shown = tenantsShown.map((t) => ({ ...t, endpoints: t.endpoints.filter((e) => !only.endpoint || e.id === only.endpoint) })).filter((t) => !only.endpoint || t.endpoints.length > 0);
  keyed(byId("tenants"), shown, (t) => t.id, newTenant, showTenant);
}

function select(tenant, endpoint) {
  Object.assign(only, { tenant, endpoint });
  showFilter(only.list);
  if (tenant && tenant !== OTHERS) byId("why-tenant").value = tenant;
  poison.offset = 0;
  poison.picked.clear();
  poison.at = poison.grouped = -Infinity;
  loadPoison();
  loadHistory();
  look();
  if (trace.asked > 0) findMessages();
}

byId("filter").addEventListener("submit", (event) => event.preventDefault());
byId("only-tenant").addEventListener("change", () => select(byId("only-tenant").value, ""));
byId("only-endpoint").addEventListener("change", () => select(only.tenant, byId("only-endpoint").value));
byId("only-all").addEventListener("click", () => {
  select("", "");
  byId("only-tenant").focus();
});

// ---------------------------------------------------------------- poison queue

const poison = { offset: 0, group: "", text: "", shown: [], picked: new Set(), busy: false, stop: false, seen: null, at: 0, grouped: -Infinity, inGroups: 0, loading: false };
let latest = null;

async function loadPoison() {
  if (poison.loading || !latest) return;
  poison.loading = true;
  poison.at = performance.now();
  try {
    if (!latest.poison_browsable) {
      showPoison(null);
      return;
    }
    const wanted = `api/poison?offset=${poison.offset}&limit=${PAGE_SIZE}${selected(poison)}`;
    const page = await ask(wanted, {}, 3 * TIMEOUT_MS);
    if (wanted !== `api/poison?offset=${poison.offset}&limit=${PAGE_SIZE}${selected(poison)}`) {
      poison.at = -Infinity; // something else was chosen meanwhile
      return;
    }
    if (performance.now() - poison.grouped > GROUPS_MS) await loadGroups();
    if (page.messages.length === 0 && poison.offset > 0) {
      poison.offset = Math.max(0, poison.offset - PAGE_SIZE);
      poison.at = 0; // again, with the next poll of the status
      return;
    }
    showPoison(page);
  } catch (err) {
    setText(byId("poison-empty"), `The poison queue cannot be read: ${err.message}`);
    setHidden(byId("poison-empty"), false);
  } finally {
    poison.loading = false;
  }
}

function showPoison(page) {
  const empty = byId("poison-empty");
  const messages = page?.messages ?? [];
  poison.shown = messages;
  setHidden(empty, messages.length > 0);
  if (!page) {
    setText(empty, latest.poison.sink
      ? "The messages in this queue cannot be listed: its sink is not connected yet, or does not support reading single messages."
      : "No poison queue is configured.");
  } else if (messages.length === 0) {
    setText(empty, selected(poison) ? "No such message is in the queue." : "Empty. No message has been poisoned.");
  }
  setHidden(byId("poison-search"), !page || (messages.length === 0 && !selected(poison)));
  setHidden(byId("poison-all"), !poison.group && !poison.text);
  if (!page) {
    showGroups({ groups: [] });
    poison.grouped = -Infinity;
  }
  setHidden(byId("poison-scroll"), messages.length === 0);
  keyed(byId("poison-rows"), messages, (m) => m.id, newPoisonRow, showPoisonRow);
  const there = new Set(messages.map((m) => m.id));
  for (const id of poison.picked) if (!there.has(id)) poison.picked.delete(id);
  const paged = poison.offset > 0 || Boolean(page?.more);
  setHidden(byId("poison-pager"), !paged);
  if (paged) {
    setText(byId("poison-range"), `${count(poison.offset + 1)} to ${count(poison.offset + messages.length)}`);
    byId("poison-prev").disabled = poison.offset === 0;
    byId("poison-next").disabled = !page.more;
  }
  showActions();
}

function newPoisonRow(m) {
  const cell = (name, label, ...children) => make("td", { class: name, role: "cell", ...(label ? { "data-label": label } : {}) }, ...children);
  const pick = make("input", { type: "checkbox" });
  pick.setAttribute("aria-label", `Select message ${m.id}`);
  pick.addEventListener("change", () => {
    if (pick.checked) poison.picked.add(m.id);
    else poison.picked.delete(m.id);
    showActions();
  });
  const button = make("button", { type: "button", text: "Replay" });
  button.setAttribute("aria-label", `Replay message ${m.id}`);
  button.addEventListener("click", () => change("replay", [m.id]));
  const look = make("button", { type: "button", class: "look", text: "Contents" });
  look.setAttribute("aria-label", `Show the contents of message ${m.id}`);
  look.addEventListener("click", () => showContents(`api/poison/contents?id=${encodeURIComponent(m.id)}`, m.filename || m.message_type || `message ${m.id}`, look));
  const row = make("tr", { role: "row" },
    cell("pick", "", pick),
    cell("", "", make("strong", { class: "ext type", dir: "auto" }), make("span", { class: "sub ext file", dir: "auto" }), make("span", { class: "sub ext where" })),
    cell("reason", "", make("span", { class: "class" }), make("span", { class: "sub ext text", dir: "auto" })),
    cell("by", "Route", make("span", { class: "ext route", dir: "auto" })),
    cell("num", "Size", make("span", { class: "size" })),
    cell("num", "Attempts", make("span", { class: "attempts" })),
    cell("when", "First, last", make("span", { class: "first" }), make("span", { class: "sub last" })),
    cell("act", "", button, look));
  row.dataset.id = m.id;
  return row;
}

function showPoisonRow(row, m) {
  const part = (name) => row.querySelector(`.${name}`);
  setText(part("type"), m.message_type || "no message type");
  setText(part("file"), m.filename ?? "");
  setHidden(part("file"), !m.filename);
  setText(part("where"), [`ID ${m.id}`, m.tenant && `tenant ${m.tenant}`].filter(Boolean).join(", "));
  setText(part("class"), m.foreign ? "foreign" : m.class || "unknown");
  setText(part("text"), m.foreign ? "No router wrote this message; it cannot be replayed." : m.reason || "no reason given");
  setText(part("route"), m.route || "unknown");
  setText(part("size"), bytes(m.size));
  setText(part("attempts"), m.count > 1 ? `${count(m.attempts)} in ${count(m.count)} rounds` : count(m.attempts));
  const [first, last] = [time(m.first), time(m.last)];
  setText(part("first"), first ? stamp(first) : "unknown");
  setText(part("last"), last && last !== first ? stamp(last) : "");
}

function showActions() {
  if (!latest) return;
  const can = latest.replay && latest.poison_browsable;
  setHidden(byId("replay-form"), !can);
  setHidden(byId("replay-off"), latest.replay || !latest.poison_browsable);
  const token = byId("token").value !== "";
  for (const row of byId("poison-rows").children) {
    const message = poison.shown.find((m) => m.id === row.dataset.id);
    const allowed = can && !message?.foreign;
    setHidden(row.querySelector("button"), !allowed);
    row.querySelector("button").disabled = !token || poison.busy;
    setHidden(row.querySelector(".look"), !can);
    row.querySelector(".look").disabled = !token;
    const pick = row.querySelector(".pick input");
    setHidden(pick, !allowed);
    pick.checked = poison.picked.has(row.dataset.id);
  }
  setHidden(byId("trace-look"), !latest.replay || byId("trace-messages").children.length === 0);
  for (const look of byId("trace-messages").querySelectorAll(".look")) {
    setHidden(look, !latest.replay);
    look.disabled = !token;
  }
  setHidden(byId("pick-all"), !can);
  const pickable = poison.shown.filter((m) => !m.foreign).length;
  byId("pick-all").checked = pickable > 0 && poison.picked.size === pickable;
  byId("pick-all").indeterminate = poison.picked.size > 0 && poison.picked.size < pickable;
  const button = byId("replay-selected");
  button.disabled = !token || poison.busy || poison.picked.size === 0;
  setText(button, poison.busy ? "Working …" : poison.picked.size ? `Replay selected (${poison.picked.size})` : "Replay selected");
  const drops = byId("drop-selected");
  drops.disabled = button.disabled;
  if (!drops.dataset.armed) setText(drops, poison.picked.size ? `Drop selected (${poison.picked.size})` : "Drop selected");
  for (const group of byId("poison-groups").children) {
    setHidden(group.querySelector(".replay"), !can || group.dataset.foreign === "yes");
    setHidden(group.querySelector(".drop"), !can);
    group.querySelector(".replay").disabled = group.querySelector(".drop").disabled = !token || poison.busy;
  }
}

function showResult(tone, text) {
  const result = byId("replay-result");
  result.dataset.tone = tone;
  setHidden(result, !text);
  setText(result, text);
}

const OUTCOMES = {
  delivered: "delivered", duplicate: "already handled", poisoned: "failed again, back in the queue", kept: "stayed in the queue", gone: "no longer in the queue", dropped: "dropped",
};

// selected is the part of a request that selects a group and a text.
function selected({ group, text }) {
  return (group ? `&group=${encodeURIComponent(group)}` : "") + (text ? `&q=${encodeURIComponent(text)}` : "") + onlyThese();
}

// change replays or drops messages, some with each request, until all are done, one fails for a reason that
// concerns the others too, or the user stops it.
async function change(what, ids) {
  if (poison.busy || ids.length === 0) return;
  poison.busy = true;
  poison.stop = false;
  const bar = byId("poison-bar");
  bar.max = ids.length;
  bar.value = 0;
  setHidden(byId("poison-progress"), ids.length <= BATCH);
  showResult("idle", `${what === "drop" ? "Dropping" : "Replaying"} ${ids.length === 1 ? `message ${ids[0]}` : `${count(ids.length)} messages`} …`);
  showActions();
  const results = [];
  let failure = "";
  try {
    while (results.length < ids.length && !failure && !poison.stop) {
      const batch = ids.slice(results.length, results.length + BATCH);
      const answer = await ask(`api/poison/${what}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", Authorization: `Bearer ${byId("token").value}` },
        body: JSON.stringify({ ids: batch }),
      }, 120000);
      results.push(...answer.results);
      bar.value = results.length;
      if (answer.error) failure = `Ended early: ${answer.error}.`;
      else if (answer.results.length < batch.length) failure = "Ended early.";
    }
    if (poison.stop && results.length < ids.length) failure = "Stopped.";
  } catch (err) {
    failure = err instanceof Refused ? `Refused: ${err.message}.` : `No response: ${err.message}. Messages in progress may be done.`;
  }
  const sums = new Map();
  for (const r of results) sums.set(r.outcome, (sums.get(r.outcome) ?? 0) + 1);
  const lines = [[...sums].map(([outcome, n]) => `${count(n)} ${OUTCOMES[outcome] ?? outcome}`).join("; ")];
  const told = results.filter((r) => r.reason);
  for (const r of told.slice(0, MAX_REASONS)) lines.push(`Message ${r.id}: ${r.reason}`);
  if (told.length > MAX_REASONS) lines.push(`${count(told.length - MAX_REASONS)} more with a reason.`);
  if (failure) lines.push(results.length && ids.length > results.length ? `${failure} ${count(ids.length - results.length)} not tried.` : failure);
  const well = !failure && results.every((r) => r.outcome === "delivered" || r.outcome === "duplicate" || r.outcome === "dropped");
  showResult(well ? "good" : results.length ? "warn" : "bad", lines.filter(Boolean).join("\n"));
  for (const r of results) poison.picked.delete(r.id);
  poison.busy = false;
  poison.grouped = -Infinity;
  setHidden(byId("poison-progress"), true);
  showActions();
  loadPoison();
}

const MAX_REASONS = 20; // that are shown of one replay

// drop asks before it drops: the button has to be pressed twice.
function armed(button, text) {
  if (button.dataset.armed) {
    delete button.dataset.armed;
    return true;
  }
  button.dataset.armed = "yes";
  setText(button, text);
  return false;
}

function disarm(event) {
  const button = event.target;
  if (!button.dataset.armed) return;
  delete button.dataset.armed;
  setText(button, "Drop all");
  showActions();
}

// changeGroup replays or drops everything in a group.
async function changeGroup(what, group) {
  let list;
  try {
    list = await ask(`api/poison/ids?${selected({ group }).slice(1)}`, {}, 3 * TIMEOUT_MS);
  } catch (err) {
    showResult("bad", `The group cannot be read: ${err.message}.`);
    return;
  }
  change(what, what === "drop" ? [...list.ids, ...list.foreign] : list.ids);
}

async function loadGroups() {
  const answer = await ask(`api/poison/groups?${onlyThese().slice(1)}`, {}, 3 * TIMEOUT_MS);
  poison.grouped = performance.now();
  showGroups(answer);
}

function showGroups({ groups, messages = 0, partial }) {
  poison.inGroups = messages;
  const shown = groups.length > 1 || groups[0]?.count > 1 ? groups.slice(0, SHOWN_GROUPS) : [];
  setHidden(byId("poison-groups"), shown.length === 0);
  keyed(byId("poison-groups"), shown, (g) => g.id, newGroup, showGroup);
  const more = groups.length - shown.length;
  const notes = [shown.length && more > 0 && `${count(more)} more groups.`, partial && `Of the oldest ${count(messages)} messages.`].filter(Boolean);
  setHidden(byId("poison-groups-more"), notes.length === 0);
  setText(byId("poison-groups-more"), notes.join(" "));
  showActions();
}

function newGroup(g) {
  const name = [g.message_type || "no message type", g.route && `route ${g.route}`].filter(Boolean).join(", ");
  const button = (text, does, listener) => {
    const node = make("button", { type: "button", class: does, text });
    node.setAttribute("aria-label", seen(`${text}: ${name}`));
    node.addEventListener("click", () => listener(node));
    return node;
  };
  const dropButton = button("Drop all", "drop", (node) => { if (armed(node, "Really drop?")) changeGroup("drop", g.id); });
  dropButton.addEventListener("blur", disarm);
  return make("li", {},
    make("strong", { class: "number" }),
    make("span", { class: "what" },
      make("span", { class: "ext", dir: "auto", text: g.foreign ? "No router wrote these messages." : g.reason || "no reason given" }),
      make("span", { class: "sub ext", dir: "auto", text: [g.class, name].filter(Boolean).join(", ") })),
    make("span", { class: "does" }, button("Show", "show", () => choose(g.id, "")), button("Replay all", "replay", () => changeGroup("replay", g.id)), dropButton));
}

function showGroup(node, g) {
  setText(node.querySelector(".number"), count(g.count));
  node.dataset.foreign = g.foreign ? "yes" : "";
}

// choose shows a group, the messages with a text, or all.
function choose(group, text) {
  Object.assign(poison, { group, text, offset: 0 });
  poison.picked.clear();
  byId("poison-query").value = text;
  poison.at = -Infinity;
  loadPoison();
}

byId("poison-search").addEventListener("submit", (event) => {
  event.preventDefault();
  choose("", byId("poison-query").value.trim());
});
byId("poison-all").addEventListener("click", () => choose("", ""));
byId("poison-stop").addEventListener("click", () => { poison.stop = true; });
byId("drop-selected").addEventListener("click", (event) => {
  if (armed(event.target, `Really drop ${count(poison.picked.size)}?`)) change("drop", [...poison.picked]);
});
byId("drop-selected").addEventListener("blur", disarm);

// ---------------------------------------------------------------- contents of a message

const MAX_VALUES = 200; // rows of the table
const contents = { asked: 0, from: null, map: "" };

// The picture is made of a farmer's data. As an image it can neither run scripts nor load anything.
function showPicture(data, type, text) {
  const image = byId("contents-map");
  if (contents.map) URL.revokeObjectURL(contents.map);
  contents.map = data ? URL.createObjectURL(new Blob([data], { type })) : "";
  setHidden(image, !data);
  image.alt = data ? text : "";
  if (data) image.src = contents.map;
  else image.removeAttribute("src");
}

// The types of pictures that a payload may be shown as. SVG is not among them.
const PICTURES = ["image/png", "image/jpeg", "image/gif"];

// showPreview shows a payload that is no farm data; null hides it.
function showPreview(preview, name) {
  const text = byId("contents-text");
  setHidden(text, !preview?.text);
  setText(text, (preview?.text ?? "").replaceAll("\r\n", "\n").replaceAll("\t", "    "));
  const findings = byId("contents-findings");
  if (!preview) return;
  if (preview.kind === "image" && PICTURES.includes(preview.image_type)) {
    showPicture(Uint8Array.from(atob(preview.image), (c) => c.charCodeAt(0)), preview.image_type, `Picture ${seen(name)}`);
  }
  if (preview.kind === "empty") findings.append(make("li", { text: "The payload is empty." }));
  for (const entry of preview.entries ?? []) findings.append(make("li", { text: `${entry.name}, ${bytes(entry.size)}` }));
  if (preview.more) findings.append(make("li", { text: "There is more than is shown." }));
}

function showPairs(metadata) {
  const list = byId("contents-pairs");
  list.replaceChildren();
  for (const [key, value] of Object.entries(metadata).sort()) list.append(make("dt", { text: key }), make("dd", { text: value }));
  setHidden(byId("contents-metadata"), list.children.length === 0);
}

// hideContents puts the panel back to where it is in the page, hidden.
function hideContents() {
  contents.asked++;
  setHidden(byId("contents"), true);
  showPicture("");
  byId("poison-pager").before(byId("contents"));
}

// showContents asks for the contents of a message called name, on behalf of a button: below that of a message that was found, or
// below the poison queue.
async function showContents(path, name, from) {
  hideContents();
  const asked = contents.asked;
  contents.from = from;
  const values = byId("contents-values");
  if (byId("trace-messages").contains(from)) from.after(byId("contents"));
  setHidden(byId("contents"), false);
  setText(byId("h-contents"), `Contents of ${name}`);
  setText(byId("contents-line"), "Reading …");
  showPicture("");
  showPreview(null);
  showPairs({});
  values.replaceChildren();
  byId("contents-findings").replaceChildren();
  setHidden(byId("contents-scroll"), true);
  setHidden(byId("contents-more"), true);
  setHidden(byId("contents-place"), true);
  byId("contents").focus();
  let answer;
  try {
    answer = await ask(path, { headers: { Authorization: `Bearer ${byId("token").value}` } }, 4 * TIMEOUT_MS);
  } catch (err) {
    if (asked === contents.asked) setText(byId("contents-line"), err instanceof Refused ? `Not shown: ${err.message}.` : `No response: ${err.message}.`);
    return;
  }
  if (asked !== contents.asked) return; // another one was asked for
  setText(byId("contents-line"), answer.line);
  setText(byId("contents-place"), `From ${answer.place}`);
  setHidden(byId("contents-place"), !answer.place);
  showPairs(answer.metadata);
  if (answer.preview) {
    showPreview(answer.preview, name);
    return;
  }
  showPicture(answer.svg, "image/svg+xml", `Map of ${seen(name)}: tracks, fields and grids`);
  const rows = answer.summary.sets.flatMap((set) => set.logs.flatMap((log) => log.columns.map((c) => ({ log, c }))));
  const cell = (text, number) => make("td", { class: number ? "num" : "ext", text });
  for (const { log, c } of rows.slice(0, MAX_VALUES)) {
    const unit = c.unit ? ` ${c.unit}` : "";
    values.append(make("tr", {}, cell(log.name), cell(`${c.ddi} ${c.name ?? ""}`.trim()), cell([c.device, c.element].filter(Boolean).join(", ")),
      cell(count(c.count), true), cell(c.count ? `${c.min}${unit}` : "", true), cell(c.count ? `${c.max}${unit}` : "", true)));
  }
  setHidden(byId("contents-scroll"), rows.length === 0);
  setHidden(byId("contents-more"), rows.length <= MAX_VALUES);
  setText(byId("contents-more"), `${count(rows.length - MAX_VALUES)} more.`);
  const findings = [...answer.summary.findings, ...answer.summary.sets.flatMap((s) => [...s.findings, ...s.logs.flatMap((log) => log.findings)])];
  byId("contents-findings").append(...findings.slice(0, 20).map((f) => make("li", { text: f.text })));
}

byId("contents-close").addEventListener("click", () => {
  hideContents();
  if (contents.from?.isConnected) contents.from.focus();
});

byId("replay-form").addEventListener("submit", (event) => {
  event.preventDefault();
  change("replay", [...poison.picked]);
});
for (const [id, other] of [["token", "trace-token"], ["trace-token", "token"]]) {
  byId(id).addEventListener("input", () => {
    byId(other).value = byId(id).value;
    showActions();
  });
}
byId("pick-all").addEventListener("change", (event) => {
  poison.picked = new Set(event.target.checked ? poison.shown.filter((m) => !m.foreign).map((m) => m.id) : []);
  showActions();
});
// ---------------------------------------------------------------- the life of a message

const trace = { asked: 0, text: "" };

// precise is a time to the millisecond, in UTC as in the log.
const precise = (text) => new Date(text).toISOString();

function traceNames(m) {
  const names = [];
  if (m.message_type) names.push(m.message_type);
  if (m.bytes >= 0) names.push(bytes(m.bytes));
  if (m.context_id) names.push(`context ${m.context_id}`);
  if (m.tenant) names.push(`tenant ${m.tenant}`);
  if (m.endpoint) names.push(`endpoint ${m.endpoint}`);
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

function newTraced(m) {
  const events = make("ol");
  const lines = [m.filename || m.message_type || m.uuid || "message", traceNames(m), m.state];
  for (const e of m.events) {
    const detail = traceDetail(e);
    events.append(make("li", {}, make("time", { datetime: e.time, text: precise(e.time) }), make("span", { class: "where", text: e.step }),
      make("span", { class: "ext", dir: "auto", text: detail })));
    lines.push(`  ${precise(e.time)}  ${e.step}  ${detail}`);
  }
  for (const r of m.unseen ?? []) {
    const text = `${r.route}: ${r.why}`;
    events.append(make("li", {}, make("span", { class: "muted", text: "–" }), make("span", { class: "where", text: "never saw it" }), make("span", { class: "ext", dir: "auto", text })));
    lines.push(`  never saw it  ${text}`);
  }
  trace.text += `${lines.map(seen).join("\n")}\n\n`;
  const node = make("li", {},
    make("h3", { class: "ext", dir: "auto", text: lines[0] }),
    make("p", { class: "muted small ext", text: lines[1] }),
    make("p", { class: "where", text: m.state }));
  const id = m.message_ids?.[0] ?? m.delivery ?? m.uuid;
  if (id) {
    const look = make("button", { type: "button", class: "look", text: "Contents" });
    look.setAttribute("aria-label", `Show the contents of ${seen(lines[0])}, message ${id}`);
    const path = `api/contents?id=${encodeURIComponent(id)}${m.endpoint ? `&endpoint=${encodeURIComponent(m.endpoint)}` : ""}`;
    look.addEventListener("click", () => showContents(path, lines[0], look));
    node.append(look);
  }
  node.append(events);
  return node;
}

// showJSON has the link lead to the answer: a link sends no token.
function showJSON(path, answer) {
  const link = byId("trace-json");
  if (link.href.startsWith("blob:")) URL.revokeObjectURL(link.href);
  link.toggleAttribute("download", Boolean(readToken));
  link.setAttribute("href", readToken ? URL.createObjectURL(new Blob([JSON.stringify(answer, null, 2)], { type: "application/json" })) : path);
}

async function findMessages(event) {
  event?.preventDefault();
  const asked = ++trace.asked;
  const query = byId("trace-query").value.trim();
  const result = byId("trace-result");
  const say = (tone, text) => {
    result.dataset.tone = tone;
    setText(result, text);
    setHidden(result, false);
  };
  const path = `api/trace?q=${encodeURIComponent(query)}${onlyThese()}`;
  let answer;
  try {
    answer = await ask(path, {}, 4 * TIMEOUT_MS);
  } catch (err) {
    if (asked === trace.asked) say("bad", err instanceof Refused ? `Not found: ${err.message}.` : `No response: ${err.message}.`);
    return;
  }
  if (asked !== trace.asked) return; // another one was asked for
  const found = answer.messages.length;
  trace.text = "";
  if (byId("trace-messages").contains(byId("contents"))) hideContents();
  byId("trace-messages").replaceChildren(...answer.messages.map(newTraced));
  showActions();
  setHidden(byId("trace-copy"), found === 0 || !navigator.clipboard);
  setHidden(byId("trace-json"), found === 0);
  showJSON(path, answer);
  setText(byId("trace-since"), `Known since ${stamp(time(answer.since) ?? Date.now())}, in this process`);
  if (found === 0) say("warn", "Nothing is known of it. The journal has neither older messages nor those of other instances.");
  else say("good", `${count(found + (answer.more ?? 0))} ${found + (answer.more ?? 0) === 1 ? "message" : "messages"} found${answer.more ? `, the newest ${count(found)} are shown` : ""}.`);
}

byId("trace-form").addEventListener("submit", async (event) => {
  await findMessages(event);
  byId("trace").scrollIntoView({ block: "start" });
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  event.preventDefault();
  byId("trace-query").focus();
  byId("trace-query").select();
});
byId("trace-look").addEventListener("submit", (event) => {
  event.preventDefault();
  byId("trace-messages").querySelector(".look:enabled")?.focus();
});
byId("trace-copy").addEventListener("click", () => navigator.clipboard.writeText(trace.text).catch(() => {}));

// ---------------------------------------------------------------- why nothing arrives

const why = { asked: 0 };

function newLink(link) {
  const state = stateBadge();
  setState(state, link.state);
  const node = make("li", {}, make("span", { class: "where", text: link.name }), state, make("span", { class: "ext", dir: "auto", text: link.detail }));
  if (link.remedy) node.append(make("span", { class: "remedy ext", dir: "auto", text: link.remedy }));
  return node;
}

async function findOutWhy(event) {
  event.preventDefault();
  const asked = ++why.asked;
  const result = byId("why-result");
  const say = (tone, text) => {
    result.dataset.tone = tone;
    setText(result, text);
    setHidden(result, false);
  };
  const query = new URLSearchParams();
  for (const name of ["tenant", "type", "from"]) {
    const value = byId(`why-${name}`).value.trim();
    if (value) query.set(name, value);
  }
  let answer;
  try {
    answer = await ask(`api/why?${query}`);
  } catch (err) {
    if (asked !== why.asked) return;
    byId("why-links").replaceChildren();
    say("bad", err instanceof Refused ? `Not asked: ${err.message}.` : `No response: ${err.message}.`);
    return;
  }
  if (asked !== why.asked) return; // something else was asked
  byId("why-links").replaceChildren(...answer.links.map(newLink));
  const missing = answer.links.find((link) => link.name === answer.missing);
  if (missing) say("bad", `The ${missing.name} is missing: ${missing.remedy}.`);
  else say("good", "Nothing is missing, as far as can be known.");
}

// offer fills a datalist.
function offer(id, values) {
  keyed(byId(id), [...new Set(values)].sort(), (v) => v, (v) => make("option", { value: v }), () => {});
}

byId("why-form").addEventListener("submit", findOutWhy);

function turnPage(by) {
  poison.offset = Math.max(0, poison.offset + by);
  poison.picked.clear();
  loadPoison();
}
byId("poison-prev").addEventListener("click", () => turnPage(-PAGE_SIZE));
byId("poison-next").addEventListener("click", () => turnPage(PAGE_SIZE));

// ---------------------------------------------------------------- the last hour and day

const past = { range: "hour", at: -Infinity, asked: 0 };

async function loadHistory() {
  past.at = performance.now();
  const asked = ++past.asked;
  const empty = byId("history-empty");
  try {
    const record = await ask(`api/history?range=${past.range}${onlyThese()}`);
    if (asked !== past.asked) return;
    only.others = Boolean(record.others);
    showHistory(record);
  } catch (err) {
    if (asked !== past.asked) return;
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
  if (!record.timed) notes.push(chosen ? "only lag is told by tenant without the journal, which is off" : "latencies need the journal, which is off");
  const lost = time(record.timed_incompletely_until);
  if (lost) notes.push(`the journal was too small for all ${chosen ? "of it" : "latencies"} until ${stamp(lost)}`);
  if (chosen && record.crowded && record.tenant !== OTHERS) notes.push("there are more endpoints than are told apart: what is not here is with the tenant “others”");
  setText(byId("history-since"), `${notes.join("; ")}.`);
  keyed(byId("history-routes"), record.routes, (r) => r.name, newPast, (node, route) => showPast(node, route, record));
}

for (const range of ["hour", "day"]) {
  byId(`history-${range}`).addEventListener("click", () => {
    past.range = range;
    for (const other of ["hour", "day"]) byId(`history-${other}`).setAttribute("aria-pressed", String(other === range));
    loadHistory();
  });
}

const OPEN_ROUTES = 3; // whose history is shown at first

function newPast(route) {
  const graphs = make("div", { class: "graphs" });
  for (const name of ["throughput", "lag", "errors", "latency"]) graphs.append(newGraph(name));
  const head = make("tr", {}, make("th", { scope: "col", text: "Step" }), ...["Messages", "Half within", "99 % within"].map((text) => make("th", { scope: "col", class: "num", text })));
  const steps = make("div", { class: "scroll steps", role: "region", tabindex: "0" },
    make("table", {}, make("caption", { class: "hidden" }), make("thead", {}, head), make("tbody")));
  steps.setAttribute("aria-label", seen(`Latency by step: ${route.name}`));
  steps.querySelector("caption").textContent = seen(`Latency by step: ${route.name}`);
  const details = make("details", byId("history-routes").children.length < OPEN_ROUTES ? { open: "" } : {},
    make("summary", {}, make("span", { class: "ext", dir: "auto", text: route.name }), make("span", { class: "muted small sum" })), graphs, steps);
  return make("div", { class: "panel past" }, details);
}

function newGraph(name) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 240 72", preserveAspectRatio: "none", role: "img", focusable: "false" })) svg.setAttribute(key, value);
  for (const part of ["area", "line", "line second", "bars"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", part);
    svg.append(path);
  }
  return make("figure", { class: `graph ${name}` },
    make("figcaption", {}, make("span", { class: "what" }), make("strong", { class: "most" })), svg,
    make("div", { class: "axis", "aria-hidden": "true" }, make("span", { class: "from" }), make("span", { class: "to" })));
}

// seconds is a duration in the unit that suits it.
function seconds(s) {
  if (s < 0.001) return `${(s * 1000).toFixed(1)} ms`;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  return duration(s * 1000);
}

const errorsOf = (p) => p.poisoned + p.returned + p.retries;

function showPast(node, route, record) {
  const from = time(record.from), step = record.step_seconds * 1000, to = from + (past.range === "day" ? 96 : 60) * step;
  const frame = { from, to, step };
  const total = route.total;
  setText(node.querySelector(".sum"), [`${count(total.delivered)} delivered`, total.filtered && `${count(total.filtered)} filtered`,
    total.duplicates && `${count(total.duplicates)} duplicates`, total.poisoned && `${count(total.poisoned)} poisoned`].filter(Boolean).join(", "));
  const points = (value) => route.periods.map((p) => [time(p.time), value(p)]).filter((p) => p[1] !== undefined);
  // The current period has only begun, and so perhaps has the process in the first one.
  const spans = new Map(route.periods.map((p) => [p.time, Math.max(1, (Math.min(time(p.time) + step, time(record.to)) - Math.max(time(p.time), time(record.since))) / 1000)]));
  drawGraph(node.querySelector(".throughput"), frame, { title: "Delivered", lines: [points((p) => p.delivered / spans.get(p.time))], text: (v) => `${rateText(v)}/s`, area: true });
  const backlog = route.periods.some((p) => p.backlog !== undefined);
  if (backlog) drawGraph(node.querySelector(".lag"), frame, { title: "Backlog in the source", lines: [points((p) => p.backlog)], text: count, area: true });
  else if (!route.from_gateway && (record.tenant || record.endpoint)) drawGraph(node.querySelector(".lag"), frame, { title: "Backlog: not told by tenant", lines: [[]], text: count });
  else if (route.from_gateway) drawGraph(node.querySelector(".lag"), frame, { title: "Oldest not done", lines: [points((p) => p.age_seconds)], text: seconds, area: true });
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

const STEPS = [["hold", "Wait for a file"], ["fetch", "Fetch the payload"], ["wait", "Wait for the route"], ["handle", "Filter and transform"], ["store", "Store in the sink"],
  ["end_to_end", "End to end, until delivered"], ["confirm", "Then confirm"]];

// drawGraph draws what {lines: [[[time, value]]], text, area, bars, tone, title} says, and tells it in words.
function drawGraph(node, frame, what) {
  const x = (at) => ((at - frame.from) / (frame.to - frame.from)) * 240;
  const width = x(frame.from + frame.step);
  const all = what.lines.flat();
  const top = Math.max(...all.map((p) => p[1]), 0);
  const y = (v) => 70 - (top ? v / top : 0) * 64;
  // Neighbors are joined, and what stands alone is as wide as its period.
  const path = (line) => line.map(([at, v], i) => {
    const joined = i > 0 && at - line[i - 1][0] <= frame.step * 1.5;
    const next = i + 1 < line.length && line[i + 1][0] - at <= frame.step * 1.5;
    const h = `${y(v).toFixed(1)}`;
    return joined || next ? `${joined ? "L" : "M"}${(x(at) + width / 2).toFixed(1)} ${h}` : `M${x(at).toFixed(1)} ${h}h${width.toFixed(1)}`;
  }).join("");
  const bars = ([at, v]) => (v ? `M${(x(at) + width * 0.12).toFixed(1)} 72V${y(v).toFixed(1)}h${(width * 0.76).toFixed(1)}V72z` : "");
  const area = (line) => line.map(([at, v]) => `M${x(at).toFixed(1)} 72V${y(v).toFixed(1)}h${width.toFixed(2)}V72z`).join("");
  const parts = node.querySelector("svg").children;
  const draw = [what.area ? area(what.lines[0]) : "", what.bars ? "" : path(what.lines[0]), what.lines[1] ? path(what.lines[1]) : "", what.bars ? what.lines[0].map(bars).join("") : ""];
  draw.forEach((d, i) => { if (parts[i].getAttribute("d") !== d) parts[i].setAttribute("d", d); });
  if (what.tone) node.dataset.tone = what.tone;
  else delete node.dataset.tone;
  const clock = (at) => new Date(at).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  const last = what.lines.map((line) => line.at(-1)).filter(Boolean);
  const peak = all.reduce((a, p) => (a && a[1] >= p[1] ? a : p), null);
  const most = all.length ? `at most ${what.text(top)}` : "none";
  setText(node.querySelector(".what"), what.title);
  setText(node.querySelector(".most"), most);
  setText(node.querySelector(".from"), clock(frame.from));
  setText(node.querySelector(".to"), clock(frame.to));
  const words = all.length ? `${most}, at ${clock(peak[0])}; lately ${last.map((p) => what.text(p[1])).join(" and ")}` : "nothing";
  node.querySelector("svg").setAttribute("aria-label", `${what.title}, from ${clock(frame.from)} to ${clock(frame.to)}: ${words}.`);
}

// ---------------------------------------------------------------- the configuration

const settings = { list: [], seen: "", asked: 0 };

async function loadConfig(status) {
  settings.seen = `${status.started} ${status.config?.loaded_at} ${status.config?.error}`;
  const asked = ++settings.asked;
  try {
    const answer = await ask("api/config");
    if (asked !== settings.asked) return;
    settings.list = answer.settings;
    const at = time(answer.loaded_at);
    setText(byId("config-since"), [at && `Applied ${stamp(at)}; lines are those of the file as it was then`, answer.error && "the file as it is now was not applied"].filter(Boolean).join("; "));
    showConfig();
  } catch (err) {
    if (asked !== settings.asked) return;
    settings.seen = "";
    setText(byId("config-empty"), `The configuration is unavailable: ${err.message}`);
    setHidden(byId("config-empty"), false);
  }
}

const valueText = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const setIn = (s) => [s.source || "default", s.file && `read from ${s.file}`, s.environment && "environment", s.restart && "the file differs by now: restart"].filter(Boolean).join(", ");

function showConfig() {
  const wanted = byId("config-query").value.trim().toLowerCase();
  const all = byId("config-defaults").checked;
  const shown = settings.list.filter((s) => (all || s.source) && (!wanted || `${s.path} ${valueText(s.value)}`.toLowerCase().includes(wanted)));
  keyed(byId("config-rows"), shown, (s) => s.path, (s) => make("tr", { role: "row" },
    make("td", { role: "cell", class: "key", text: s.path }), make("td", { role: "cell", class: "value", dir: "auto" }), make("td", { role: "cell", class: "set", "data-label": "Set in" }, make("span", { class: "ext" }))), (row, s) => {
    setText(row.children[1], valueText(s.value));
    setText(row.querySelector(".set span"), setIn(s));
    if (s.restart) row.querySelector(".set").dataset.tone = "warn";
    else delete row.querySelector(".set").dataset.tone;
  });
  setText(byId("config-empty"), "Nothing of that.");
  setHidden(byId("config-empty"), shown.length > 0);
}

byId("config-form").addEventListener("submit", (event) => event.preventDefault());
byId("config-query").addEventListener("input", showConfig);
byId("config-defaults").addEventListener("change", showConfig);

// ---------------------------------------------------------------- tenants

const tenants = { at: 0, seen: "" };

async function loadTenants() {
  tenants.at = performance.now();
  const empty = byId("tenants-empty");
  try {
    const list = (await ask("api/tenants")).tenants;
    const endpoints = list.reduce((sum, t) => sum + t.endpoints.length, 0);
    setText(byId("tenants-count"), list.length ? `${count(list.length)} ${list.length === 1 ? "tenant" : "tenants"}, ${count(endpoints)} ${endpoints === 1 ? "endpoint" : "endpoints"}` : "");
    setHidden(empty, list.length > 0);
    setText(empty, "No tenant has authorized the application yet.");
    showFilter(list);
    offer("why-tenants", list.map((t) => t.id));
    offer("why-types", list.flatMap((t) => t.endpoints.flatMap((e) => [...(e.sends ?? []), ...(e.receives ?? [])])));
  } catch (err) {
    setText(empty, `Tenants unavailable: ${err.message}`);
    setHidden(empty, false);
  }
}

function newTenant() {
  const head = make("tr", { role: "row" }, ...["Endpoint", "Type", "Sends", "Receives", "Connected now"].map((text) => make("th", { scope: "col", role: "columnheader", text })));
  return make("div", { class: "panel tenant" },
    make("details", { open: "" },
      make("summary", {}, make("span", { class: "ext id" }), make("span", { class: "muted small ext scopes" })),
      make("div", { class: "scroll" }, make("table", { role: "table", class: "cards" }, make("thead", { role: "rowgroup" }, head), make("tbody", { role: "rowgroup" })))));
}

function showTenant(node, tenant) {
  setText(node.querySelector(".id"), `Tenant ${tenant.id}`);
  setText(node.querySelector(".scopes"), (tenant.scopes ?? []).join(", "));
  keyed(node.querySelector("tbody"), tenant.endpoints, (e) => e.id, () => make("tr", { role: "row" },
    make("td", { role: "cell" }, make("strong", { class: "ext name", dir: "auto" }), make("span", { class: "tag", text: "ours" }), make("span", { class: "sub ext external" })),
    make("td", { role: "cell", "data-label": "Type" }, make("span", { class: "ext kind" })),
    make("td", { role: "cell", "data-label": "Sends" }, make("ul", { class: "types sends" })),
    make("td", { role: "cell", "data-label": "Receives" }, make("ul", { class: "types receives" })),
    make("td", { role: "cell", "data-label": "Connected now" }, make("span", { class: "routed" }))), showEndpoint);
}

function showEndpoint(row, e) {
  setText(row.querySelector(".name"), e.name || "unnamed");
  setHidden(row.querySelector(".tag"), !e.mine);
  setText(row.querySelector(".external"), e.external_id || e.id);
  setText(row.querySelector(".kind"), e.type.replaceAll("_", " "));
  for (const [name, list] of [["sends", e.sends], ["receives", e.receives]]) {
    keyed(row.querySelector(`.${name}`), [...new Set(list ?? [])], (t) => t, (t) => make("li", { class: "ext", text: t }), () => {});
  }
  const routed = e.routed_to === undefined ? "" : `sends to ${count(e.routed_to)}, receives from ${count(e.routed_from)}`;
  setText(row.querySelector(".routed"), routed || "–");
}

// ---------------------------------------------------------------- the loop

let lastAnswer = 0;
let timer = 0;
let looking = false;

function showStatus(status) {
  latest = status;
  remember(status);
  setText(byId("name"), status.name ?? "");
  document.title = `${status.state === "running" ? "" : `(${status.state}) `}${status.name || "agrimill"}`;
  const up = time(status.started);
  setText(byId("subtitle"), [`agrimill ${status.version ?? ""}`.trim(), up && `up for ${short(time(status.time) - up)}`].filter(Boolean).join(" · "));
  setState(byId("state"), status.state, status.state);
  setHidden(byId("metrics"), !status.metrics || Boolean(readToken));
  setText(byId("poison-where"), status.poison.sink ? `topic ${status.poison.topic} in ${status.poison.sink}` : "");
  showTiles(status);
  showAccount(status);
  showVerdict(status);
  showFlow(status);
  showActions();
}

async function look() {
  if (looking) return;
  looking = true;
  clearTimeout(timer);
  try {
    const wanted = onlyThese();
    const status = await ask(`api/status?${wanted.slice(1)}`);
    if (wanted !== onlyThese()) { // something else was selected meanwhile
      looking = false;
      look();
      return;
    }
    hideLogin(status);
    lastAnswer = Date.now();
    setHidden(byId("gone"), true);
    byId("main").classList.remove("stale");
    setText(byId("updated"), `updated ${new Date(lastAnswer).toLocaleTimeString()}`);
    showStatus(status);
    lookAround(status);
  } catch (err) {
    if (err instanceof Refused && (err.status === 401 || err.status === 429)) showLogin(err);
    else showGone(err);
  }
  looking = false;
  timer = setTimeout(look, document.hidden || !byId("login").hidden ? POLL_HIDDEN_MS : POLL_MS);
}

// lookAround reads what costs more, when something happened and now and then.
function lookAround(status) {
  const now = performance.now();
  const happened = `${status.started} ${total(status, "poisoned")} ${status.poison_browsable}`;
  if (happened !== poison.seen || now - poison.at > QUEUE_MS) {
    // Grouping reads the whole queue, so a large one is not grouped each time.
    if (happened !== poison.seen && poison.inGroups < FEW) poison.grouped = -Infinity;
    poison.seen = happened;
    loadPoison();
  }
  if (now - past.at > HISTORY_MS) loadHistory();
  if (`${status.started} ${status.config?.loaded_at} ${status.config?.error}` !== settings.seen) loadConfig(status);
  const stream = `${status.started} ${status.gateway.state} ${status.gateway.reconnects}`;
  if (stream !== tenants.seen || now - tenants.at > TENANTS_MS) {
    tenants.seen = stream;
    loadTenants();
  }
}

// showLogin asks for the token. A wrong one is forgotten, so that it is not sent every second.
function showLogin(err) {
  const first = byId("login").hidden;
  setHidden(byId("login"), false);
  setHidden(byId("main"), true);
  setHidden(byId("gone"), true);
  setHidden(byId("trace-form"), true);
  setState(byId("state"), "idle", "protected");
  document.title = "(protected) agrimill";
  if (readToken) {
    readToken = "";
    const result = byId("login-result");
    result.dataset.tone = "bad";
    setText(result, err.status === 429 ? "Too many wrong tokens: try again later." : "The token is wrong.");
    setHidden(result, false);
    byId("login-token").select();
  }
  if (first) byId("login-token").focus();
}

function hideLogin(status) {
  if (byId("login").hidden) return;
  setHidden(byId("login"), true);
  setHidden(byId("login-result"), true);
  setHidden(byId("main"), false);
  setHidden(byId("trace-form"), false);
  setHidden(byId("api-link"), true);
  byId("login-token").value = "";
  if (status.replay && !byId("token").value) byId("token").value = readToken;
  byId("pipeline").focus();
}

byId("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  readToken = byId("login-token").value;
  look();
});

function showGone(err) {
  const since = lastAnswer ? ` since ${new Date(lastAnswer).toLocaleTimeString()}` : "";
  const why = err instanceof Refused ? ` (${err.message})` : "";
  setText(byId("gone").querySelector("p"), `No response from agrimill${since}${why}. The data shown is out of date. Retrying every second.`);
  setHidden(byId("gone"), false);
  byId("main").classList.add("stale");
  setState(byId("state"), "gone", "no response");
  document.title = "(no response) agrimill";
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});
new ResizeObserver(drawWires).observe(byId("flow"));
look();
