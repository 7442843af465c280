// All routes in a table: sortable, the worst first.

import { byId, inSlices, make, setState, setText, stateBadge, toneOf } from "./dom.js";
import { agoText, count, rateText, short, time } from "./format.js";
import { countsOf, placeText, wordOf } from "./parts.js";
import { rateOf } from "./rates.js";
import { rooms } from "./rooms.js";

const BADNESS = { good: 0, idle: 1, warn: 2, bad: 3 };

// worse compares two routes by their state, then by how long something waits in them, then by what was poisoned.
const worse = (a, b) => BADNESS[toneOf(a.route.state)] - BADNESS[toneOf(b.route.state)] || a.age - b.age || a.poisoned - b.poisoned;

// The columns after the first: title, text, and what they are sorted by, the largest first.
const COLUMNS = [
  ["State", null, worse],
  ["Messages/s", (r) => rateText(r.rate), (a, b) => a.rate - b.rate],
  ["Oldest pending", (r) => (r.route.direction === "from_gateway" ? (r.age ? short(r.age) : "none") : "–"), (a, b) => a.age - b.age],
  ["Backlog", (r) => (r.route.backlog === undefined ? "–" : count(r.route.backlog)), (a, b) => (a.route.backlog ?? -1) - (b.route.backlog ?? -1)],
  ["In flight", (r) => count(r.route.in_flight), (a, b) => a.route.in_flight - b.route.in_flight],
  ["Retries", (r) => count(r.counts.retries), (a, b) => (a.counts.retries ?? 0) - (b.counts.retries ?? 0)],
  ["Poisoned", (r) => count(r.poisoned), (a, b) => a.poisoned - b.poisoned],
  ["Last success", (r) => agoText(r.now, r.success), (a, b) => a.success - b.success],
];
const byName = (a, b) => (a.route.name < b.route.name ? 1 : -1);

const order = { by: worse, up: false };
let shown = [];

function newRow({ route }) {
  const row = make("tr", { role: "row" },
    make("th", { role: "rowheader", scope: "row" }, make("span", { class: "ext", dir: "auto", text: route.name }), make("span", { class: "sub ext" })),
    make("td", { role: "cell" }, stateBadge()), ...COLUMNS.slice(1).map(([title]) => make("td", { role: "cell", class: "num", "data-label": title }, make("span"))));
  return row;
}

function showRow(row, r) {
  setText(row.querySelector(".sub"), r.route.last_error && toneOf(r.route.state) !== "good" ? r.route.last_error : `${placeText(r.route.from)} → ${placeText(r.route.to)}`);
  setState(row.querySelector(".state"), r.route.state, wordOf(r.route));
  COLUMNS.slice(1).forEach(([, text], i) => setText(row.children[i + 2].firstElementChild, text(r)));
}

export function showRoutes(status) {
  const now = time(status.time);
  shown = status.routes.map((route) => {
    const { counts, oldest } = countsOf(route);
    return { route, counts, now, age: oldest ? now - oldest : 0, rate: rateOf(`route ${route.name}`), poisoned: counts.poisoned ?? 0, success: time(route.last_success) ?? 0 };
  });
  const not = shown.filter((r) => toneOf(r.route.state) !== "good").length;
  setText(byId("routes-count"), `${count(shown.length)} ${shown.length === 1 ? "route" : "routes"}${not ? `, ${count(not)} not running` : ""}`);
  sort();
}

function sort() {
  shown.sort((a, b) => (order.by(b, a) || byName(b, a)) * (order.up ? -1 : 1));
  inSlices(byId("routes-rows"), shown, (r) => r.route.name, newRow, showRow);
}

// The head has a button for each column: what it sorts by, and the other way round.
byId("routes-head").append(...[["Route", null, byName], ...COLUMNS].map(([title, , by], i) => {
  const button = make("button", { type: "button", class: "link", text: title });
  const head = make("th", { scope: "col", role: "columnheader", class: i > 1 ? "num" : undefined, "aria-sort": by === order.by ? "descending" : undefined }, button);
  button.addEventListener("click", () => {
    Object.assign(order, { by, up: order.by === by && !order.up });
    for (const other of byId("routes-head").children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order.up !== (by === byName) ? "ascending" : "descending");
    sort();
  });
  return head;
}));

rooms.addEventListener("change", () => {
  if (rooms.open !== "routes") inSlices(byId("routes-rows"), []); // so that the page stays small
});
