"""Measures what experience adds to the rollouts of 128 to 1,024 concurrent episodes.

The manager (a Ray actor with bank, embedder, queue and buffer), the agent loops, the environment host and the messages
between worker processes are the real ones. Only the language-model servers are not: they wait as long as a 7B model on
eight GPUs would take, and return tokens (``timed.py``). Every size is measured without experience and with it, in turn,
with equal numbers of generated tokens; with it twice: once the manager has distilled all episodes before the
measurement begins, and once its queue is full, so that distillation needs processors while a thousand episodes begin.
The ratio is the geometric mean over pairs, with the interval of Student's t.

    python -m benchmarks.scale [--episodes 128 256 512 1024] [--pairs 1] [--workers 2] [--output outputs/scale]
"""

import argparse
import asyncio
import logging
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.paired import geometric_ratio, show
from recipes.miniature.run import set_environment
from verl_comprl.sweep.checks import check
from verl_comprl.sweep.runs import Run, compose
from verl_comprl.train import prepare_environment

ROOT = Path(__file__).parents[1]
ROLLOUTS, TURNS, LENGTHS = 8, 8, (80, 160)
TURN = "I look at the lamps and think about what the last move did. <action>left</action> "
ANSWER = '<answer>[{{"operation": "add", "title": "{title}", "content": "worked: first {number}"}}]</answer>'
VARIANTS = 1024
"""Of each lesson the extractor writes: an entry that the bank has already would cost it nearly nothing."""
ARMS = "without", "with, queue empty", "with, queue full"
TARGET = 1.02
"""Mean time of an episode with experience, relative to that without, at 1,024 episodes and with an empty queue."""


class EpisodeWorker:
    """Process that plays episodes with the real agent loop, as one of verl's agent loop workers."""

    def __init__(self, config: Any) -> None:
        """Load what an agent loop needs."""
        from verl_comprl import plugin
        from verl_comprl.config.models import load_tokenizer, read_model_file

        plugin.verify()
        self._config = config
        self._tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        self._model_type = read_model_file(config.actor_rollout_ref.model.path, "config.json")["model_type"]

    async def play(self, rows: list[dict[str, Any]], speed: Any, seed: str) -> list[dict[str, float]]:
        """Play all rows at the same time; returns the seconds of each episode, and its details."""
        from benchmarks.timed import TimedServer

        texts = [self._tokenizer.encode(TURN, add_special_tokens=False)]
        server = TimedServer(texts, self._tokenizer.eos_token_id, speed, seed=seed, lengths=LENGTHS, name=place)
        return await asyncio.gather(*(self._episode(server, row) for row in rows))

    async def _episode(self, server: Any, row: dict[str, Any]) -> dict[str, float]:
        from verl.experimental.agent_loop.agent_loop import DictConfigWrap

        from verl_comprl.rollout.agent_loop import ComplementaryAgentLoop

        surroundings: Any = {"server_manager": server, "processor": None, "dataset_cls": None}
        started = time.perf_counter()
        loop = ComplementaryAgentLoop(
            trainer_config=DictConfigWrap(self._config),
            tokenizer=self._tokenizer,
            data_config=DictConfigWrap(self._config.data),
            hf_model_type=self._model_type,
            **surroundings,
        )
        output: Any = await loop.run({"temperature": 1.0}, **row)
        if not output:
            raise RuntimeError(f"the episode {row['uid']}_{row['session_id']} failed")
        return output.extra_fields["reward_extra_info"] | {"seconds": time.perf_counter() - started}


