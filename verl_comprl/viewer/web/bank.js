// The bank: its size over time, and every entry that was ever in it.

import { useMemo } from "preact/hooks";
import { Browser } from "viewer/browser";
import { Chart } from "viewer/charts";
import { Entry } from "viewer/entry";
import { Compared, FATES, Gain, ORIGINS, html, named, number, origin, percent, points } from "viewer/parts";
import { usePane } from "viewer/route";

const alive = ({ step, gone }, row, at) => (step[row] ?? 0) <= at && (gone[row] == null || gone[row] > at);

// Entries in the bank after each step, and how many were written in it.
// The run's own count of the present ones, where there is one, also knows of entries that left without an event.
function overTime(columns, { step: last, curves }) {
  const counted = curves.find(({ title }) => title === "Bank")?.series.find(({ label }) => label === "entries");
  const own = counted && new Map(counted.x.map((step, index) => [step, counted.y[index]]));
  const change = new Array(last + 2).fill(0);
  const written = new Array(last + 1).fill(0);
  columns.step.forEach((step, row) => {
    change[Math.min(step ?? 0, last)] += 1;
    if (columns.gone[row] != null) change[Math.min(columns.gone[row], last)] -= 1;
    if (step != null) written[Math.min(step, last)] += 1;
  });
  let [size, ever] = [0, 0];
  const none = written.map(() => null);
  const x = written.map((_, step) => step);
  const series = (label, y, hidden) => ({ label, x, y, low: none, high: none, hidden });
  return {
    title: "Bank over time", note: "choose a step to see the bank as it was", rate: false,
    series: [series("entries", written.map((_, step) => { size += change[step]; return own ? own.get(step) ?? (step ? null : size) : size; })), series("ever written", written.map((count) => (ever += count)), true)],
  };
}

export function Bank() {
  const { run, steps, replace, route } = usePane();
  const once = route.query.copies === "once";
  const entries = once ? run.texts : run.entries;
  const { columns } = entries;
  const curve = useMemo(() => entries.length > 0 && overTime(columns, run.summary), [entries]);
  const tasks = useMemo(() => [...new Set((columns.tasks ?? []).flat())].filter(Boolean).sort(), [entries]);
  const of = (name) => (row) => columns[name][row];
  const show = [
    { key: "gain", label: "gain", hint: "Success with it minus success of the free half of the same prompts, in points; sorted by the certain end of its 95 % interval",
      value: of("gain"), sort: (way) => of(way === "down" ? "gain_low" : "gain_high"), narrow: true,
      cell: (row) => html`<div class="bounded"><${Gain} of=${entries} row=${row} />${columns.gain_low[row] != null
        && html`<small>${points(columns.gain_low[row])} to ${points(columns.gain_high[row])}</small>`}</div>` },
    { key: "rate", label: "with / free", hint: "Success with it (accent) and of the free half of the same prompts (grey)", value: of("compared"), wide: true,
      cell: (row) => html`<${Compared} rate=${columns.compared[row]} free=${columns.free[row]} />` },
    { key: "uses", label: "uses", value: of("uses"), cell: (row) => html`<div class="bounded">${number(columns.uses[row])}${columns.copies?.[row]
        && html`<small>${number(columns.copies[row].length)} copies</small>`}</div>` },
    { key: "step", label: "step", value: of("step"), cell: (row) => columns.step[row] ?? "–" },
    { key: "title", label: "title", value: of("title") },
  ];
  const filters = [
    { key: "kind", label: "Origin", options: Object.entries(ORIGINS), test: (row, kind) => columns.kind[row] === kind },
    { key: "fate", label: "Fate", options: Object.entries(FATES), test: (row, fate) => columns.fate[row] === fate },
    { key: "uses", label: "Use", options: [["0", "never used"], ["1", "used"], ["5", "used 5 times or more"], ["20", "used 20 times or more"]],
      test: (row, least) => (least === "0" ? columns.uses[row] === 0 : columns.uses[row] >= Number(least)) },
    { key: "at", label: "at step", test: (row, at) => alive(columns, row, Number(at)) },
  ];
  if (tasks.length > 1) filters.unshift({ key: "task", label: "Task", options: tasks.map((task) => [task, task]), test: (row, task) => columns.tasks[row].includes(task) });
  if (once || run.summary.copies.length) filters.push({ key: "copies", label: "Copies", options: [["once", "each text once"]], test: () => true });
  return html`<${Browser} table=${entries} noun=${once ? "texts" : "entries"} group=${columns.text} columns=${show} filters=${filters} order="gain down"
    names=${(row) => `${columns.title[row]} ${columns.id[row]}`}
    main=${(row) => html`<span class=${columns.fate[row] === "present" ? "" : "past"}>${named(columns, row)}</span>
      <small>${columns.rate[row] == null ? "" : `${percent(columns.rate[row])} of ${number(columns.uses[row])} · `}${origin(columns, row)}${
        columns.fate[row] === "present" ? "" : ` · ${FATES[columns.fate[row]] ?? columns.fate[row]}`} · ${
        columns.tasks[row].join(", ")}</small>`}
    top=${curve && html`<div class="timeline"><${Chart} curve=${curve} steps=${steps} height=${96}
      pick=${(step) => replace((now) => ({ ...now, query: { ...now.query, at: String(step) } }))} /></div>`}
    detail=${(row) => html`<${Entry} row=${row} />`} />`;
}
