"""Report on the other processes of a run (episodes, servers, experience manager), each asked with a short limit."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from verl_comprl.display.units import counted, duration
from verl_comprl.errors import WaitTimeout
from verl_comprl.platform.under_way import UnderWay, under_way
from verl_comprl.trainer.step.keys import EVALUATION, TRAIN, Tags, list_keys
from verl_comprl.trainer.watchdog.processes import (
    MANAGER,
    actor_servers,
    agent_loop_workers,
    experience_manager,
    extractor_servers,
)

ANSWER_SECONDS = 5.0
"""Time that a process has to say where it stands."""

SILENT = "does not answer"


def situation(trainer: Any) -> Iterator[str]:
    """Yield lines on prompts, episodes, servers and the experience manager of a run."""
    workers = agent_loop_workers(getattr(trainer, "agent_loop_manager", None))  # none before the first evaluation
    manager = experience_manager(trainer)
    processes = workers | actor_servers(trainer) | extractor_servers(trainer) | manager
    asked = {name: process.__ray_call__.remote(under_way) for name, process in processes.items()}
    counting = {"metrics": manager[MANAGER].metrics.remote()} if manager else {}
    answers = ask(asked | counting)
    if workers:
        try:
            yield f"prompts: {describe_prompts(list_keys(ANSWER_SECONDS))}"
        except WaitTimeout:
            yield f"TransferQueue: {SILENT}"
        playing = [work for name in workers if isinstance(answers[name], list) for work in answers[name]]
        yield f"episodes: {describe_work(playing)}"
    if manager and not {str} & {type(answers["metrics"]), type(answers[MANAGER])}:
        yield f"{MANAGER}: {describe_queues(answers['metrics'])}; {describe_work(answers[MANAGER])}"
    for name, answer in answers.items():
        if isinstance(answer, str) and name != "metrics":
            yield f"{name}: {answer}"
    yield f"{sum(not isinstance(answers[name], str) for name in processes)} of {len(processes)} processes answer"


def manager_work(trainer: Any) -> list[UnderWay] | None:
    """Return what the experience manager works on in the background; None if it does not say."""
    asked = {name: process.__ray_call__.remote(under_way) for name, process in experience_manager(trainer).items()}
    answers = ask(asked).values()
    if any(isinstance(answer, str) for answer in answers):
        return None
    return [work._replace(what=f"{MANAGER} > {work.what}") for answer in answers for work in answer]


def ask(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of calls to Ray actors by name; instead of one that does not come, a text that says so."""
    if not asked:
        return {}
    ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_SECONDS)
    return {name: _result(reference) if reference in ready else SILENT for name, reference in asked.items()}


def _result(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except RayError as error:
        return f"failed: {type(error).__name__}"


def describe_prompts(tags: Tags) -> str:
    """Count the prompts of training and evaluation by verl's status."""
    parts = []
    for partition, name in ((TRAIN, "training"), (EVALUATION, "evaluation")):
        prompts = [tag for tag in tags.get(partition, {}).values() if tag.get("is_prompt", False)]
        counts = Counter(str(tag.get("status")) for tag in prompts)
        if counts:
            parts.append(f"{name}: " + ", ".join(f"{count} {status}" for status, count in counts.most_common()))
    return "; ".join(parts) or "none"


def describe_work(work: Iterable[UnderWay]) -> str:
    """Count work by its innermost part, with the age of the oldest."""
    ages: dict[str, list[float]] = {}
    for item in sorted(work, key=lambda item: -item.seconds):
        ages.setdefault(item.innermost, []).append(item.seconds)
    return ", ".join(f"{len(of)} in {what} (oldest {duration(of[0])})" for what, of in ages.items()) or "nothing runs"


def describe_queues(metrics: Mapping[str, float]) -> str:
    """Say what the manager has before it, and whether its extractor can be asked."""
    text = f"{counted(metrics['queue/depth'], 'episode', 'episodes')} in the queue, "
    text += f"{counted(metrics['buffer/samples'], 'sample', 'samples')} in the buffer"
    return text + (", the extractor is away" if metrics["extractor/away"] else "")
