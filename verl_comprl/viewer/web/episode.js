// One episode, turn by turn: what the actor saw, read and wrote, and which of it carries loss.

import { CallLink, EntryLink, Facts, Link, Outcome, Problem, Section, html, signed, useAsync } from "viewer/parts";
import { usePane } from "viewer/route";

// Text in parts of {text, name}: `spans` are [start, end, name], half-open and in order.
function split(text, spans) {
  const parts = [];
  let at = 0;
  for (const [start, end, name] of spans) {
    if (start > at) parts.push({ text: text.slice(at, start), name: "" });
    if (end > Math.max(at, start)) parts.push({ text: text.slice(Math.max(at, start), end), name });
    at = Math.max(at, end);
  }
  if (at < text.length) parts.push({ text: text.slice(at), name: "" });
  return parts;
}

// Python counts characters, JavaScript units of UTF-16: a span moves by the pairs before it.
export function units(text, spans) {
  if (!/[\ud800-\udbff]/.test(text)) return spans;
  const at = [0];
  for (const character of text) at.push(at.at(-1) + character.length);
  return spans.map(([start, end]) => [at[start] ?? text.length, at[end] ?? text.length]);
}

const lossOf = (record) => units(record.output ?? "", record.loss_spans ?? []).map((span) => [...span, "loss"]);

function Marked({ text, spans }) {
  return html`<pre class="raw">${split(text, spans).map(({ text: part, name }) => html`<span class=${name}>${part}</span>`)}</pre>`;
}

// Where `inner` stands in `text`, as spans.
function within(text, inner, name) {
  const at = inner ? text.indexOf(inner) : -1;
  return at < 0 ? [] : [[at, at + inner.length, name]];
}

// What of each turn carries loss, its response being found in the output one after the other: the parts of the response,
// and whether the questions before it do, which the actor wrote in another form.
function carried(turns, record) {
  const spans = lossOf(record);
  const output = record.output ?? "";
  let from = 0;
  return turns.map(({ response }) => {
    const after = from;
    const at = response == null ? output.length : output.indexOf(response, from);
    if (at < 0 || response === "") return {};
    from = at + (response?.length ?? 0);
    return {
      asked: spans.some(([start, end]) => start >= after && end <= at),
      parts: spans.map(([start, end]) => [Math.max(start, at) - at, Math.min(end, from) - at, "loss"]).filter(([start, end]) => end > start),
    };
  });
}

