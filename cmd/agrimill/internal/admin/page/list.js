// A long list, of which only the rows in sight are elements. All rows are as high as --row says.

import { keyed } from "./dom.js";

const MORE = 6; // rows above and below what is in sight

// newList shows items in body, which is in scroll, and returns what sets them.
export function newList(scroll, body, keyOf, create, update) {
  let items = [];
  const draw = () => {
    const high = parseFloat(getComputedStyle(body).getPropertyValue("--row")) || 1;
    body.style.height = `${items.length * high}px`;
    const first = Math.max(0, Math.min(Math.floor(scroll.scrollTop / high), items.length) - MORE);
    const shown = items.slice(first, first + Math.ceil(scroll.clientHeight / high) + 2 * MORE);
    let place = first;
    keyed(body, shown, keyOf, create, (row, item) => {
      row.style.top = `${place * high}px`;
      row.setAttribute("aria-rowindex", String(++place + 1)); // the first one is the head
      update(row, item);
    });
  };
  scroll.addEventListener("scroll", draw, { passive: true });
  new ResizeObserver(draw).observe(scroll);
  return (all) => {
    items = all;
    draw();
  };
}
