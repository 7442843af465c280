// The status page. It polls the API once a second, and reads what a room shows while it is open.

import { ask, only, onlyThese, Refused, session } from "./api.js";
import { pollConfig } from "./configuration.js";
import { pollTenants } from "./directory.js";
import { byId, say, setHidden, setState, setText } from "./dom.js";
import { pollFarms } from "./farms.js";
import { clock, count, short, time } from "./format.js";
import { pollHistory } from "./history.js";
import { showLooks } from "./messages.js";
import { showAccount, showTiles, showVerdict } from "./overview.js";
import { showFlow } from "./pipeline.js";
import { pollProblems } from "./problems.js";
import { remember } from "./rates.js";
import { showActions, showJob } from "./replay.js";
import { rooms } from "./rooms.js";
import { showRoutes } from "./routes.js";
import "./why.js";

const POLL_MS = 1000;         // between two polls of the status
const POLL_HIDDEN_MS = 15000; // while the page is hidden

const POLLS = { messages: pollTenants, problems: pollProblems, farms: pollFarms, routes: pollHistory, configuration: pollConfig };

let lastAnswer = 0;
let timer = 0;
let looking = false;

function showStatus(status) {
  session.status = status;
  remember(status);
  setText(byId("name"), status.name ?? "");
  document.title = `${status.state === "running" ? "" : `(${status.state}) `}${status.name || "agrimill"}`;
  const up = time(status.started);
  setText(byId("subtitle"), [`agrimill ${status.version ?? ""}`.trim(), up && `up for ${short(time(status.time) - up)}`].filter(Boolean).join(" · "));
  setState(byId("state"), status.state, status.state);
  setHidden(byId("metrics"), !status.metrics || Boolean(session.readToken));
  setText(byId("poison-where"), status.poison.sink ? `topic ${status.poison.topic} in ${status.poison.sink}` : "");
  setText(byId("problems-depth"), status.poison.depth ? count(status.poison.depth) : "");
  showTiles(status);
  showAccount(status);
  showVerdict(status);
  showFlow(status);
  if (rooms.open === "routes") showRoutes(status);
  showJob(status);
  showActions();
  showLooks();
  showTokenForm();
}

// The token is asked for where it is needed.
function showTokenForm() {
  setHidden(byId("token-form"), byId("login").hidden && !(session.status?.replay && ["messages", "problems"].includes(rooms.open)));
}

async function look() {
  if (looking) return;
  looking = true;
  clearTimeout(timer);
  try {
    const wanted = onlyThese();
    const status = await ask(`api/status?${wanted.slice(1)}`);
    if (wanted !== onlyThese()) { // something else was selected meanwhile
      looking = false;
      look();
      return;
    }
    hideLogin();
    lastAnswer = Date.now();
    setHidden(byId("gone"), true);
    byId("main").classList.remove("stale");
    setText(byId("updated"), `updated ${clock(lastAnswer)}`);
    showStatus(status);
    POLLS[rooms.open]?.(status);
  } catch (err) {
    if (err instanceof Refused && (err.status === 401 || err.status === 429)) showLogin(err);
    else showGone(err);
  }
  looking = false;
  timer = setTimeout(look, document.hidden || !byId("login").hidden ? POLL_HIDDEN_MS : POLL_MS);
}

// showLogin asks for the token. A wrong one is forgotten, so that it is not sent every second.
function showLogin(err) {
  const first = byId("login").hidden;
  setHidden(byId("login"), false);
  for (const part of ["main", "gone", "trace-form", "rooms"]) setHidden(byId(part), true);
  showTokenForm();
  setState(byId("state"), "idle", "protected");
  document.title = "(protected) agrimill";
  if (session.readToken) {
    session.readToken = "";
    say(byId("login-result"), "bad", err.status === 429 ? "Too many wrong tokens: try again later." : "The token is wrong.");
    byId("token").select();
  }
  if (first) byId("token").focus();
}

function hideLogin() {
  if (byId("login").hidden) return;
  for (const part of ["login", "login-result", "api-link"]) setHidden(byId(part), true);
  for (const part of ["main", "trace-form", "rooms"]) setHidden(byId(part), false);
  byId("main").focus();
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (byId("login").hidden) {
    byId("main").querySelector(".look:enabled")?.focus();
    return;
  }
  session.readToken = byId("token").value;
  look();
});

function showGone(err) {
  const since = lastAnswer ? ` since ${clock(lastAnswer)}` : "";
  const why = err instanceof Refused ? ` (${err.message})` : "";
  setText(byId("gone").querySelector("p"), `No response from agrimill${since}${why}. The data shown is out of date. Retrying every second.`);
  setHidden(byId("gone"), false);
  byId("main").classList.add("stale");
  setState(byId("state"), "gone", "no response");
  document.title = "(no response) agrimill";
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});
for (const shared of [rooms, only]) shared.addEventListener("change", look);
look();
