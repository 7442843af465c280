// The rooms of the page. One is open, the one that the fragment of the address names; what no room shows is hidden.

import { byId, setHidden } from "./dom.js";

const ROOMS = ["overview", "messages", "problems", "farms", "routes", "configuration"];

// rooms.open is the room that is open; the event "change" says that it is another one.
export const rooms = Object.assign(new EventTarget(), { open: "" });

export function enter(room) {
  location.hash = `#/${room}`;
}

function show() {
  const wanted = location.hash.slice(2) || ROOMS[0];
  if (wanted === rooms.open || !ROOMS.includes(wanted)) return; // other fragments are places within a room
  rooms.open = wanted;
  for (const part of document.querySelectorAll("[data-rooms]")) setHidden(part, !part.dataset.rooms.split(" ").includes(wanted));
  for (const link of byId("rooms").querySelectorAll("a")) {
    if (link.hash.slice(2) === wanted) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
  rooms.dispatchEvent(new Event("change"));
}

window.addEventListener("hashchange", show);
show();
