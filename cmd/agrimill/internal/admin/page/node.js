// A box of the picture.

import { keyed, make, seen, setHidden, setState, setText, stateBadge, toneOf } from "./dom.js";

export function newNode(role, label) {
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
export function showNode(node, what) {
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
