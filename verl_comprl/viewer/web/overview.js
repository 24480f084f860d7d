// First page of a run: what it was, what experience was worth, which entries helped and which misled.

import { Chart } from "viewer/charts";
import { Compared, EntryLink, Facts, Gain, Link, html, number, origin, percent, turnsKept, useAsync } from "viewer/parts";
import { usePane } from "viewer/route";

const LISTED = 6;

function Figure({ label, value, note, accent }) {
  return html`<div class=${`figure ${accent ? "accent" : ""}`}><span class="label">${label}</span><b>${value}</b>
    <span class="faint">${note}</span></div>`;
}

// The latest point of a curve: its value, of which steps it is, and its interval.
function last(curve, label, now) {
  const series = curve?.series.find((item) => item.label === label);
  if (!series) return null;
  const [x, y, low, high] = [series.x, series.y, series.low, series.high].map((column) => column.at(-1));
  const when = x === 0 ? "before training" : curve.pooled === 1 ? `step ${x}`
    : x === now ? `last ${curve.pooled} steps` : `${curve.pooled} steps to ${x}`;
  const interval = low == null ? "" : `95 %: ${Math.round(100 * low)}–${Math.round(100 * high)} %`;
  return { text: percent(y), note: [when, interval.replaceAll(" ", "\u00a0")].filter(Boolean).join(" · ") };
}

// An entry of each text by the certain end of the interval of its gain: the largest first, or the smallest.
function ranked({ columns }, helped) {
  const { gain_low: low = [], gain_high: high = [], gain = [], text } = columns;
  const bound = helped ? low : high;
  const rows = text.filter((of, row) => of === row && bound[row] != null && (helped ? gain[row] > 0 : gain[row] < 0));
  return rows.sort((a, b) => (helped ? bound[b] - bound[a] : bound[a] - bound[b]));
}

function Ranking({ title, note, rows, sort }) {
  const { texts } = usePane().run;
  const empty = texts.columns.gain_low.some((low) => low != null) ? "No entry."
    : "No entry yet: it takes three guided episodes whose prompts have a free half on record.";
  return html`<section class="card"><header><h2>${title}</h2><${Link} to=${{ page: "bank", query: { sort, copies: "once" } }}>all<//></header>
    <p class="faint">${note}</p>
    ${rows.length ? html`<ol class="ranking">${rows.map((row) => html`<${Ranked} row=${row} key=${row} />`)}</ol>`
      : html`<p class="faint">${empty}</p>`}
  </section>`;
}

function Ranked({ row }) {
  const { texts } = usePane().run;
  const { id, uses, compared, free, copies } = texts.columns;
  const { value, error } = useAsync(() => texts.detail(row), [texts, row]);
  const of = copies[row] ? ` of ${number(copies[row].length)} copies` : "";
  return html`<li><div class="main"><${EntryLink} id=${id[row]} /><small>${`${number(uses[row])} ${uses[row] === 1 ? "use" : "uses"}${of} · ${origin(texts.columns, row)}`}</small></div>
    <${Compared} rate=${compared[row]} free=${free[row]} interval=${value?.interval} freeInterval=${value?.free_interval} />
    <${Gain} of=${texts} row=${row} />
    <p class="content">${error ? String(error) : value?.content ?? "…"}</p></li>`;
}

export function Overview() {
  const { run, steps, two, curves } = usePane();
  const { summary, entries, texts, episodes, calls } = run;
  const [training, evaluated] = ["Success in training", "Success in evaluations"].map((title) =>
    summary.curves.find((curve) => curve.title === title));
  const figures = [
    ["evaluation, guided", last(evaluated, "with experience", summary.step), true],
    ["evaluation, free", last(evaluated, "without", summary.step)],
    ["training, guided", last(training, "with experience", summary.step), true],
    ["training, free", last(training, "without", summary.step)],
  ].filter(([, value]) => value || two);
  const failed = Object.entries(summary.failures);
  // Next to another run each curve has its place, also if this run lacks it, and nothing of another height stands before it.
  const shown = two ? curves.map((title) => summary.curves.find((curve) => curve.title === title) ?? { title }) : summary.curves;
  const rankings = entries.length > 0 && html`
        <${Ranking} title="Helped most" note="Success of the guided episodes against the free half of the same prompts, by the lower end of the 95 % interval; three uses or more, of all copies of a text."
          rows=${ranked(texts, true).slice(0, LISTED)} sort="gain down" />
        <${Ranking} title="Misled most" note="The same comparison, by the upper end of the interval."
          rows=${ranked(texts, false).slice(0, LISTED)} sort="gain up" />`;
  return html`<main class="overview">
    <header class="title"><h1>${summary.name}</h1><p class="faint">${summary.folder}</p>
      <${Facts} items=${[...summary.facts, ["last step", summary.step], ["failed rollouts",
        failed.map(([boundary, count]) => `${count} ${boundary}`).join(", ")]]} /></header>
    <div class="figures">
      ${figures.map(([label, value, accent]) => html`<${Figure} label=${label} value=${value?.text ?? "–"} note=${value?.note ?? "not in this run"} accent=${accent} />`)}
      <${Figure} label="entries" value=${number(summary.present)} note=${`of ${number(summary.entries - summary.given)} written${summary.given ? ` and ${number(summary.given)} given` : ""}`} />
      <${Figure} label="episodes" value=${number(episodes.length)} note=${[`${number(calls.length)} extractor calls`, turnsKept(run)].filter(Boolean).join(" · ")} />
    </div>
    <div class="cards">
      ${shown.slice(0, 2).map((curve) => html`<section class="card"><${Chart} curve=${curve} steps=${steps} height=${210} /></section>`)}
      ${!two && rankings}
      ${shown.slice(2).map((curve) => html`<section class="card third"><${Chart} curve=${curve} steps=${steps} /></section>`)}
      ${two && rankings}
    </div>
  </main>`;
}
