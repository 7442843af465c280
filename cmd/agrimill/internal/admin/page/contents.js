// What is in a message.

import { ask, whyNot, withToken } from "./api.js";
import { byId, make, seen, setHidden, setText } from "./dom.js";
import { bytes, count } from "./format.js";

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
export function hideContents() {
  contents.asked++;
  setHidden(byId("contents"), true);
  showPicture("");
  byId("poison-pager").before(byId("contents"));
}

// showContents asks for the contents of a message called name, on behalf of a button: below that of a message that was found, or
// below the poison queue.
export async function showContents(path, name, from) {
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
    answer = await ask(path, { headers: withToken() }, 4);
  } catch (err) {
    if (asked === contents.asked) setText(byId("contents-line"), whyNot(err, "Not shown"));
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
