// A page of one table: search, filters, sorting, the list, and the chosen row next to it (or instead of it, if narrow).

import { useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
import { List } from "viewer/list";
import { Link, Problem, html, number } from "viewer/parts";
import { usePane } from "viewer/route";

const ROW = 58;

// `missing` is what the run has none of if the table is empty, `note` stands behind the number of rows.
// `columns`: {key, label, hint, value(row), sort(direction), cell(row), narrow, wide}; one without `cell` only sorts, `sort`
// returns another `value` for a direction, `narrow` stays in a narrow list.
// `group`: for each row the one that stands for it in the list, or, if that is not found, the first of those that are.
// `filters`: {key, label, options: [[value, label]], test(row, value)}; one without `options` is set by a link alone.
export function Browser({ table, noun, missing = noun, note, columns, group, filters, main, names, detail, top, order }) {
  const { route, go, replace } = usePane();
  const { query } = route;
  const searched = useSearch(table, names, query.q ?? "");
  const rows = useMemo(() => {
    const active = filters.filter(({ key }) => query[key]);
    const keep = (row) => (!searched.rows || searched.rows.has(row)) && active.every(({ key, test }) => test(row, query[key]));
    const found = [];
    for (let row = 0; row < table.length; row++) if (keep(row)) found.push(row);
    const listed = group ? oneOfEach(found, group) : found;
    const [key, direction] = (query.sort || order).split(" ");
    const column = columns.find((item) => item.key === key) ?? columns[0];
    return sorted(listed, column.sort?.(direction) ?? column.value, direction === "up" ? 1 : -1);
  }, [table, searched, JSON.stringify(query)]);
  const change = (given) => replace((now) => ({ ...now, query: { ...now.query, ...given } }));
  const chosen = route.id ? table.rowOf.get(route.id) : undefined;
  const sort = query.sort || order;
  const click = (key) => change({ sort: sort === `${key} down` ? `${key} up` : `${key} down` });
  return html`<div class=${`browser ${route.id ? "with-detail" : ""}`}>
    <section class="master" aria-label=${noun}>
      ${top}
      <div class="bar">
        <input type="search" placeholder=${`Search ${noun}`} aria-label=${`Search ${noun}`} value=${query.q ?? ""}
          onInput=${(event) => change({ q: event.target.value })} />
        ${filters.map(({ key, label, options }) => options ? html`<select key=${key} aria-label=${label}
          class=${query[key] ? "active" : ""} value=${query[key] ?? ""} onChange=${(event) => change({ [key]: event.target.value })}>
          <option value="">${label}</option>
          ${options.map(([value, text]) => html`<option value=${value} selected=${query[key] === String(value)}>${text}</option>`)}
        </select>` : query[key] && html`<button class="chip" key=${key} onClick=${() => change({ [key]: "" })}
          title="Remove this filter">${label} ${query[key]} ×</button>`)}
        <select class=${`sorting ${sort === order ? "" : "active"}`} aria-label="Sort" value=${sort} onChange=${(event) => change({ sort: event.target.value })}>
          ${columns.flatMap(({ key, label }) => [["down", "↓"], ["up", "↑"]].map(([way, arrow]) =>
            html`<option value=${`${key} ${way}`} selected=${sort === `${key} ${way}`}>${label} ${arrow}</option>`))}
        </select>
      </div>
      <div class="heading"><span class="count" role="status">${number(rows.length)} ${noun}${note && ` · ${note}`}${
        searched.share < 1 ? ` · searching ${Math.round(100 * searched.share)} %` : ""}</span>
        ${columns.filter(({ cell }) => cell).map(({ key, label, hint, narrow, wide }) => html`<button key=${key} title=${hint ?? `Sort by ${label}`}
          class=${`column ${narrow ? "always" : ""} ${wide ? "wide" : ""} ${sort.startsWith(`${key} `) ? "active" : ""}`}
          onClick=${() => click(key)}>${label}${sort === `${key} down` ? " ↓" : sort === `${key} up` ? " ↑" : ""}</button>`)}
      </div>
      <${Problem} error=${searched.error} />
      <${List} rows=${rows} height=${ROW} selected=${chosen} label=${noun} empty=${table.length ? "Nothing matches." : `This run has no ${missing}.`} render=${(row) => html`
        <${Link} to=${{ id: table.columns.id[row], query }} class=${`row ${row === chosen ? "chosen" : ""}`}>
          <div class="main">${main(row)}</div>
          ${columns.filter(({ cell }) => cell).map(({ key, cell, narrow, wide }) =>
            html`<div key=${key} class=${`column ${narrow ? "always" : ""} ${wide ? "wide" : ""}`}>${cell(row)}</div>`)}
        <//>`} />
    </section>
    ${route.id && html`<${Detail} key=${route.id} close=${() => go({ query })}>
      ${chosen === undefined ? html`<p class="empty">${route.id} is not among the ${noun} of this run.</p>` : detail(chosen)}
    <//>`}
  </div>`;
}

function Detail({ close, children }) {
  const { front } = usePane();
  // With what is shown, not after it: a second Escape soon after the first is for the other side.
  useLayoutEffect(() => {
    // Of two sides only one may answer. In a search field Escape empties the field.
    const pressed = (event) => event.key === "Escape" && front && !event.target.closest?.("input, select") && close();
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
  return html`<article class="detail">
    <button class="close quiet" onClick=${close} aria-label="Close"><span class="arrow">←</span><span class="cross">×</span></button>
    ${children}
  </article>`;
}

function oneOfEach(rows, group) {
  const of = new Map();
  for (const row of rows) if (group[row] === row || !of.has(group[row])) of.set(group[row], row);
  return [...of.values()];
}

function sorted(rows, value, sign) {
  const keys = new Map(rows.map((row) => [row, value(row)]));
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  return rows.sort((left, right) => {
    const [a, b] = [keys.get(left), keys.get(right)];
    if (a == null || b == null) return (a == null) - (b == null) || left - right; // unknown is last, either way
    return sign * compare(a, b) || left - right;
  });
}

// Rows that contain all words: those whose name does at once, the others as the details are read.
function useSearch(table, names, query) {
  const [state, set] = useState({ rows: null, share: 1 });
  useEffect(() => {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return void set({ rows: null, share: 1 });
    let stopped = false;
    let rows = new Set();
    for (let row = 0; row < table.length; row++) {
      const name = names(row).toLowerCase();
      if (words.every((word) => name.includes(word))) rows.add(row);
    }
    set({ rows, share: 0 });
    const wait = setTimeout(() => {
      let shown = performance.now();
      table.search(words, (found, share) => {
        found.forEach((row) => rows.add(row));
        if (share === 1 || performance.now() - shown > 250) {
          rows = new Set(rows);
          shown = performance.now();
          set({ rows, share });
        }
      }, () => stopped).catch((error) => !stopped && set({ rows, share: 1, error }));
      if (!table.starts.length) set({ rows, share: 1 });
    }, 200);
    return () => { stopped = true; clearTimeout(wait); };
  }, [table, query]);
  return state;
}
