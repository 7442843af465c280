// The poison queue: its groups, and its messages a page at a time.

import { ask, only, onlyThese, session } from "./api.js";
import { showContents } from "./contents.js";
import { endpointName, pollTenants, tenantName } from "./directory.js";
import { byId, keyed, make, seen, setHidden, setText } from "./dom.js";
import { bytes, count, stamp, time } from "./format.js";
import { total } from "./rates.js";
import { confirm, poison, replayOne, selected, showActions } from "./replay.js";

const PAGE_SIZE = 25;
const QUEUE_MS = 15000;  // between two looks at it when nothing happens
const GROUPS_MS = 30000; // between two groupings of it
const FEW = 200;         // messages that are grouped as soon as there are more
const SHOWN_GROUPS = 8;  // at most

// pollProblems reads the queue when something happened, and now and then.
export function pollProblems(status) {
  pollTenants(); // which has the names
  const happened = `${status.started} ${total(status, "poisoned")} ${status.poison_browsable} ${onlyThese()}`;
  if (happened === poison.seen && performance.now() - poison.at < QUEUE_MS) return;
  // Grouping reads the whole queue, so a large one is not grouped each time.
  if (happened !== poison.seen && poison.inGroups < FEW) poison.grouped = -Infinity;
  poison.seen = happened;
  loadPoison();
}

async function loadPoison() {
  if (poison.loading || !session.status) return;
  poison.loading = true;
  poison.at = performance.now();
  try {
    if (!session.status.poison_browsable) {
      showPoison(null);
      return;
    }
    const wanted = `api/poison?offset=${poison.offset}&limit=${PAGE_SIZE}${selected(poison)}`;
    const page = await ask(wanted, {}, 3);
    if (wanted !== `api/poison?offset=${poison.offset}&limit=${PAGE_SIZE}${selected(poison)}`) {
      poison.at = -Infinity; // something else was chosen meanwhile
      return;
    }
    if (performance.now() - poison.grouped > GROUPS_MS) await loadGroups();
    if (page.messages.length === 0 && poison.offset > 0) {
      poison.offset = Math.max(0, poison.offset - PAGE_SIZE);
      poison.at = -Infinity; // again, with the next poll of the status
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
    setText(empty, session.status.poison.sink
      ? "The messages in this queue cannot be listed: its sink is not connected yet, or does not support reading single messages."
      : "No poison queue is configured.");
  } else if (messages.length === 0) {
    setText(empty, selected(poison) ? "No such message is in the queue." : "The queue is empty.");
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
  button.addEventListener("click", () => replayOne(m.id));
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
  setText(part("where"), [`ID ${m.id}`, m.endpoint ? endpointName(m.endpoint) : m.tenant && tenantName(m.tenant)].filter(Boolean).join(", "));
  setText(part("class"), m.class || (m.foreign ? "foreign" : "unknown"));
  setText(part("text"), [m.reason || (m.foreign ? "No router wrote this message" : "no reason given"), m.foreign && "it cannot be replayed"].filter(Boolean).join("; "));
  setText(part("route"), m.route || "unknown");
  setText(part("size"), bytes(m.size));
  setText(part("attempts"), m.foreign ? "unknown" : m.count > 1 ? `${count(m.attempts)} in ${count(m.count)} rounds` : count(m.attempts));
  const [first, last] = [time(m.first), time(m.last)];
  setText(part("first"), first ? stamp(first) : "unknown");
  setText(part("last"), last && last !== first ? stamp(last) : "");
}

async function loadGroups() {
  const answer = await ask(`api/poison/groups?${onlyThese().slice(1)}`, {}, 3);
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
    node.addEventListener("click", listener);
    return node;
  };
  const all = (action) => confirm(action, { group: g.id, ...(only.tenant && { tenant: only.tenant }), ...(only.endpoint && { endpoint: only.endpoint }) }, Number(li.dataset.count));
  const li = make("li", {},
    make("strong", { class: "number" }),
    make("span", { class: "what" },
      make("span", { class: "ext", dir: "auto", text: [g.reason || (g.foreign ? "No router wrote these messages" : "no reason given"), g.foreign && "they cannot be replayed"].filter(Boolean).join("; ") }),
      make("span", { class: "sub ext", dir: "auto", text: [g.class, name].filter(Boolean).join(", ") })),
    make("span", { class: "does" }, button("Show", "show", () => choose(g.id, "")), button("Replay all", "replay", () => all("replay")), button("Drop all", "drop", () => all("drop"))));
  return li;
}

function showGroup(node, g) {
  setText(node.querySelector(".number"), count(g.count));
  node.dataset.count = g.count;
  node.dataset.foreign = g.foreign ? "yes" : "";
}

// choose shows a group, the messages with a text, or all.
function choose(group, text) {
  Object.assign(poison, { group, text, offset: 0 });
  poison.picked.clear();
  byId("poison-query").value = text;
  loadPoison();
}

function turnPage(by) {
  poison.offset = Math.max(0, poison.offset + by);
  poison.picked.clear();
  loadPoison();
}

byId("poison-search").addEventListener("submit", (event) => {
  event.preventDefault();
  choose("", byId("poison-query").value.trim());
});

byId("poison-all").addEventListener("click", () => choose("", ""));

byId("drop-selected").addEventListener("click", () => confirm("drop", { ids: [...poison.picked] }, poison.picked.size));

byId("replay-form").addEventListener("submit", (event) => {
  event.preventDefault();
  confirm("replay", { ids: [...poison.picked] }, poison.picked.size);
});

byId("pick-all").addEventListener("change", (event) => {
  poison.picked = new Set(event.target.checked ? poison.shown.map((m) => m.id) : []);
  showActions();
});

byId("poison-prev").addEventListener("click", () => turnPage(-PAGE_SIZE));
byId("poison-next").addEventListener("click", () => turnPage(PAGE_SIZE));
byId("token").addEventListener("input", showActions);
only.addEventListener("change", () => {
  poison.offset = 0;
  poison.picked.clear();
  poison.grouped = -Infinity;
});
poison.load = loadPoison;
