// What makes and changes elements. Everything goes into the page as text, never as HTML: names, reasons and file names are untrusted.

export const byId = (id) => document.getElementById(id);

// Invisible characters, and those that change the text direction, are escaped.
const UNSEEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

export const seen = (text) => String(text).replace(UNSEEN, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);

export function setText(node, text) {
  text = seen(text);
  if (node.textContent !== text) node.textContent = text;
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

// make("p", {class: "ext", text: "..."}, children). Attribute names are ours.
export function make(tag, attributes = {}, ...children) {
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
export function keyed(parent, items, keyOf, create, update) {
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

const SLICE = 25; // rows

// inSlices is keyed for a long list: what is new is made a slice at a time, so that the browser responds meanwhile.
export function inSlices(parent, items, keyOf, create, update) {
  clearTimeout(parent.slices);
  const most = (parent.keyed?.size ?? 0) + SLICE;
  keyed(parent, items.slice(0, most), keyOf, create, update);
  if (most < items.length) parent.slices = setTimeout(inSlices, 0, parent, items, keyOf, create, update);
}

// States have a tone (color and shape) and a word.
const TONES = {
  running: "good", connected: "good", "awaiting head": "good", up: "good", ok: "good", standby: "good",
  degraded: "warn", outage: "warn", draining: "warn",
  disconnected: "bad", down: "bad", failed: "bad", failing: "bad", ended: "bad", stopped: "bad", gone: "bad", missing: "bad",
  starting: "idle", connecting: "idle", unused: "idle", unknown: "idle", unchecked: "idle",
};

export const toneOf = (state) => (Object.hasOwn(TONES, state) ? TONES[state] : "idle");

export function setState(node, state, word = state) {
  if (!state) state = word = "unknown";
  const tone = toneOf(state);
  if (node.dataset.tone !== tone) node.dataset.tone = tone;
  if (node.dataset.state !== state) node.dataset.state = state;
  setText(node.querySelector(".word"), word);
}

export const stateBadge = () => make("span", { class: "state" },
  make("span", { class: "mark", "aria-hidden": "true" }), make("span", { class: "word" }));

export const SVG = "http://www.w3.org/2000/svg";

// say shows the result of what a person asked for.
export function say(node, tone, text) {
  node.dataset.tone = tone;
  setText(node, text);
  setHidden(node, !text);
}

// offer fills a datalist with [value, text].
export function offer(id, choices) {
  keyed(byId(id), choices, ([value]) => value, ([value, label]) => make("option", { value, label: label || undefined }), () => {});
}