class Setup:
    """A run with experience or without: its config, its workers, and its manager if it has one."""

    def __init__(self, config: Any, workers: int) -> None:
        """Start the processes."""
        import ray

        from verl_comprl.manager.actor import Opening, open_bank, start_manager

        self.config, self.experience = config, bool(config.comprl.experience)
        self.step = 0
        """The latest that was played."""
        if self.experience:
            self.manager, loaded = start_manager(config)
            ray.get(loaded)
            open_bank(self.manager, config, Opening(keep_content=False))
            self._connect()
        worker: Any = ray.remote(EpisodeWorker).options(num_cpus=1, max_concurrency=4096)
        self.workers = [worker.remote(config) for _ in range(workers)]
        ray.get([one.__ray_ready__.remote() for one in self.workers])  # their imports are no part of a measurement

    def _connect(self) -> None:
        import ray

        from benchmarks.fixed_turns import lessons
        from benchmarks.timed import Speed, TimedServer
        from verl_comprl.config.models import load_tokenizer
        from verl_comprl.manager.served_model import ServedModel, sampling_of

        extractor = self.config.extractor
        tokenizer = load_tokenizer(extractor.model)
        titles = [f"{title}, {number}" for number in range(VARIANTS) for _, title, _ in lessons(each=1)]
        answers = [ANSWER.format(title=title, number=number) for number, title in enumerate(titles)]
        texts = [tokenizer.encode(answer, add_special_tokens=False) for answer in answers]
        server: Any = TimedServer(texts, tokenizer.eos_token_id, Speed(), seed="extractor")
        sampling = replace(sampling_of(extractor.rollout), max_tokens=max(map(len, texts)) + 1)
        connecting = ServedModel(server, sampling), extractor.model, extractor.rollout.prompt_length
        ray.get(self.manager.connect.remote(*connecting))

    def play(self, rows: list[dict[str, Any]], speed: Any, seed: str) -> tuple[float, list[dict[str, float]]]:
        """Play all rows at the same time; returns seconds until the last has ended, and what each returned."""
        import ray

        size = -(-len(rows) // len(self.workers))
        started = time.perf_counter()
        parts = [
            worker.play.remote(rows[size * number : size * (number + 1)], speed, seed)
            for number, worker in enumerate(self.workers)
        ]
        played = [episode for part in ray.get(parts) for episode in part]
        return time.perf_counter() - started, played

    def drain(self) -> None:
        """Wait until all episodes have been distilled."""
        while self.waiting():
            time.sleep(1)
        time.sleep(5)  # the last ones, which no longer wait

    def waiting(self) -> float:
        """Return the episodes that wait for distillation."""
        import ray

        if not self.experience:
            return 0.0
        metrics: Any = ray.get(self.manager.metrics.remote())
        return metrics["queue/depth"]


def place(id: str) -> str:
    """Return prompt and rollout of an episode, which are those of one in every other step."""
    return id.partition("-")[2]


def rows_of(episodes: int, step: int) -> list[dict[str, Any]]:
    """Return the rows of one step, with the columns that verl adds."""
    from benchmarks.fixed_turns import fixed_turns_rows

    tasks = fixed_turns_rows(-(-episodes // ROLLOUTS // 3), turns=TURNS)[: episodes // ROLLOUTS]
    rows = []
    for number, task in enumerate(tasks):
        columns = {name: value for name, value in task.items() if name != "prompt"}
        for session in range(ROLLOUTS):
            added = {"uid": f"{step}-{number}", "session_id": session, "global_steps": step}
            rows.append(columns | {"raw_prompt": task["prompt"], **added})
    return rows


def cpu_seconds() -> dict[str, float]:
    """Return the processor time used so far by each kind of process of this run."""
    used: dict[str, float] = {}
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times, name = process.cpu_times(), (process.cmdline() or ["?"])[0].rpartition("/")[2].split(".")[0]
        except psutil.NoSuchProcess:
            continue
        used[name] = used.get(name, 0.0) + times.user + times.system
    return used


def measure(setup: Setup, episodes: int, pair: int, options: argparse.Namespace, *, drain: bool) -> dict[str, Any]:
    """Measure one batch, after one whose episodes take no time and fill the queue, which is drained if wanted."""
    from benchmarks.timed import Speed

    # Steps are never used again: the manager takes an episode of an earlier one for a report that was sent twice.
    setup.step += 1
    setup.play(rows_of(episodes, setup.step), Speed(prefill=0, decode=0), "warm-up")
    if drain:
        setup.drain()
    setup.step += 1
    waiting, before = setup.waiting(), cpu_seconds()
    speed = Speed(decode=options.per_token, load=1 + episodes / 1024)
    seconds, played = setup.play(rows_of(episodes, setup.step), speed, str(pair))
    used = {name: value - before.get(name, 0.0) for name, value in cpu_seconds().items()}
    left = setup.waiting()
    setup.drain()  # or the next measurement, which may be one without experience, would have it in the background

    def mean(key: str) -> float:
        return sum(episode[key] for episode in played) / len(played)

    guided = [episode for episode in played if episode["guided"]]
    worst = max((episode["seconds_guide"] for episode in guided), default=0.0)
    return {
        "all": seconds,
        "seconds": [episode["seconds"] for episode in played],
        "guide": sum(episode["seconds_guide"] for episode in guided) / max(1, len(guided)),
        "guide_longest": worst,
        "report": mean("seconds_report"),
        "generate": mean("seconds_generate"),
        "tokens": mean("tokens_generated"),
        "guided": len(guided),
        "parts": {key.removeprefix("seconds_"): mean(key) for key in played[0] if key.startswith("seconds_")},
        "cpu": sum(used.values()) / episodes,
        "cpu_of": {name: value / episodes for name, value in used.items() if value > 0.05},
        "waiting": (waiting, left),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[128, 256, 512, 1024], help="concurrent episodes")
    parser.add_argument(
        "--pairs", type=int, default=1, help="measurements of each size, without and with both (default: 1)"
    )
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--per-token", type=float, default=0.025, help="seconds per token, unloaded (default: 0.025)")
    parser.add_argument("--output", type=Path, default=ROOT / "outputs/scale", help="folder of all files")
    parser.add_argument(
        "--profile", action="store_true", help="print processor time by kind of process, and seconds by part"
    )
    options = parser.parse_args()
    output: Path = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    set_environment(output)
    os.environ["VERL_PLATFORM"] = "cpu"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # of Ray's workers
    prepare_environment()
    import ray

    from benchmarks.overhead import make_bank, overrides

    asyncio.run(make_bank(output / "bank"))
    shared = [
        *overrides(output, 6),
        "comprl.max_turn_tokens=256",
        "data.max_prompt_length=256",
        "data.max_response_length=2048",
        "actor_rollout_ref.rollout.max_model_len=2304",
        "extractor.rollout.prompt_length=2048",
        "extractor.rollout.max_model_len=2304",
        f"comprl.initial_bank={output / 'bank'}",
        "comprl.extractor.distillation_workers=64",
        "comprl.bank.capacity=1000000",  # never full, where an entry more has to remove another one
        "comprl.record.enabled=false",  # no trainer receives records here; they cost the same with and without
    ]
    runs = [Run("without", (*shared, "arm=baseline")), Run("with", tuple(shared))]
    configs = [run.config for run in check(runs, compose(runs, ROOT / "recipes", "miniature/plain"))]
    ray.init(num_cpus=16, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    try:
        setups = [Setup(config, options.workers) for config in configs]
        print(
            "| episodes | without, s per episode | with | ratio (95 %) | all, ratio | guide, ms (longest) | report, ms "
            "| host CPU per episode, s: without | with | queue before, after |\n|" + "---|" * 10,
            flush=True,
        )
        for episodes in options.episodes:
            found: list[list[dict[str, Any]]] = [[] for _ in ARMS]
            for pair in range(options.pairs):
                for arm in (number % len(ARMS) for number in range(pair, pair + len(ARMS))):
                    setup = setups[min(arm, 1)]
                    found[arm].append(measure(setup, episodes, pair, options, drain=ARMS[arm] == "with, queue empty"))
            for measured in found[1:]:
                print(row(episodes, found[0], measured), flush=True)
            for arm, measured in zip(ARMS, found, strict=True) if options.profile else ():
                print(f"  {arm}: {[(one['cpu_of'], one['parts']) for one in measured]}", flush=True)
        print(f"target: ratio at most {TARGET} at 1,024 episodes with an empty queue")
    finally:
        ray.shutdown()


def row(episodes: int, without: list[dict[str, Any]], with_experience: list[dict[str, Any]]) -> str:
    """Return a row of the table."""

    def mean(found: list[dict[str, Any]], key: str) -> float:
        return sum(one[key] for one in found) / len(found)

    tokens = {round(one["tokens"], 6) for one in (*without, *with_experience)}
    assert len(tokens) <= len(without), f"the arms have not generated equally many tokens: {tokens}"
    # A mean for each batch: its episodes share the load of the machine, so that only batches are independent.
    base, ours = ([statistics.fmean(one["seconds"]) for one in found] for found in (without, with_experience))
    before, after = (
        statistics.fmean(waiting) for waiting in zip(*(one["waiting"] for one in with_experience), strict=True)
    )
    cells = [f"{episodes:,}", f"{statistics.fmean(base):.2f}", f"{statistics.fmean(ours):.2f}"]
    # Each episode generates as many tokens in both.
    cells += [show(geometric_ratio(ours, base)) if len(base) > 1 else f"{ours[0] / base[0]:.3f}"]
    cells += [f"{mean(with_experience, 'all') / mean(without, 'all'):.4f}"]
    cells += [f"{1000 * mean(with_experience, 'guide'):.0f} ({1000 * mean(with_experience, 'guide_longest'):.0f})"]
    cells += [f"{1000 * mean(with_experience, 'report'):.0f}"]
    cells += [f"{mean(without, 'cpu'):.3f}", f"{mean(with_experience, 'cpu'):.3f}", f"{before:.0f}, {after:.0f}"]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
