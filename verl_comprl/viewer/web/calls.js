// All calls of the extractor.

import { Browser } from "viewer/browser";
import { Call } from "viewer/call";
import { html, number, signed } from "viewer/parts";
import { usePane } from "viewer/route";

export function Calls() {
  const { run } = usePane();
  const { calls, entries } = run;
  const { columns } = calls;
  const of = (name) => (row) => columns[name][row];
  const written = (row) => columns.entries[row].map((id) => entries.columns.title[entries.rowOf.get(id)] ?? "").filter(Boolean).join(" · ");
  const show = [
    { key: "reward", label: "reward", hint: "Mean over the episodes that used what the call wrote", value: of("reward"), cell: (row) => signed(columns.reward[row]), narrow: true },
    { key: "uses", label: "uses", value: of("uses"), cell: (row) => number(columns.uses[row]) },
    { key: "trainings", label: "trained", hint: "Updates of the extractor in which it was trained on", value: of("trainings"), cell: (row) => number(columns.trainings[row]) },
    { key: "step", label: "step", value: of("step"), cell: of("step") },
  ];
  const filters = [
    { key: "kind", label: "Purpose", options: ["distill", "merge", "answer"].map((kind) => [kind, kind]), test: (row, kind) => columns.kind[row] === kind },
    { key: "parsed", label: "Parsed", options: [["yes", "could be parsed"], ["no", "could not be parsed"]], test: (row, parsed) => columns.ok[row] === (parsed === "yes") },
    { key: "operation", label: "Operation", options: ["add", "update", "merge", "return", "retain", "discard", "upvote", "downvote"].map((name) => [name, name]),
      test: (row, name) => columns.operations[row].includes(name) },
  ];
  return html`<${Browser} table=${calls} noun="calls" missing="calls of an extractor" columns=${show} filters=${filters} order="step down"
    names=${(row) => `${columns.id[row]} ${written(row)}`}
    main=${(row) => html`<span>${columns.kind[row]} <span class="faint">${columns.ok[row] ? columns.operations[row].join(", ") : ""}</span>${
        !columns.ok[row] && html`<span class="badge bad">not parsed</span>`}</span>
      <small>${written(row) || `step ${columns.step[row]}`}</small>`}
    detail=${(row) => html`<${Call} row=${row} />`} />`;
}
