// The configuration that is running.

import { ask } from "./api.js";
import { byId, inSlices, make, setHidden, setText } from "./dom.js";
import { count, stamp, time } from "./format.js";

const MAX_ROWS = 100; // that are shown; the search finds the others

const settings = { list: [], seen: "" };

// pollConfig reads the configuration when another one was loaded, or refused.
export async function pollConfig(status) {
  const loaded = `${status.started} ${status.config?.loaded_at} ${status.config?.error}`;
  if (loaded === settings.seen) return;
  settings.seen = loaded;
  try {
    const answer = await ask("api/config");
    if (settings.seen !== loaded) return;
    settings.list = answer.settings;
    const at = time(answer.loaded_at), differ = settings.list.filter((s) => s.restart).length;
    setText(byId("config-since"), [at && `Applied ${stamp(at)}; lines are those of the file as it was then`, answer.error && "the file as it is now was not applied",
      differ && `${count(differ)} ${differ === 1 ? "value differs" : "values differ"} from the file: restart`].filter(Boolean).join("; "));
    showReloads(answer.reloads);
    showConfig();
  } catch (err) {
    if (settings.seen !== loaded) return;
    settings.seen = "";
    setText(byId("config-empty"), `The configuration is unavailable: ${err.message}`);
    setHidden(byId("config-empty"), false);
  }
}

// showReloads shows what each reload has changed, the newest first.
function showReloads(reloads) {
  setText(byId("reloads-note"), reloads.length ? "" : "None since the start.");
  byId("reloads").replaceChildren(...reloads.map((r) => make("li", {}, make("time", { datetime: r.at, text: stamp(time(r.at)) }),
    make("ul", { class: "ext" }, ...(r.error ? [`Refused: ${r.error}`] : r.changes ?? ["No value has changed, unless it is a secret."]).map((text) => make("li", { dir: "auto", text }))))));
}

const valueText = (value) => (typeof value === "string" ? value : value == null ? "not set" : JSON.stringify(value));
const setIn = (s) => [s.source || (s.value == null ? "" : "default"), s.file && `read from ${s.file}`, s.environment && "environment", s.restart && `the file has ${valueText(s.in_file)}: restart`].filter(Boolean).join(", ");

const newSetting = (s) => make("tr", { role: "row" }, make("td", { role: "cell", class: "key", text: s.path }), make("td", { role: "cell", class: "value", dir: "auto" }),
  make("td", { role: "cell", class: "set", "data-label": "Set in" }, make("span", { class: "ext" })));

function showSetting(row, s) {
  setText(row.children[1], valueText(s.value));
  setText(row.querySelector(".set span"), setIn(s));
  if (s.restart) row.querySelector(".set").dataset.tone = "warn";
  else delete row.querySelector(".set").dataset.tone;
}

function showConfig() {
  const wanted = byId("config-query").value.trim().toLowerCase();
  const all = byId("config-defaults").checked, differing = byId("config-differing").checked;
  const found = settings.list.filter((s) => (differing ? s.restart : all || s.source || s.restart) && (!wanted || `${s.path} ${valueText(s.value)}`.toLowerCase().includes(wanted)));
  inSlices(byId("config-rows"), found.slice(0, MAX_ROWS), (s) => s.path, newSetting, showSetting);
  setText(byId("config-empty"), found.length ? `${count(found.length - MAX_ROWS)} more: search for a part of the key or value.` : "Nothing of that.");
  setHidden(byId("config-empty"), found.length > 0 && found.length <= MAX_ROWS);
}

byId("config-form").addEventListener("submit", (event) => event.preventDefault());
byId("config-form").addEventListener("input", showConfig);
