// Replays and drops poisoned messages. The server does it, one job at a time: the page begins it, shows how far it is, and may be closed.

import { ask, onlyThese, session, whyNot, withToken } from "./api.js";
import { byId, say, setHidden, setText } from "./dom.js";
import { clock, count, short, time } from "./format.js";

const OUTCOMES = {
  delivered: "delivered", duplicate: "already handled", poisoned: "failed again, back in the queue", kept: "stayed in the queue", gone: "no longer in the queue", dropped: "dropped",
};

// poison is what of the queue is shown and selected. load reads it again.
export const poison = { offset: 0, group: "", text: "", shown: [], picked: new Set(), seen: "", at: 0, grouped: -Infinity, inGroups: 0, loading: false, load: null };

const running = () => Boolean(session.status.job && !session.status.job.ended);

// selected is the part of a request that selects a group and a text.
export function selected({ group, text }) {
  return (group ? `&group=${encodeURIComponent(group)}` : "") + (text ? `&q=${encodeURIComponent(text)}` : "") + onlyThese();
}

// post asks for a job, or for its end.
async function post(what, body) {
  try {
    session.status.job = await ask(`api/poison/${what}`, { method: "POST", headers: { "Content-Type": "application/json", ...withToken() }, body: JSON.stringify(body) });
    poison.picked.clear();
    showJob(session.status);
    showActions();
  } catch (err) {
    setText(byId("job-title"), "");
    say(byId("replay-result"), "bad", whyNot(err, "Refused"));
  }
}

// replayOne replays a message, which is asked for by its own button.
export const replayOne = (id) => post("replay", { ids: [id] });

// confirm asks before several messages are replayed, or any is dropped; of a group, how many. What is the body of the request, and n
// what it selects: no more than these are dropped of a group, which may have got others meanwhile.
export function confirm(action, what, n) {
  const dialog = byId("confirm"), first = byId("confirm-first"), messages = `${count(n)} ${n === 1 ? "message" : "messages"}`;
  setText(byId("h-confirm"), `${action === "drop" ? "Drop" : "Replay"} ${messages}?`);
  setText(byId("confirm-text"), action === "drop" ? "What is dropped exists nowhere else."
    : "Each goes through its route as it is configured now. What fails again returns to the queue.");
  setText(byId("confirm-yes"), action === "drop" ? "Drop" : "Replay");
  setHidden(byId("confirm-some"), Boolean(what.ids) || n < 2);
  first.value = "";
  first.max = n;
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue === "yes") post(action, what.ids ? what : { ...what, first: Number(first.value || (action === "drop" ? n : 0)) });
  };
  dialog.showModal();
}

// showJob shows the job that runs, or the latest one.
export function showJob(status) {
  const job = status.job;
  setHidden(byId("poison-progress"), !job || Boolean(job.ended));
  if (!job) return;
  const tried = Object.keys(OUTCOMES).reduce((sum, outcome) => sum + (job[outcome] ?? 0), 0), left = job.selected - tried;
  const what = `${job.action === "drop" ? "Drop" : "Replay"}${job.selected ? ` of ${count(job.selected)} ${job.selected === 1 ? "message" : "messages"}` : ""}, `, begun = time(job.started);
  if (!job.ended) {
    const ms = time(status.time) - begun, perMessage = tried && ms / tried;
    setText(byId("job-title"), `${what}since ${clock(begun)}: ${count(tried)} done${perMessage ? `, ${short(perMessage * left)} left` : ""}`);
    byId("poison-bar").max = Math.max(1, job.selected);
    byId("poison-bar").value = tried;
    say(byId("replay-result"), "idle", "");
    return;
  }
  setText(byId("job-title"), `${what}${clock(begun)} to ${clock(time(job.ended))}`);
  const lines = [Object.entries(OUTCOMES).filter(([outcome]) => job[outcome]).map(([outcome, text]) => `${count(job[outcome])} ${text}`).join("; ")];
  for (const r of job.results) if (r.reason) lines.push(`Message ${r.id}: ${r.reason}`);
  if (job.error) lines.push(`Ended early: ${job.error}.${left ? ` ${count(left)} not tried.` : ""}`);
  else if (!job.selected) lines.push("Nothing was selected.");
  const well = !job.error && tried === (job.delivered ?? 0) + (job.duplicate ?? 0) + (job.dropped ?? 0);
  say(byId("replay-result"), well ? "good" : tried ? "warn" : "bad", lines.filter(Boolean).join("\n"));
  if (poison.job === job.ended) return;
  poison.job = job.ended;
  poison.grouped = poison.at = -Infinity;
  poison.load();
}

export function showActions() {
  if (!session.status) return;
  const can = session.status.replay && session.status.poison_browsable, busy = running();
  setHidden(byId("replay-form"), !can);
  setHidden(byId("replay-off"), session.status.replay || !session.status.poison_browsable);
  const token = byId("token").value !== "";
  byId("poison-stop").disabled = !token;
  for (const row of byId("poison-rows").children) {
    const message = poison.shown.find((m) => m.id === row.dataset.id), button = row.querySelector("button");
    setHidden(button, !can || Boolean(message?.foreign));
    button.disabled = !token || busy;
    setHidden(row.querySelector(".look"), !can);
    row.querySelector(".look").disabled = !token;
    const pick = row.querySelector(".pick input");
    setHidden(pick, !can);
    pick.checked = poison.picked.has(row.dataset.id);
  }
  setHidden(byId("pick-all"), !can);
  byId("pick-all").checked = poison.shown.length > 0 && poison.picked.size === poison.shown.length;
  byId("pick-all").indeterminate = poison.picked.size > 0 && poison.picked.size < poison.shown.length;
  const n = poison.picked.size ? ` (${poison.picked.size})` : "", foreign = poison.shown.some((m) => m.foreign && poison.picked.has(m.id));
  setText(byId("replay-selected"), `Replay selected${n}`);
  setText(byId("drop-selected"), `Drop selected${n}`);
  byId("drop-selected").disabled = !token || busy || !n;
  byId("replay-selected").disabled = byId("drop-selected").disabled || foreign;
  for (const group of byId("poison-groups").children) {
    setHidden(group.querySelector(".replay"), !can || group.dataset.foreign === "yes");
    setHidden(group.querySelector(".drop"), !can);
    group.querySelector(".replay").disabled = group.querySelector(".drop").disabled = !token || busy;
  }
}

byId("poison-stop").addEventListener("click", () => post("stop", {}));
