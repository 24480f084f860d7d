// Curves with intervals, drawn by uPlot.

import uPlot from "uplot";
import { useEffect, useRef, useState } from "preact/hooks";
import { html, number, percent } from "viewer/parts";

const STYLES = { "with experience": "--accent", without: "--other" };
const DEFAULTS = ["--accent", "--other"];
const WHOLE = [1, 10, 100, 1e3, 1e4, 1e5, 1e6].flatMap((ten) => [ten, 2 * ten, 5 * ten]); // a step has no fractions

function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const faded = (text, share) => text.replace(/^rgb\((.*)\)$/, `rgba($1, ${share})`);

const value = (curve, y) => (y == null ? "–" : curve.rate ? percent(y) : number(Number.isInteger(y) ? y : +y.toPrecision(3)));

// Columns of all series over the union of their steps: for each series its value, upper and lower bound.
function aligned(series) {
  const x = [...new Set(series.flatMap((item) => item.x))].sort((a, b) => a - b);
  const columns = series.flatMap((item) => {
    const at = new Map(item.x.map((step, index) => [step, index]));
    return [item.y, item.high, item.low].map((column) => x.map((step) => (at.has(step) ? column[at.get(step)] : null)));
  });
  return [x, ...columns];
}

// The interval of a single point, of which no band can be drawn.
function errorBar({ ctx, valToPos }, { x, low, high }, stroke) {
  if (x.length !== 1 || low[0] == null) return;
  const [across, from, to] = [valToPos(x[0], "x", true), valToPos(low[0], "y", true), valToPos(high[0], "y", true)];
  ctx.save();
  ctx.strokeStyle = faded(stroke, 0.5);
  ctx.lineWidth = 2 * devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(across, from);
  ctx.lineTo(across, to);
  ctx.stroke();
  ctx.restore();
}

function options(curve, size, steps, cursor, pick) {
  const ink = colour("--soft");
  const grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: ink, grid, ticks: { show: false }, font: `11px ${getComputedStyle(document.body).fontFamily}` };
  const series = [{}];
  const bands = [];
  curve.series.forEach((item, index) => {
    const stroke = colour(STYLES[item.label] ?? DEFAULTS[index % 2]);
    const bound = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
    series.push({ stroke, show: !item.hidden, width: 2, spanGaps: true, points: { show: item.x.length < 15, size: 6, fill: stroke } }, bound, bound);
    bands.push({ series: [3 * index + 2, 3 * index + 3], fill: faded(stroke, 0.14) });
  });
  return {
    ...size, series, bands, legend: { show: false }, padding: [8, 14, 0, 0],
    scales: { x: { time: false, range: [0, steps || 1] },
      y: { range: curve.rate ? [0, 1] : (_, low, high) => uPlot.rangeNum(Math.min(0, low), high || 1, 0.1, true) } },
    axes: [{ ...axis, grid: { show: false }, size: 26, incrs: WHOLE },
      { ...axis, size: 42, values: (_, ticks) => ticks.map((y) => (curve.rate ? percent(y) : number(y))) }],
    cursor: { y: false, sync: { key: "steps" }, points: { size: 7 }, drag: { x: false, y: false } },
    hooks: {
      draw: [(plot) => curve.series.forEach((item, index) => errorBar(plot, item, series[3 * index + 1].stroke))],
      setCursor: [(plot) => cursor(plot.cursor.idx ?? null)],
      ready: [(plot) => pick && plot.over.addEventListener("click", () => plot.cursor.idx != null && pick(plot.data[0][plot.cursor.idx]))],
    },
  };
}

// As high as a chart, of a run that does not have this curve.
function NoChart({ title, height }) {
  return html`<figure class="chart"><figcaption><h3>${title}</h3></figcaption><div class="legend faint">not in this run</div>
    <div class="plot" style=${{ height: `${height}px` }} /></figure>`;
}

export function Chart({ curve, height = 170, ...more }) {
  return curve.series ? html`<${Drawn} curve=${curve} height=${height} ...${more} />` : html`<${NoChart} title=${curve.title} height=${height} />`;
}

function Drawn({ curve, steps, height, pick }) {
  const box = useRef(null);
  const [at, setAt] = useState(null);
  const latest = useRef(pick);
  latest.current = pick; // the plot outlives a change of search or filters, which make another one
  const data = aligned(curve.series);
  useEffect(() => {
    const place = box.current; // on another page the reference is empty before this effect has been cleaned up
    let plot;
    const draw = () => {
      plot?.destroy();
      const size = { width: Math.max(120, place.clientWidth), height };
      plot = new uPlot(options(curve, size, steps, setAt, pick && ((step) => latest.current(step))), data, place);
    };
    draw();
    const observer = new ResizeObserver(() => {
      const width = Math.max(120, place.clientWidth);
      if (width !== plot.width) plot.setSize({ width, height });
    });
    observer.observe(place);
    addEventListener("theme", draw);
    return () => { observer.disconnect(); removeEventListener("theme", draw); plot.destroy(); };
  }, [curve, steps, height]);
  return html`<figure class="chart">
    <figcaption><h3>${curve.title}</h3><span class="faint">${curve.note}</span>
      <span class="faint step">step ${data[0][at ?? data[0].length - 1]}</span></figcaption>
    <div class="legend">${curve.series.map((item, index) => {
      const known = data[3 * index + 1].map((y, place) => (y == null ? null : place)).filter((place) => place != null);
      const place = at ?? known.at(-1); // of a step that lacks a value there is none, not the latest one
      const [y, high, low] = [1, 2, 3].map((part) => data[3 * index + part][place]);
      return html`<span>${!item.hidden && html`<i class=${`key ${(STYLES[item.label] ?? DEFAULTS[index % 2]).slice(2)}`} />`}${`${item.label} `}<b>${value(curve, y)}</b>${low != null && html` <span class="faint">${Math.round(100 * low)}–${Math.round(100 * high)}</span>`}</span>`;
    })}</div>
    <div ref=${box} class="plot" style=${{ height: `${height}px` }} />
  </figure>`;
}
