// All episodes of a run.

import { useMemo } from "preact/hooks";
import { Browser } from "viewer/browser";
import { Episode } from "viewer/episode";
import { Outcome, html, number, signed, turnsKept } from "viewer/parts";
import { usePane } from "viewer/route";

export function Episodes() {
  const { run } = usePane();
  const { episodes, entries } = run;
  const { columns } = episodes;
  const different = (name) => useMemo(() => [...new Set(columns[name] ?? [])].filter(Boolean).sort(), [episodes]);
  const [tasks, kinds, statuses] = ["task", "kind", "status"].map(different);
  const of = (name) => (row) => columns[name][row];
  const title = (id) => (id && entries.rowOf.has(id) ? entries.columns.title[entries.rowOf.get(id)] : "");
  const show = [
    { key: "step", label: "step", value: of("step"), cell: of("step"), narrow: true },
    { key: "advantage", label: "advantage", value: of("advantage"), cell: (row) => signed(columns.advantage[row]) },
    { key: "actions", label: "actions", value: of("actions"), cell: (row) => number(columns.actions[row]) },
    { key: "score", label: "score", value: of("score"), cell: (row) => columns.score[row] ?? "–" },
    { key: "task", label: "task", value: of("task") },
    { key: "seed", label: "seed", value: of("seed") },
  ];
  const select = (key, label, values) => ({ key, label, options: values.map((value) => [value, value]), test: (row, value) => columns[key][row] === value });
  const filters = [
    ...(tasks.length > 1 ? [select("task", "Task", tasks)] : []),
    { key: "half", label: "Half", options: [["guided", "guided"], ["free", "free"]], test: (row, half) => columns.half[row] === half },
    { key: "outcome", label: "Outcome", options: [["success", "success"], ["failure", "failure"], ["error", "error"]],
      test: (row, outcome) => (outcome === "error" ? columns.status[row] === "failed" : columns.success[row] === (outcome === "success")) },
    ...(kinds.length > 1 ? [select("kind", "Kind", kinds)] : []),
    ...(statuses.length > 1 ? [select("status", "Status", statuses)] : []),
    { key: "questions", label: "Questions", options: [["1", "asked and was answered"]], test: (row) => columns.answered[row] > 0 },
    { key: "entry", label: "guided by", test: (row, id) => columns.entry[row] === id },
  ];
  return html`<${Browser} table=${episodes} noun="episodes" note=${turnsKept(run)} columns=${show} filters=${filters} order="step down"
    names=${(row) => `${columns.id[row]} ${columns.task[row]} seed ${columns.seed[row]} ${title(columns.entry[row])}`}
    main=${(row) => html`<span><${Outcome} success=${columns.success[row]} /> ${columns.task[row]} <span class="faint">seed ${columns.seed[row]}</span></span>
      <small class=${columns.entry[row] ? "accent" : ""}>${columns.kind[row] === "evaluation" ? "evaluation · " : ""}${
        columns.status[row] === "failed" ? "failed · " : ""}${columns.entry[row] ? title(columns.entry[row]) || "guided" : columns.half[row]}</small>`}
    detail=${(row) => html`<${Episode} row=${row} />`} />`;
}
