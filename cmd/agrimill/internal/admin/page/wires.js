// The lines between the boxes of the picture.

import { byId, keyed, SVG } from "./dom.js";

let wires = []; // {from, to, tone, rate}

// drawWires draws a curve from node to node, and dots that run along it while
// messages do.
export function drawWires(next) {
  wires = next;
  redraw();
}

function redraw() {
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

new ResizeObserver(redraw).observe(byId("flow"));
