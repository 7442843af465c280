// The picture of the pipeline.

import { byId, keyed, setHidden, toneOf } from "./dom.js";
import { time } from "./format.js";
import { newNode, showNode } from "./node.js";
import { placeText, showGateway, showRoute, showSink, showSubscriber } from "./parts.js";
import { rateOf } from "./rates.js";
import { drawWires } from "./wires.js";

const MAX_ROUTES = 6; // in the picture; the room of the routes has all

// besideRoutes orders the sinks like the routes that lead to them, so that few lines
// cross. Those that no route leads to come last.
function besideRoutes(sinks, routes) {
  const place = (sink) => {
    const places = routes.flatMap((r, i) => (r.to.sink === sink.name ? [i] : []));
    return places.length ? places.reduce((a, b) => a + b) / places.length : routes.length;
  };
  return sinks.map((sink) => ({ sink, place: place(sink) })).sort((a, b) => a.place - b.place).map((s) => s.sink);
}

export function showFlow(status) {
  const now = time(status.time), few = status.routes.length <= MAX_ROUTES;
  const forward = few ? status.routes.filter((r) => r.direction !== "to_gateway") : [];
  const back = few ? status.routes.filter((r) => r.direction === "to_gateway") : [];
  byId("flow").classList.toggle("many", !few);
  setHidden(byId("flow-more"), few);
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
    if (!status.sinks.some((s) => s.name === route.from.sink)) sources.set(placeText(route.from), route);
  }
  list("c-sources", "Source", [...sources.values()], (route) => placeText(route.from), ({ from, state }) => (
    { title: from.sink || from.kind, state: state === "running" ? state : "unknown", word: state === "running" ? "read" : "unknown", kind: from.detail, facts: [] }));
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
  drawWires(next);
}
