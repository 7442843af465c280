// Why nothing arrives.

import { ask, only, OTHERS, whyNot } from "./api.js";
import { byId, make, say, setState, stateBadge } from "./dom.js";

let asks = 0;

function newLink(link) {
  const state = stateBadge();
  setState(state, link.state);
  const node = make("li", {}, make("span", { class: "where", text: link.name }), state, make("span", { class: "ext", dir: "auto", text: link.detail }));
  if (link.remedy) node.append(make("span", { class: "remedy ext", dir: "auto", text: link.remedy }));
  return node;
}

async function findOutWhy(event) {
  event.preventDefault();
  const asked = ++asks;
  const result = byId("why-result");
  const query = new URLSearchParams();
  for (const name of ["tenant", "type", "from"]) {
    const value = byId(`why-${name}`).value.trim();
    if (value) query.set(name, value);
  }
  let answer;
  try {
    answer = await ask(`api/why?${query}`);
  } catch (err) {
    if (asked !== asks) return;
    byId("why-links").replaceChildren();
    say(result, "bad", whyNot(err, "Not asked"));
    return;
  }
  if (asked !== asks) return; // something else was asked
  byId("why-links").replaceChildren(...answer.links.map(newLink));
  const missing = answer.links.find((link) => link.name === answer.missing);
  if (missing) say(result, "bad", `The ${missing.name} is missing: ${missing.detail}. Next: ${missing.remedy}.`);
  else say(result, "good", "Nothing is missing, as far as can be known.");
}

byId("why-form").addEventListener("submit", findOutWhy);
only.addEventListener("change", () => {
  if (only.tenant && only.tenant !== OTHERS) byId("why-tenant").value = only.tenant;
});
