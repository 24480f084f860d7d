// One call of the extractor: prompt, answer, what was parsed from it, and how that was rewarded.

import { EntryLink, EpisodeLink, Facts, Many, Problem, Section, html, number, signed, useAsync } from "viewer/parts";
import { usePane } from "viewer/route";

// Columns of the updates that trained a call.
const TRAINING = {
  update: "Number of the extractor's update, from 1",
  step: "Step of the actor in which the update took place",
  reward: "Mean reward of the episodes that used it and ended in the same step, or that of an answer that could not be parsed",
  weight: "w of the paper's Eq. 7: (1 + times it was trained on before) to the power of −comprl.extractor.alpha; "
    + "0 if the last time was too recent, or if the update had no other call of its purpose to compare it with",
  advantage: "Weight times (reward − mean reward of the update's calls of the same purpose); above 0, the like of it becomes more probable",
};

export function Rewards({ row }) {
  const { run } = usePane();
  const { value: call, error } = useAsync(() => run.calls.detail(row), [run, row]);
  if (!call) return html`<${Problem} error=${error} />`;
  const { uses, trainings } = call;
  const unused = call.reward != null ? `It could not be parsed: reward ${signed(call.reward, 1)}.`
    : !trainings.length && "What it wrote was not used by a training episode that counts.";
  return html`${uses.length === 0 && unused && html`<p class="faint">${unused}</p>`}
    ${uses.length > 0 && html`<p class="small">+1: an episode that used it succeeded, −1: it failed; with comprl.extractor.utility=relative, less the mean of the prompt's free half.</p>
      <${Many} items=${uses} first=${6} render=${(use) => html`<span class="line"><span class=${`reward ${use.reward > 0 ? "good" : use.reward < 0 ? "bad" : ""}`}>${signed(use.reward, 1)}</span>
      <${EpisodeLink} id=${use.episode} />${use.judged ? html`<small>critic ${use.judged}</small>` : ""}</span>`} />`}
    ${trainings.length > 0 && html`<table class="trainings"><thead><tr>${Object.entries(TRAINING).map(([name, hint]) => html`<th title=${hint}>${name}</th>`)}</tr></thead>
      <tbody>${trainings.map((item) => html`<tr><td>${item.update}</td><td>${item.step}</td><td>${signed(item.reward)}</td><td>${item.weight?.toFixed(2)}</td><td>${signed(item.advantage)}</td></tr>`)}</tbody></table>`}`;
}

function Operation({ operation, listed }) {
  return html`<div class="operation"><p><span class="badge">${operation.operation}</span>
      ${(operation.ids ?? []).map((number) => listed[number - 1] ? html`<${EntryLink} id=${listed[number - 1]} />` : html`<span class="faint">[${number}]</span>`)}</p>
    ${operation.title && html`<b class="text">${operation.title}</b>`}${operation.content && html`<div class="text">${operation.content}</div>`}</div>`;
}

export function Call({ row }) {
  const { run } = usePane();
  const value = (name) => run.calls.columns[name][row];
  const { value: call, error } = useAsync(() => run.calls.detail(row), [run, row]);
  const reward = `reward ${signed(value("reward"))}`;
  const worth = value("ok") === false ? `${value("reward") == null ? "" : `${reward}: `}could not be parsed`
    : `${reward} over ${number(value("uses"))} ${value("uses") === 1 ? "use" : "uses"}`;
  const rejected = Object.entries(call?.rejections ?? {});
  return html`<header><h2>${{ distill: "Distillation", merge: "Merge", answer: "Answer to a question" }[value("kind")] ?? value("kind")}</h2>
      <p class="faint">step ${value("step")} · weights ${value("version")} · ${worth}</p></header>
    <${Problem} error=${error} />
    ${call && html`
    <ul class="lineage">
      ${call.episode && html`<li><span class="label">about</span><${EpisodeLink} id=${call.episode} /></li>`}
      ${call.entry && html`<li><span class="label">from</span><${EntryLink} id=${call.entry} /></li>`}
      ${call.entries.length > 0 && html`<li><span class="label">wrote</span><ul class="many">${call.entries.map((id) => html`<li><${EntryLink} id=${id} /></li>`)}</ul></li>`}
      ${call.removed.length > 0 && html`<li><span class="label">removed</span><ul class="many">${call.removed.map((id) => html`<li><${EntryLink} id=${id} /></li>`)}</ul></li>`}
    </ul>
    ${!call.format_ok && html`<div class="notice bad"><b>could not be parsed</b>${call.errors.map(({ kind, message }) => html`<p>${kind}: ${message}</p>`)}</div>`}
    ${rejected.length > 0 && html`<p class="notice">not carried out: ${rejected.map(([reason, count]) => `${count} ${reason}`).join(", ")}</p>`}
    ${call.query && html`<div class="question"><p><span class="label">asked</span><span class="text">${call.query}</span></p>
      <p><span class="label">answer</span><span class="text">${call.text}</span></p></div>`}
    ${call.operations.map((operation) => html`<${Operation} operation=${operation} listed=${call.listed} />`)}
    <${Section} title="Reward" note="episodes that used what it wrote, and updates that trained it"><${Rewards} row=${row} /><//>
    <${Section} title="Answer" open=${call.operations.length === 0}><pre class="raw">${call.answer}</pre><//>
    <${Section} title="Prompt" open=${false}>${call.messages.map(({ role, content }) => html`<p class="label">${role}</p><pre class="raw">${
      typeof content === "string" ? content : JSON.stringify(content, null, 1)}</pre>`)}<//>
    <${Facts} items=${[["id", call.call], ["prompt tokens", call.tokens?.prompt], ["response tokens", call.tokens?.response]]} />`}`;
}
