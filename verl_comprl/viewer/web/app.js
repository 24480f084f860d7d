// The page: one pane, or two next to each other, each with a run of its own.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Bank } from "viewer/bank";
import { Calls } from "viewer/calls";
import { block, Run } from "viewer/data";
import { Episodes } from "viewer/episodes";
import { Overview } from "viewer/overview";
import { Link, Problem, html, useAsync } from "viewer/parts";
import { PAGES, Pane, format, paneOf, useRoute } from "viewer/route";

const VIEWS = { overview: Overview, bank: Bank, episodes: Episodes, extractor: Calls };
const THEMES = ["auto", "light", "dark"];

const runs = new Map();

function useRun(number) {
  const { value: run, error } = useAsync(() => {
    if (!runs.has(number)) runs.set(number, Run.read(number));
    return runs.get(number);
  }, [number]);
  return { run: run?.number === number ? run : undefined, error };
}

function Theme() {
  // The button is made again when a side is added or closed.
  const [theme, set] = useState(document.documentElement.dataset.theme ?? "auto");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event("theme"));
  }, [theme]);
  useEffect(() => {
    const changed = () => dispatchEvent(new Event("theme"));
    const query = matchMedia("(prefers-color-scheme: dark)");
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return html`<button class="quiet theme" title="Colours: ${theme}" aria-label="Colours: ${theme}" onClick=${() => set(THEMES[(THEMES.indexOf(theme) + 1) % 3])}>${
    { auto: "◐", light: "○", dark: "●" }[theme]}</button>`;
}

function Side({ panes, number, names, ...shared }) {
  const route = panes[number];
  const { run, error } = useRun(route.run);
  const pane = { ...paneOf(panes, number, run), ...shared, two: panes.length === 2 };
  const View = VIEWS[route.page];
  const second = number === 1;
  const split = () => { location.hash = format([route, { run: route.run ? 0 : 1, page: route.page, id: "", query: {} }]); };
  const choose = (event) => pane.go({ run: Number(event.target.value), page: route.page });
  return html`<${Pane.Provider} value=${pane}><div class="pane">
    <nav class="top">
      ${names.length > 1 ? html`<select class="run" aria-label="Run" value=${route.run} onChange=${choose}>${names.map((name, index) =>
        html`<option value=${index} selected=${index === route.run}>${name}</option>`)}</select>` : html`<span class="run">${names[0]}</span>`}
      <div class="tabs">${PAGES.map((page) => html`<${Link} key=${page} to=${{ page }} class=${page === route.page ? "here" : ""}
        aria-current=${page === route.page ? "page" : null}>${page[0].toUpperCase() + page.slice(1)}<//>`)}</div>
      <div class="tools">
        ${names.length > 1 && panes.length === 1 && html`<button class="quiet" onClick=${split}>Compare</button>`}
        ${second && html`<button class="quiet" onClick=${() => { location.hash = format([panes[0]]); }} aria-label="Close this side">×</button>`}
        ${number === panes.length - 1 && html`<${Theme} />`}
      </div>
    </nav>
    ${error ? html`<${Problem} error=${error} />` : run ? html`<${View} key=${route.run} />` : html`<p class="loading">Reading the run …</p>`}
  </div><//>`;
}

// `steps` and `curves` are of all runs: the last step, and the titles in their order.
function App({ names, steps, curves }) {
  const panes = useRoute().map((route) => ({ ...route, run: Math.min(route.run, names.length - 1) }));
  return html`<div class=${`panes ${panes.length > 1 ? "two" : ""}`}>${panes.map((_, number) =>
    html`<${Side} key=${number} panes=${panes} number=${number} names=${names} steps=${steps} curves=${curves} />`)}</div>`;
}

const app = document.getElementById("app");
app.replaceChildren();
block("page").then(
  (page) => render(html`<${App} ...${page} />`, app),
  (error) => { app.textContent = `This page cannot be shown: ${error}. It needs a browser of 2024 or later.`; },
);
