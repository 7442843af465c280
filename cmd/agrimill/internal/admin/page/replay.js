// Replays and drops poisoned messages.

import { ask, onlyThese, session, whyNot, withToken } from "./api.js";
import { byId, say, setHidden, setText } from "./dom.js";
import { count } from "./format.js";

const BATCH = 10;              // messages in one request to replay or drop
const MAX_REASONS = 20; // that are shown of one replay

const OUTCOMES = {
  delivered: "delivered", duplicate: "already handled", poisoned: "failed again, back in the queue", kept: "stayed in the queue", gone: "no longer in the queue", dropped: "dropped",
};

// poison is what of the queue is shown and selected, and what is being done. load reads it again.
export const poison = { offset: 0, group: "", text: "", shown: [], picked: new Set(), busy: false, stop: false, seen: "", at: 0, grouped: -Infinity, inGroups: 0, loading: false, load: null };

// selected is the part of a request that selects a group and a text.
export function selected({ group, text }) {
  return (group ? `&group=${encodeURIComponent(group)}` : "") + (text ? `&q=${encodeURIComponent(text)}` : "") + onlyThese();
}

// change replays or drops messages, some with each request, until all are done, one fails for a reason that
// concerns the others too, or the user stops it.
export async function change(what, ids) {
  if (poison.busy || ids.length === 0) return;
  poison.busy = true;
  poison.stop = false;
  const bar = byId("poison-bar");
  bar.max = ids.length;
  bar.value = 0;
  setHidden(byId("poison-progress"), ids.length <= BATCH);
  say(byId("replay-result"), "idle", `${what === "drop" ? "Dropping" : "Replaying"} ${ids.length === 1 ? `message ${ids[0]}` : `${count(ids.length)} messages`} …`);
  showActions();
  const results = [];
  let failure = "";
  try {
    while (results.length < ids.length && !failure && !poison.stop) {
      const batch = ids.slice(results.length, results.length + BATCH);
      const answer = await ask(`api/poison/${what}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", ...withToken() },
        body: JSON.stringify({ ids: batch }),
      }, 24);
      results.push(...answer.results);
      bar.value = results.length;
      if (answer.error) failure = `Ended early: ${answer.error}.`;
      else if (answer.results.length < batch.length) failure = "Ended early.";
    }
    if (poison.stop && results.length < ids.length) failure = "Stopped.";
  } catch (err) {
    failure = whyNot(err, "Refused");
  }
  const sums = new Map();
  for (const r of results) sums.set(r.outcome, (sums.get(r.outcome) ?? 0) + 1);
  const lines = [[...sums].map(([outcome, n]) => `${count(n)} ${OUTCOMES[outcome] ?? outcome}`).join("; ")];
  const told = results.filter((r) => r.reason);
  for (const r of told.slice(0, MAX_REASONS)) lines.push(`Message ${r.id}: ${r.reason}`);
  if (told.length > MAX_REASONS) lines.push(`${count(told.length - MAX_REASONS)} more with a reason.`);
  if (failure) lines.push(results.length && ids.length > results.length ? `${failure} ${count(ids.length - results.length)} not tried.` : failure);
  const well = !failure && results.every((r) => r.outcome === "delivered" || r.outcome === "duplicate" || r.outcome === "dropped");
  say(byId("replay-result"), well ? "good" : results.length ? "warn" : "bad", lines.filter(Boolean).join("\n"));
  for (const r of results) poison.picked.delete(r.id);
  poison.busy = false;
  poison.grouped = poison.at = -Infinity;
  setHidden(byId("poison-progress"), true);
  showActions();
  poison.load();
}

// changeGroup replays or drops everything in a group.
export async function changeGroup(what, group) {
  let list;
  try {
    list = await ask(`api/poison/ids?${selected({ group }).slice(1)}`, {}, 3);
  } catch (err) {
    say(byId("replay-result"), "bad", `The group cannot be read: ${err.message}.`);
    return;
  }
  change(what, what === "drop" ? [...list.ids, ...list.foreign] : list.ids);
}

// drop asks before it drops: the button has to be pressed twice.
export function armed(button, text) {
  if (button.dataset.armed) {
    delete button.dataset.armed;
    return true;
  }
  button.dataset.armed = "yes";
  setText(button, text);
  return false;
}

export function disarm(event) {
  const button = event.target;
  if (!button.dataset.armed) return;
  delete button.dataset.armed;
  setText(button, "Drop all");
  showActions();
}

export function showActions() {
  if (!session.status) return;
  const can = session.status.replay && session.status.poison_browsable;
  setHidden(byId("replay-form"), !can);
  setHidden(byId("replay-off"), session.status.replay || !session.status.poison_browsable);
  const token = byId("token").value !== "";
  for (const row of byId("poison-rows").children) {
    const message = poison.shown.find((m) => m.id === row.dataset.id);
    const allowed = can && !message?.foreign;
    setHidden(row.querySelector("button"), !allowed);
    row.querySelector("button").disabled = !token || poison.busy;
    setHidden(row.querySelector(".look"), !can);
    row.querySelector(".look").disabled = !token;
    const pick = row.querySelector(".pick input");
    setHidden(pick, !allowed);
    pick.checked = poison.picked.has(row.dataset.id);
  }
  setHidden(byId("pick-all"), !can);
  const pickable = poison.shown.filter((m) => !m.foreign).length;
  byId("pick-all").checked = pickable > 0 && poison.picked.size === pickable;
  byId("pick-all").indeterminate = poison.picked.size > 0 && poison.picked.size < pickable;
  const button = byId("replay-selected");
  button.disabled = !token || poison.busy || poison.picked.size === 0;
  setText(button, poison.busy ? "Working …" : poison.picked.size ? `Replay selected (${poison.picked.size})` : "Replay selected");
  const drops = byId("drop-selected");
  drops.disabled = button.disabled;
  if (!drops.dataset.armed) setText(drops, poison.picked.size ? `Drop selected (${poison.picked.size})` : "Drop selected");
  for (const group of byId("poison-groups").children) {
    setHidden(group.querySelector(".replay"), !can || group.dataset.foreign === "yes");
    setHidden(group.querySelector(".drop"), !can);
    group.querySelector(".replay").disabled = group.querySelector(".drop").disabled = !token || poison.busy;
  }
}

byId("poison-stop").addEventListener("click", () => { poison.stop = true; });
