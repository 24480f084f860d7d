"""Worth of experience in one run of the miniature: a few lines and a figure from the run's folder."""

from collections import Counter
from pathlib import Path
from typing import Any

from recipes.miniature.rows import read_lines
from verl_comprl.record.reader import EVALUATIONS, EVENTS, METRICS

WINDOW = 3
"""Steps over which the curves of training are averaged: one step has 48 episodes of each half."""


def worth(run: Path) -> str:
    """Return lines that compare success with experience, without it, and before training, and show an entry."""
    evaluations = list(read_lines(run / EVALUATIONS))
    if not evaluations:
        return "What experience was worth is not known: the run made no evaluation."
    first, last = evaluations[0], evaluations[-1]
    if "comprl/eval/success_with" not in last:
        return "What experience was worth is not known: the run had none."
    episodes = int(last["comprl/eval/episodes_with"])
    gain = last["comprl/eval/success_with"] - last["comprl/eval/success_without"]
    after = f"after {last['step']} steps"
    lines = [
        f"What experience was worth: success in {episodes} episodes of known rules under new names (95 % interval):",
        f"  {'before training':<28}{_success(first, 'without')}",
        f"  {f'{after}, without it':<28}{_success(last, 'without')}",
        f"  {f'{after}, with it':<28}{_success(last, 'with')}  {100 * gain:+.0f} points",
    ]
    best = best_entry(run / EVENTS)
    if best:
        title, content, reads, successes = best
        lines.append(f'The entry with most successes: "{title} / {content}", {successes} of {reads} episodes succeeded')
    return "\n".join(lines)


def best_entry(journal: Path) -> tuple[str, str, int, int] | None:
    """Return title, content, reads and successes of the entry with the most successes, or None if none was read."""
    reads: Counter[str] = Counter()
    successes: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for event in read_lines(journal):
        if event["event"] == "read":
            texts[event["entry"]] = event["text"]
            reads[event["entry"]] += 1
            successes[event["entry"]] += event["success"]
    if not reads:
        return None
    best = max(reads, key=lambda id: (successes[id], -reads[id]))
    title, _, content = texts[best].partition("\n")
    return title, content, reads[best], successes[best]


def draw(run: Path, file: Path) -> Path:
    """Draw success in training, guided and free, and in the evaluations; returns the PNG, next to which is an SVG."""
    from matplotlib.figure import Figure

    from verl_comprl.plot.style import COLOURS, save, styled

    with styled():
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        panel = figure.subplots()
        looks = (("guided", COLOURS["complementary"], "with"), ("free", COLOURS["baseline"], "without"))
        for half, colour, mode in looks:
            steps, means = _curve(run / METRICS, f"comprl/{half}/success")
            panel.plot(steps, means, color=colour, alpha=0.6, label=f"training, {half} half")
            name = f"comprl/eval/success_{mode}"
            evaluations = [record for record in read_lines(run / EVALUATIONS) if name in record]
            at = [record["step"] for record in evaluations]
            success = [record[name] for record in evaluations]
            low = [record[name] - record[f"{name}_low"] for record in evaluations]
            high = [record[f"{name}_high"] - record[name] for record in evaluations]
            label = f"held out, {mode} experience"
            panel.errorbar(at, success, yerr=[low, high], fmt="o", color=colour, capsize=3, label=label)
        panel.set(xlabel="actor step", ylabel="success", ylim=(0, 1))
        figure.legend(frameon=False, fontsize=8, loc="outside lower left", ncols=2)
        return save(figure, file.with_suffix(""))[0]


def _curve(metrics: Path, name: str) -> tuple[list[float], list[float]]:
    """Return steps and means over ``WINDOW`` steps of a metric."""
    values = [(record["step"], record["data"][name]) for record in read_lines(metrics) if name in record["data"]]
    groups = [values[start : start + WINDOW] for start in range(0, len(values) - WINDOW + 1, WINDOW)]
    return (
        [sum(step for step, _ in group) / len(group) for group in groups],
        [sum(value for _, value in group) / len(group) for group in groups],
    )


def _success(record: dict[str, Any], mode: str) -> str:
    value, low, high = (record[f"comprl/eval/success_{mode}{bound}"] for bound in ("", "_low", "_high"))
    return f"{100 * value:3.0f} %  ({100 * low:.0f} to {100 * high:.0f})"
