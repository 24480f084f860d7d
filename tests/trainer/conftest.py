"""Models and data of recipes/minihack_small, and the runs that several test files look at: each is made once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from arm_settings import AHEAD, ARMS, BACK_ENDS, COMPARED, SEPARATE, SMALL, TWO_STEPS
from chat_endpoint import ChatEndpoint
from running import (
    ROOT,
    START_SECONDS,
    Run,
    comprl_bank,
    extractor_was_updated,
    last_step,
    read_steps,
    run_environment,
    run_lent,
    warm_started,
    with_tasks,
)
from teaching import teach

import env_adapters
from verl_comprl.record.reader import METRICS


@pytest.fixture(scope="session")
def models() -> Path:
    """The two models, warm-started; from the recipes' cache where there is one."""
    return warm_started()


@pytest.fixture(scope="session")
def folder(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, data and a place for runs."""
    return with_tasks(tmp_path_factory.mktemp("run"), models)


@pytest.fixture(scope="session")
def interrupted(folder: Path) -> Run:
    """A run in ``folder/run`` that got SIGTERM after the first update of its extractor, which shares the actor's slot.

    Its extractor is away while it is trained, as on a GPU, where its server gives its memory to the engine (which a CPU
    server does not). It is continued with slots for both.
    """
    shared = ["comprl.extractor.placement=shared", "extractor.rollout.free_cache_engine=true"]
    shared.append("extractor.rollout.enable_sleep_mode=false")  # a CPU server refuses it
    run = Run(folder, "trainer.total_training_steps=1000", *shared, script="probed_run.py")
    try:
        # Not before step 2, whose episodes are the first ones that are guided, and so give outcomes.
        run.wait_until(lambda: extractor_was_updated(folder / "run"))
        run.keeping_memory = run.having("MALLOC_MMAP_MAX_")
        actions = (("stats", "--json"), ("verify",), ("delete", "--where", "uses=0", "--yes"))
        run.beside = [comprl_bank(folder, *action) for action in actions]
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(timeout=300)
    finally:
        run.process.kill()
    run.left = run.leftovers()  # now, before other tests make files in shared memory
    return run


@pytest.fixture(scope="session")
def initial_bank(folder: Path) -> Path:
    """A snapshot with one good lesson in many words, so that guided episodes succeed now and then."""
    code = f"""
import asyncio
from verl_comprl.experience import *
async def main():
    bank = await ExperienceBank.open(BankConfig(path={str(folder / "seed")!r}), await make_embedder("builtin"))
    lesson = "Walk towards unseen cells until the staircase shows up. Explore cells that you have not seen yet."
    adds = [Add(title="Search a dark room", content=lesson + " Do not waste turns." * n) for n in range(4)]
    await bank.apply(adds, call_id="", listed=[], task="t", environment="minihack", step=0, weight_version=0)
    await bank.save({str(folder / "initial")!r})
    await bank.close()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    return folder / "initial"


@pytest.fixture(scope="session")
def mix(folder: Path) -> list[str]:
    """Files with rows of every environment family, of a user's own environment and of one that always raises."""
    families = {name: [] for name in env_adapters.list_environments()} | {"minihack": ["--variant", "keyroom"]}
    own = ("examples.own_environment.guess:GuessEnvironment", "broken:BrokenEnvironment")
    wanted = families | {name: [] for name in own}

    def make_rows(name: str, options: list[str]) -> None:
        file = folder / "mix" / f"{name.rpartition(':')[2]}.parquet"
        command = [sys.executable, "-m", "verl_comprl.cli.main", "data", name, *options, "--split", "train"]
        command += ["--count", "2", "--max-turns", "3", "--output", str(file)]
        subprocess.run(command, cwd=ROOT, env=run_environment(folder), check=True)

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # most of their time is that of imports
        list(threads.map(make_rows, wanted, wanted.values()))
    return sorted(map(str, (folder / "mix").iterdir()))


@pytest.fixture(scope="session")
def teacher() -> Iterator[ChatEndpoint]:
    """An endpoint that is the extractor of a run."""
    teacher = ChatEndpoint(teach)
    teacher.server.start()
    yield teacher
    teacher.server.stop()


def back_end_runs(folder: Path, teacher: ChatEndpoint, common: list[str]) -> list[dict[str, Any]]:
    """Return the runs without a second model, and one that continues the endpoint's with the actor's server."""
    url = f"comprl.extractor.endpoint.url={teacher.url}"
    runs = [{"name": name, "overrides": [*common, *changes, url]} for name, changes in BACK_ENDS.items()]
    saved = str(folder / "endpoint" / "global_step_2")
    resumed = [*BACK_ENDS["endpoint"], url, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={saved}"]
    resumed += ["trainer.total_training_steps=3", "comprl.extractor.backend=actor"]
    runs.append({"name": "other_back_end", "overrides": [*common, *resumed]})
    runs.append({"name": "evaluated_endpoint", "evaluate": saved, "result": "result_endpoint.json"})
    return runs


@pytest.fixture(scope="session")
def lent(
    folder: Path, interrupted: Run, initial_bank: Path, mix: list[str], teacher: ChatEndpoint
) -> dict[str, list[dict[str, Any]]]:
    """Metrics of the steps of all runs that need no process of their own, see ``lent_run.py``."""
    compared = [*COMPARED, f"skip.rollout_tq.dump_dir={folder / 'rollouts'}", "trainer.resume_mode=disable"]
    step = last_step(folder / "run")
    common = [*TWO_STEPS, f"comprl.initial_bank={initial_bank}"]
    # An arm with both models comes first: they start at the same time.
    runs: list[dict[str, Any]] = [{"name": name, "overrides": [*common, *changes]} for name, changes in ARMS.items()]
    # verl's trainer makes rollouts and keeps them; ours trains on the same ones.
    runs.append({"name": "plain", "overrides": compared, "plain": True})
    runs.append({"name": "ours", "overrides": compared})
    batch = [f"data.train_batch_size={len(mix)}", f"actor_rollout_ref.actor.ppo_mini_batch_size={len(mix)}"]
    mixed = ["trainer.total_training_steps=1", "actor_rollout_ref.rollout.n=2", f"data.train_files=[{','.join(mix)}]"]
    mixed += ["data.max_prompt_length=3072", "data.max_response_length=1024", *batch]
    runs.append({"name": "mix", "overrides": [*common, *mixed]})
    runs += back_end_runs(folder, teacher, common)
    # From the checkpoint that the signal left; then, in a folder of its own, from the one that verl writes of every
    # save_freq-th step, in which a merge is due.
    periodic = step + 2
    resumed = [f"trainer.total_training_steps={periodic}", f"trainer.save_freq={periodic}", "comprl.merge.every=1"]
    runs.append({"name": "run", "overrides": resumed, "probe": str(folder / "resumed.jsonl")})
    resuming = runs[-1]
    continued = [f"trainer.total_training_steps={periodic + 1}", "trainer.resume_mode=resume_path"]
    continued.append(f"trainer.resume_from_path={folder / 'run' / f'global_step_{periodic}'}")
    runs.append({"name": "continued", "overrides": continued})
    # Both models have been loaded from a checkpoint and trained by now.
    runs.append({"name": "again", "overrides": [*common, "trainer.total_training_steps=1"]})
    for run in (runs[0], resuming, runs[-1]):
        run["start"] = str(folder / "starts" / run["name"])
    runs += ahead_runs(folder, common)
    runs.append({"name": "evaluated", "evaluate": str(folder / "run" / f"global_step_{step}")})
    run_lent(folder, runs, [*SMALL, f"trainer.default_local_dir={folder}"])
    steps = {run["name"]: read_steps(folder / run["name"]) for run in runs if (folder / run["name"] / METRICS).exists()}
    steps["resumed"] = [line for line in steps.pop("run") if line["step"] > step]
    return steps


def ahead_runs(folder: Path, common: list[str]) -> list[dict[str, Any]]:
    """Two steps with verl's ``colocate_async``, and two more from their checkpoint, in a folder of their own."""
    saved = [*common, *AHEAD, "trainer.save_freq=2"]
    again = [*saved, "trainer.total_training_steps=4", "trainer.resume_mode=resume_path"]
    again.append(f"trainer.resume_from_path={folder / 'ahead' / 'global_step_2'}")
    runs = [{"name": "ahead", "overrides": saved}, {"name": "ahead_continued", "overrides": again}]
    return [run | {"groups": str(folder / f"{run['name']}_groups.jsonl")} for run in runs]


@pytest.fixture(scope="session")
def separate(folder: Path, initial_bank: Path) -> list[dict[str, Any]]:
    """Metrics of two steps with verl's ``separate_async``, and of two more from their checkpoint."""
    common = [*SEPARATE, "comprl.warmup_steps=0", "actor_rollout_ref.rollout.n=4", "trainer.save_freq=2"]
    common += ["comprl.drain_timeout=0", f"comprl.initial_bank={initial_bank}"]
    common += [f"trainer.default_local_dir={folder / 'separate'}"]
    for steps in (2, 4):
        run = Run(folder, *common, f"trainer.total_training_steps={steps}", script="recorded_run.py")
        try:
            assert run.process.wait(timeout=2 * START_SECONDS) == 0, run.text()
        finally:
            run.process.kill()
        run.probe.rename(folder / f"separate_groups_{steps}.jsonl")
    return read_steps(folder / "separate")
