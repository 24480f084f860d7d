// One entry: its text, where it comes from and what became of it, what it was worth, and the episodes that read it.

import { CallLink, Compared, EntryLink, EpisodeLink, FATES, Facts, Gain, Link, Many, Outcome, Problem, Section, html, named, number, origin, percent, points, useAsync } from "viewer/parts";
import { Rewards } from "viewer/call";
import { usePane } from "viewer/route";

const DEPTH = 6;
const FREE = "For each episode that it guided, the success of the free half of its prompt; shown is their mean. "
  + "A prompt counts as often as such episodes had it, so the mean may differ from the success of the free episodes taken together.";

// Ancestors (or descendants) as an indented list, each entry once.
function Kin({ row, next, seen = new Set([row]), depth = 0 }) {
  const { run } = usePane();
  const { id } = run.entries.columns;
  const rows = (next(row) ?? []).filter((other) => !seen.has(other));
  rows.forEach((other) => seen.add(other));
  if (!rows.length) return null;
  if (depth === DEPTH) return html`<ul class="kin"><li class="faint">and further</li></ul>`;
  return html`<ul class="kin">${rows.slice(0, 30).map((other) => html`<li key=${other}>
    <div class="line"><${EntryLink} id=${id[other]} /><small>${origin(run.entries.columns, other)}</small><${Gain} of=${run.entries} row=${other} /></div>
    <${Kin} row=${other} next=${next} seen=${seen} depth=${depth + 1} /></li>`)}
    ${rows.length > 30 && html`<li class="faint">and ${rows.length - 30} more</li>`}</ul>`;
}

// Success with it, of the free half, and the gain: of an entry, or of all copies of its text.
function Worth({ of, row, detail }) {
  const value = (name) => of.columns[name][row];
  const uses = value("uses");
  return html`<section class="worth">
      <div><span class="label">with it</span><b class="accent">${percent(value("compared"))}</b><small>${episodesOf(detail.matched || uses)}</small></div>
      <div title=${FREE}><span class="label">free half, same prompts</span><b>${percent(value("free"))}</b><small>${episodesOf(detail.free_count)}</small></div>
      <div><span class="label">gain in points</span><b><${Gain} of=${of} row=${row} /></b><small>${
        value("gain_low") == null ? "" : `95 %: ${points(value("gain_low"))} to ${points(value("gain_high"))}`}</small></div>
      <${Compared} rate=${value("compared")} free=${value("free")} interval=${detail.interval} freeInterval=${detail.free_interval} width=${220} />
      ${detail.matched < uses && html`<p class="small">${number(detail.matched)} of ${number(uses)} uses have a free half on record${
        detail.matched ? `; of all ${number(uses)} uses ${percent(value("rate"))} succeeded` : ""}.</p>`}
    </section>`;
}

// The other entries with the text of this one, and what all of them were worth together.
function Copies({ row }) {
  const { texts, entries } = usePane().run;
  const { id, uses } = entries.columns;
  const others = texts.columns.copies[row].filter((other) => other !== row);
  const { value: detail, error } = useAsync(() => texts.detail(row), [texts, row]);
  return html`<${Section} title="Copies" note=${`${number(others.length)} more ${others.length === 1 ? "entry" : "entries"} with this text; all together:`}>
      ${detail ? html`<${Worth} of=${texts} row=${row} detail=${detail} />` : html`<${Problem} error=${error} />`}
      <${Many} items=${others} first=${6} render=${(other) => html`<div class="line"><${Link} to=${{ page: "bank", id: id[other] }} class="entry-link">${
        origin(entries.columns, other)}<//><small>${number(uses[other])} ${uses[other] === 1 ? "use" : "uses"}</small><${Gain} of=${entries} row=${other} /></div>`} />
    <//>`;
}

const episodesOf = (count) => `${number(count)} training ${count === 1 ? "episode" : "episodes"}`;

export function Entry({ row }) {
  const { run } = usePane();
  const { entries, episodes } = run;
  const { columns } = entries;
  const { value: detail, error } = useAsync(() => entries.detail(row), [entries, row]);
  const value = (name) => columns[name][row];
  const guided = run.guidedBy[row] ?? [];
  const asked = run.askedBy[row] ?? [];
  const parents = value("parents");
  const children = run.children[row] ?? [];
  const fate = value("fate");
  const evaluations = guided.filter((episode) => episodes.columns.kind[episode] === "evaluation").length;
  const call = run.calls.rowOf.get(detail?.call);
  return html`<header><h2>${named(columns, row)}</h2>
      <p class="faint">${origin(columns, row)} · ${FATES[fate] ?? fate}${value("gone") == null ? "" : ` in step ${value("gone")}`} · ${value("tasks").join(", ")}</p></header>
    ${error ? html`<${Problem} error=${error} />` : html`<div class="text lesson">${detail?.content ?? "…"}</div>`}
    ${detail && html`
    <${Worth} of=${entries} row=${row} detail=${detail} />
    ${run.texts.columns.copies[row] && html`<${Copies} row=${row} />`}
    <${Section} title="Lineage">
      <ul class="lineage">
        ${detail.episode && html`<li><span class="label">episode</span><${EpisodeLink} id=${detail.episode} /></li>`}
        ${detail.call && html`<li><span class="label">written by</span><${CallLink} id=${detail.call} /></li>`}
        ${parents.length > 0 && html`<li><span class="label">${value("kind") === "merged" ? "merged from" : "replaces"}</span>
          <${Kin} row=${row} next=${(other) => columns.parents[other]} /></li>`}
        ${children.length > 0 && html`<li><span class="label">became</span><${Kin} row=${row} next=${(other) => run.children[other]} /></li>`}
        ${detail.reason && html`<li><span class="label">quarantined</span>${detail.reason}</li>`}
      </ul>
    <//>
    <${Section} title="Episodes it guided" note=${`${number(guided.length)}${evaluations ? `, of them ${number(evaluations)} in evaluations` : ""}`}>
      <${Many} items=${guided} render=${(episode) => html`<${EpisodeLink} id=${episodes.columns.id[episode]}>step ${
        episodes.columns.step[episode]} · ${episodes.columns.task[episode]} · ${episodes.columns.kind[episode] === "evaluation" ? "evaluation · without it" : "free half"} ${" "}${free(run, episode)}<//>`} />
      ${guided.length > 12 && html`<${Link} class="quiet" to=${{ page: "episodes", query: { entry: value("id") } }}>Show them as a list<//>`}
    <//>
    ${asked.length > 0 && html`<${Section} title="Episodes that read an answer from it" note=${number(asked.length)}>
      <${Many} items=${asked} render=${(episode) => html`<${EpisodeLink} id=${episodes.columns.id[episode]} />`} /><//>`}
    ${call !== undefined && html`<${Section} title="Reward of the extractor" note="the call that wrote it"><${Rewards} row=${call} /><//>`}
    <${Facts} items=${[["id", value("id")], ["extractor's weights", detail.version], ["read through answers", detail.asked[1] ? `${detail.asked[1]}, ${detail.asked[0]} successful` : null]]} />`}`;
}

// Outcomes of the free half of an episode's prompt, as marks.
function free(run, episode) {
  const { prompt, half, success } = run.episodes.columns;
  const others = (run.group.get(prompt[episode]) ?? []).filter((other) => half[other] === "free");
  return others.length ? others.map((other) => html`<${Outcome} success=${success[other]} />`) : "–";
}
