// What the boxes of the picture say of each part.

import { session } from "./api.js";
import { endpointName, endpointOf, selectedIDs } from "./directory.js";
import { agoText, bytes, count, inText, rateText, short, time } from "./format.js";
import { rateOf } from "./rates.js";

// unless leaves a fact out while it is 0.
const unless0 = (term, n, tone) => (n ? [term, count(n), tone] : null);

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

export function showGateway(status, now) {
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

export function showSubscriber(status, now) {
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

// chosenFacts are what waits of a tenant or an endpoint, and, marked as such, what is not distinguished.
function chosenFacts(status, now) {
  const s = status.subscriber, chosen = status.selected;
  const oldest = time(chosen.oldest_unconfirmed);
  const keys = selectedIDs();
  const waits = (s.waits ?? []).map((w) => {
    if (w.kind !== "tenant" && w.kind !== "key") return ofAll(waitFact(w, now)); // hosts, messages and files tell no tenant
    if (w.count > w.longest.length) return ofAll(waitFact(w, now)); // not all of them are named
    const theirs = w.longest.filter((x) => keys.has(x.what.toLowerCase()));
    // A key that is no endpoint may be anybody's.
    if (w.kind === "key" && theirs.length === 0 && !w.longest.every((x) => endpointOf(x.what))) return ofAll(waitFact(w, now));
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

// brief is the beginning of a UUID, by which the search finds it, too.
const brief = (id) => id.replace(/^([0-9a-f]{8})-[0-9a-f-]{27}$/i, "$1…");

// waitFact says how many of a kind wait, and which one has waited longest.
function waitFact(w, now) {
  const first = w.longest[0];
  const since = time(first?.since), seconds = since ? now - since : 0;
  const name = { key: "blocked endpoints", subscription: "slow subscriptions", nack: "nacked, waiting", payload: "payload hosts failing", tenant: "tenants failing to confirm",
    file: "messages waiting for files", "file confirmation": "confirmations held for files" }[w.kind] ?? w.kind;
  const bad = ["key", "subscription", "payload", "tenant"].includes(w.kind) && seconds > 10000;
  return [name, first ? `${count(w.count)}, ${first.name || brief(first.what) || "unknown"} for ${short(seconds)}` : count(w.count), bad ? "warn" : ""];
}

export const wordOf = (route) => ({ outage: "outage, waiting", failing: "failing, poisoning all" }[route.state] ?? route.state);

export function placeText({ kind, sink, detail = "" }) {
  const endpoint = kind === "gateway" && endpointOf(detail);
  return [sink || kind, endpoint ? endpointName(detail) : detail].filter(Boolean).join(" ");
}

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

// countsOf are the counts of a route, and its open messages, of all or of what is selected.
export function countsOf(route) {
  const chosen = session.status.selected;
  const { handler = 0, outage = 0, shutdown = 0 } = route.retries_by_class ?? {};
  const open = chosen ? chosen.waiting[route.name] ?? { open: 0 } : route;
  return { chosen, counts: chosen ? chosen.routes[route.name] ?? {} : { ...route, retries: handler + outage + shutdown }, open, oldest: time(open.oldest) };
}

export function showRoute(route, now) {
  const { chosen, counts, open, oldest } = countsOf(route);
  const told = !chosen || chosen.timed;
  const lag = route.direction === "from_gateway" && ["oldest pending", oldest ? short(now - oldest) : "none", oldest && now - oldest > 60000 ? "warn" : ""];
  const failedAt = time(route.last_error_at);
  const passing = failedAt && time(route.last_success) > failedAt;
  return {
    title: route.name, state: route.state, word: wordOf(route),
    kind: `${placeText(route.from)} → ${placeText(route.to)}`,
    rate: rateText(rateOf(`route ${route.name}`)), unit: "messages/s",
    facts: [
      ["delivered", told ? count(counts.delivered) : "needs the journal"],
      chosen ? route.direction === "from_gateway" && ["pending", count(open.open)] : null,
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

export function showSink(sink, now) {
  const checked = time(sink.checked_at);
  const state = !checked ? "unknown" : sink.up ? "up" : "down";
  return {
    title: sink.name, state, word: state === "unknown" ? "not checked yet" : state,
    kind: [sink.kind, sink.target].filter(Boolean).join(" · "),
    facts: [
      sink.durability && sink.durability !== "unknown" && ["stored", sink.durability],
      sink.lost > 0 && ["lost by the broker after its acknowledgment", count(sink.lost)],
      checked && ["last check", agoText(now, checked)],
    ],
    error: sink.up ? "" : sink.error,
  };
}