function Question({ question, loss }) {
  return html`<div class="question"><p><span class="label">asked</span><span class="text"><span class=${loss ? "loss" : ""}>${question.query}</span></span></p>
    <p><span class="label">${question.status === "answered" ? "answer" : question.status}</span><span class="text">${question.answer}</span></p>
    <p class="small">${question.entry && html`from <${EntryLink} id=${question.entry} />`}${question.call && html` · <${CallLink} id=${question.call}>the extractor's call<//>`}</p>
  </div>`;
}

function Turn({ turn, number, loss }) {
  const parts = loss.parts ? split(turn.response ?? "", loss.parts) : [{ text: turn.response ?? "", name: "" }];
  return html`<li class="turn"><div class="gutter">${number}</div><div class="content">
    ${turn.observation && html`<pre class="observation">${turn.observation}</pre>`}
    ${(turn.questions ?? []).map((question) => html`<${Question} question=${question} loss=${loss.asked} />`)}
    ${turn.response != null && html`<pre class="response">${parts.map(({ text, name }) => html`<span class=${name}>${text}</span>`)}</pre>
    <div class="marks">${turn.valid === false && html`<span class="badge bad">action refused</span>`}${
      turn.reward ? html`<span class="badge">reward ${turn.reward}</span>` : ""}${
      loss.parts?.length === 0 ? html`<span class="badge">no loss</span>` : ""}</div>`}
  </div></li>`;
}

function Group({ row }) {
  const { run } = usePane();
  const { id, prompt, half } = run.episodes.columns;
  const rows = run.group.get(prompt[row]) ?? [];
  if (rows.length < 2) return null;
  return html`<div class="group"><span class="label">same prompt</span>${["guided", "free"].map((name) => html`<span class=${`half ${name}`}>
    ${name}${rows.filter((other) => half[other] === name).map((other) => html`<${Link} key=${other} to=${{ page: "episodes", id: id[other] }}
      class=${other === row ? "here" : ""}><${Outcome} success=${run.episodes.columns.success[other]} /><//>`)}</span>`)}</div>`;
}

export function Episode({ row }) {
  const { run } = usePane();
  const { episodes } = run;
  const value = (name) => episodes.columns[name][row];
  const { value: record, error } = useAsync(() => episodes.detail(row), [episodes, row]);
  const calls = run.callsOf.get(value("id")) ?? [];
  return html`<header><h2><${Outcome} success=${value("success")} /> ${value("task")} <span class="faint">seed ${value("seed")}</span></h2>
      <p class="faint">step ${value("step")} · ${value("kind")} · ${value("half")}${value("advantage") == null ? "" : ` · advantage ${signed(value("advantage"))}`}</p></header>
    <${Group} row=${row} />
    <${Problem} error=${error} />
    ${record === null && html`<p class="notice">This page was written without the turns of this episode: <code>comprl view --episodes 0</code> keeps all.</p>`}
    ${record && html`
    ${record.error && html`<div class="notice bad"><b>${record.error.boundary}: ${record.error.type}</b><pre>${record.error.text}</pre></div>`}
    <p class="goal text">${record.goal}</p>
    ${record.guide && html`<${Guide} guide=${record.guide} />`}
    <p class="how small"><span class="loss">Underlined</span> is what the actor wrote and what carries loss.</p>
    <ol class="turns">
      ${withLoss(record).map(([turn, loss], index) => html`<${Turn} turn=${turn} number=${turn === record.unfinished ? "…" : index + 1} loss=${loss} />`)}
      ${record.final_observation && html`<li class="turn"><div class="gutter"><${Outcome} success=${value("success")} /></div>
        <div class="content"><pre class="observation">${record.final_observation}</pre></div></li>`}
    </ol>
    ${(record.input || record.output) && html`<${Section} title="What the model read and wrote" note="exactly; what carries loss is marked" open=${false}>
      <p class="legend"><span class="key-box loss">carries loss</span><span class="key-box inserted">inserted experience</span></p>
      <${Marked} text=${record.input ?? ""} spans=${within(record.input ?? "", record.guide?.text, "inserted")} />
      <${Marked} text=${record.output ?? ""} spans=${lossOf(record)} /><//>`}
    ${calls.length > 0 && html`<${Section} title="What the extractor made of it">
      <ul class="many">${calls.map((call) => html`<li><${CallLink} id=${run.calls.columns.id[call]} />${
        run.calls.columns.entries[call].map((id) => html`<div class="line">→ <${EntryLink} id=${id} /></div>`)}${
        run.calls.columns.entries[call].length ? "" : html`<div class="line faint">no entry: ${run.calls.columns.operations[call].join(", ") || "the answer could not be parsed"}</div>`}</li>`)}</ul><//>`}
    <${Facts} items=${[["id", value("id")], ["status", value("status")], ["score", value("score")], ["actions", value("actions")],
      ["refused actions", value("invalid")], ["tokens generated", record.tokens?.generated], ["seconds", record.seconds?.total?.toFixed(1)],
      ["weights", [...new Set(record.weight_versions)].join(" to ")], ["submitted in step", record.submitted], ["environment", record.environment]]} />`}`;
}

const withLoss = (record) => {
  const turns = [...(record.turns ?? []), record.unfinished].filter(Boolean);
  const loss = carried(turns, record);
  return turns.map((turn, index) => [turn, loss[index]]);
};

function Guide({ guide }) {
  const { run } = usePane();
  if (!guide.entry) return html`<p class="notice">A guided slot, but no experience was inserted: ${guide.status}.</p>`;
  const refined = guide.text !== guide.entry_text;
  const title = run.entries.columns.title[run.entries.rowOf.get(guide.entry)];
  const body = title && guide.text?.startsWith(`${title}\n`) ? guide.text.slice(title.length + 1) : guide.text;
  return html`<aside class="guide"><p class="label">experience it was given${guide.verdict ? ` · critic: ${guide.verdict}` : ""}</p>
    <p><b><${EntryLink} id=${guide.entry} /></b></p>
    ${guide.text == null ? html`<p class="faint">rejected, not inserted</p>` : html`<div class="text">${body}</div>`}
    ${refined && guide.text != null && html`<details><summary>as retrieved</summary><div class="text">${guide.entry_text}</div></details>`}
  </aside>`;
}
