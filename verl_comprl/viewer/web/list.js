// A list of any length: only the rows in sight are in the document.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "viewer/parts";

const MARGIN = 8; // rows above and below those in sight

export function List({ rows, height, render, selected, label, empty }) {
  const box = useRef(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  useEffect(() => {
    const place = box.current; // on another page the reference is empty before this effect has been cleaned up
    const measure = () => setView({ top: place.scrollTop, height: place.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(place);
    place.addEventListener("scroll", measure, { passive: true });
    return () => observer.disconnect();
  }, []);
  const seen = useRef(null);
  useLayoutEffect(() => {
    // The row that is shown next to the list must be in sight, as after following a link to it; once, so that a list that
    // grows while it is searched does not take its reader back.
    const at = selected == null ? -1 : rows.indexOf(selected);
    if (at < 0 || seen.current === selected) {
      if (selected == null) seen.current = null;
      return;
    }
    seen.current = selected;
    const { scrollTop, clientHeight } = box.current;
    if (at * height < scrollTop || (at + 1) * height > scrollTop + clientHeight) {
      box.current.scrollTop = Math.max(0, at * height - clientHeight / 3);
    }
  }, [selected, rows]);
  const first = Math.max(0, Math.floor(view.top / height) - MARGIN);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / height) + MARGIN);
  const shown = [];
  for (let at = first; at < last; at++) {
    shown.push(html`<div class="slot" key=${rows[at]} role="listitem" aria-posinset=${at + 1} aria-setsize=${rows.length}
      style=${{ top: `${at * height}px`, height: `${height}px` }}>${render(rows[at])}</div>`);
  }
  return html`<div class="list" ref=${box} tabindex="0" role="list" aria-label=${label}>
    <div class="extent" style=${{ height: `${rows.length * height}px` }}>${shown}</div>
    ${!rows.length && html`<p class="empty">${empty}</p>`}
  </div>`;
}
