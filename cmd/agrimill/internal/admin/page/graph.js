// A curve or bars over time.

import { make, setText, SVG } from "./dom.js";
import { clock } from "./format.js";

export function newGraph(name) {
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

// drawGraph draws what {lines: [[[time, value]]], text, area, bars, tone, title} says, and tells it in words.
export function drawGraph(node, frame, what) {
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
  const minute = (at) => clock(at).slice(0, 5);
  const last = what.lines.map((line) => line.at(-1)).filter(Boolean);
  const peak = all.reduce((a, p) => (a && a[1] >= p[1] ? a : p), null);
  const most = all.length ? `peak ${what.text(top)}` : "none";
  setText(node.querySelector(".what"), what.title);
  setText(node.querySelector(".most"), most);
  setText(node.querySelector(".from"), minute(frame.from));
  setText(node.querySelector(".to"), minute(frame.to));
  const words = all.length ? `${most}, at ${minute(peak[0])}; lately ${last.map((p) => what.text(p[1])).join(" and ")}` : "nothing";
  node.querySelector("svg").setAttribute("aria-label", `${what.title}, from ${minute(frame.from)} to ${minute(frame.to)} UTC: ${words}.`);
}
