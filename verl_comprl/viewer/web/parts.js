// Small components that several pages use. Texts of a run reach the page as text nodes only.

import { h } from "preact";
import { useEffect, useState } from "preact/hooks";
import htm from "htm";
import { usePane } from "viewer/route";

export const html = htm.bind(h);

export const number = (value) => (value == null ? "–" : value.toLocaleString("en"));
export const percent = (value) => (value == null ? "–" : `${Math.round(100 * value)} %`);
export const signed = (value, digits = 2) =>
  value == null ? "–" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
// Of how many episodes the page has the turns, and the search finds them; "" if of all.
export const turnsKept = ({ summary, episodes }) =>
  summary.kept < episodes.length ? `turns of ${number(summary.kept)} of ${number(episodes.length)}` : "";
export const points = (value) => {
  const whole = value == null ? null : Math.round(100 * value);
  return whole == null ? "–" : (whole < 0 ? "−" : whole > 0 ? "+" : "") + Math.abs(whole);
};

// What became of an entry by the end of the run, or until now, by its name in the table.
export const FATES = { present: "still in the bank", quarantined: "quarantined", replaced: "replaced by an update",
  merged: "merged into another", discarded: "discarded", evicted: "evicted" };
export const ORIGINS = { added: "added", updated: "updated", merged: "made by a merge", given: "given" };

// How an entry came to be.
export const origin = ({ kind, step }, row) => `${ORIGINS[kind[row]]}${step[row] == null ? "" : ` in step ${step[row]}`}`;

// Title of an entry. Of one that was given to the run a record of an older release may lack the text.
export const named = ({ title, kind }, row) => title[row] || (kind[row] === "given" ? "(text not on record)" : "(no title)");

export function Link({ to, children, ...rest }) {
  const { link } = usePane();
  return html`<a href=${link(to)} ...${rest}>${children}</a>`;
}

export function Outcome({ success }) {
  const [mark, label] = success == null ? ["–", "no outcome"] : success ? ["●", "success"] : ["○", "failure"];
  return html`<span class=${`outcome ${success ? "good" : ""}`} title=${label} aria-label=${label}>${mark}</span>`;
}

// Success with an entry (accent) against the free half of the same prompts (grey), each with its interval, from 0 to 1.
export function Compared({ rate, free, interval, freeInterval, width = 88 }) {
  if (rate == null) return html`<span class="faint">not used</span>`;
  const at = (value) => 4 + value * (width - 8);
  const line = (bounds, y, name) =>
    bounds && html`<line class=${name} x1=${at(bounds[0])} x2=${at(bounds[1])} y1=${y} y2=${y} />`;
  const label = `success ${percent(rate)} with it, ${percent(free)} in the free half of the same prompts`;
  return html`<svg class="compared" width=${width} height="18" role="img" aria-label=${label}>
    <title>${label}</title>
    <line class="axis" x1=${at(0)} x2=${at(1)} y1="9" y2="9" />
    ${free != null && rate !== free && html`<line class="between" x1=${at(free)} x2=${at(rate)} y1="9" y2="9" />`}
    ${line(freeInterval, 14, "free")}${line(interval, 4, "with")}
    ${free != null && html`<circle class="free" cx=${at(free)} cy="9" r="3.5" />`}
    <circle class="with" cx=${at(rate)} cy="9" r="4" />
  </svg>`;
}

// Gain of an entry in points; without colour while its interval holds 0.
export function Gain({ of, row }) {
  const { gain, gain_low: low, gain_high: high } = of.columns;
  const bounds = low[row] == null ? "" : `95 % interval: ${points(low[row])} to ${points(high[row])}`;
  return html`<span class=${`gain ${low[row] > 0 ? "good" : high[row] < 0 ? "bad" : "unsure"}`} title=${bounds}>${points(gain[row])}</span>`;
}

export function Facts({ items }) {
  return html`<dl class="facts">
    ${items.filter(([, value]) => value != null && value !== "").map(
      ([label, value]) => html`<div><dt>${label}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

export function Section({ title, note, children, open = true }) {
  return html`<details class="section" open=${open}>
    <summary><h3>${title}</h3>${note && html`<span class="faint">${note}</span>`}</summary>
    ${children}
  </details>`;
}

// What could not be read, such as a block that the file has lost; nothing without an `error`.
export function Problem({ error }) {
  return error && html`<p class="notice bad">${String(error)}</p>`;
}

// The `value` of a promise or its `error`, neither until it is there; made again when `keys` change.
export function useAsync(make, keys) {
  const [state, set] = useState({});
  useEffect(() => {
    let live = true;
    set({});
    make().then((value) => live && set({ value }), (error) => live && set({ error }));
    return () => { live = false; };
  }, keys);
  return state;
}

export function EntryLink({ id }) {
  const { run } = usePane();
  const row = run.entries.rowOf.get(id);
  if (row === undefined) return html`<span class="faint" title=${id}>an entry that this run does not list</span>`;
  const title = run.entries.columns.title[row] || "(no title)";
  return html`<${Link} to=${{ page: "bank", id }} class="entry-link">${title}<//>`;
}

export function EpisodeLink({ id, children }) {
  const { run } = usePane();
  const row = run.episodes.rowOf.get(id);
  if (row === undefined) return html`<span class="faint" title=${id}>an episode that was not kept</span>`;
  const { step, success, task, half } = run.episodes.columns;
  return html`<${Link} to=${{ page: "episodes", id }} class="episode-link"><${Outcome} success=${success[row]} />
    <span>${children ?? `step ${step[row]} · ${task[row]} · ${half[row]}`}</span><//>`;
}

export function CallLink({ id, children }) {
  const { run } = usePane();
  const row = run.calls.rowOf.get(id);
  if (row === undefined) return html`<span class="faint" title=${id}>a call that was not kept</span>`;
  const { kind, step } = run.calls.columns;
  return html`<${Link} to=${{ page: "extractor", id }}>${children ?? `${kind[row]} call in step ${step[row]}`}<//>`;
}

const MOST = 2000; // items of a list, which would hold up the browser

// At most `first` items, the rest on request.
export function Many({ items, first = 12, render }) {
  const [all, showAll] = useState(false);
  const shown = items.slice(0, all ? MOST : first);
  return html`<ul class="many">${shown.map((item) => html`<li>${render(item)}</li>`)}</ul>
    ${all && items.length > MOST && html`<p class="faint">and ${number(items.length - MOST)} more</p>`}
    ${!all && items.length > first &&
      html`<button class="quiet" onClick=${() => showAll(true)}>Show all ${number(items.length)}</button>`}`;
}
