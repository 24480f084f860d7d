"""Several runs in one process: ``python lent_run.py SPECIFICATION RESULTS``.

Engines and servers are the same for every run and take nearly all of the time that a run needs to start. So the first
run starts them and lends them to the others. Everything else is each run's own and made as the launcher makes it: the
configuration, composed from a user's overrides, the trainer, the manager with its bank, the agent loop workers.

The specification is JSON: ``common`` overrides and a list of ``runs``, each with ``name``, ``overrides`` and perhaps
``config`` (the recipe), ``plain`` (verl's own trainer instead of ours), ``keep`` (a folder that the actor is saved to
before it is trained), ``take`` (such a folder to start from), ``probe`` (a file, see ``probes``) or ``evaluate`` (a
checkpoint for ``comprl evaluate``, and nothing else). A line per step goes to RESULTS.
"""

import argparse
import json
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from probes import probe_after_steps, probe_engines

from verl_comprl import train
from verl_comprl.cli import evaluate

ROOT = Path(__file__).parents[2]
OWN = ("_init_tokenizer", "_init_dataloader", "_init_dump_executor")


def lend_engines() -> None:
    """Let every trainer after the first have the first one's workers, and the same for the extractor."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    from verl_comprl.trainer import experience_runtime

    set_up, runtime = PPOTrainer._setup, experience_runtime.ExtractorRuntime
    lent: dict[str, Any] = {}
    extractors: list[Any] = []

    def setup(self: Any) -> None:
        if lent:
            for name in OWN:
                getattr(self, name)()
            vars(self).update({name: value for name, value in lent.items() if name not in vars(self)})
            self._load_checkpoint()
        else:
            set_up(self)
            lent.update(vars(self))

    def extractor(config: Any) -> Any:
        if not extractors:
            extractors.append(runtime(config))
        return extractors[0]

    PPOTrainer._setup = setup
    experience_runtime.ExtractorRuntime = extractor  # pyright: ignore[reportAttributeAccessIssue]


def plain_trainer() -> type:
    """Return verl's own synchronous trainer, with nothing in the places of what the launcher asks of ours."""
    from omegaconf import open_dict
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    class Plain(PPOTrainerSync):
        def __init__(self, config: Any) -> None:
            with open_dict(config):
                config.trainer.v1.trainer_mode = "sync"
            super().__init__(config)

        def close(self) -> None: ...

    return Plain


def agent_loops(config: Any, trainer: Any) -> Any:
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ

    return AgentLoopManagerTQ.create(
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )


class Runs:
    """One run after the other."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.lender: Any = None
        self._background = ThreadPoolExecutor(1)
        self._next: Future[Any] | None = None

    def train(self, run: dict[str, Any], config: Any, following: Any = None) -> None:
        import ray
        from omegaconf import OmegaConf
        from verl.trainer.ppo.v1 import get_trainer_cls

        from verl_comprl.config.saved import save_config
        from verl_comprl.config.validation import validate

        validate(config)
        save_config(config, Path(config.trainer.default_local_dir))
        OmegaConf.resolve(config)
        ours = get_trainer_cls(config.trainer.v1.trainer_mode)
        trainer: Any = (plain_trainer() if run.get("plain") else ours)(config=config)
        trainer.progress = self._recorder(run["name"])
        loops, self._next = self._next or self._agent_loops(config), None
        trainer.init()
        self.lender = self.lender or trainer
        loops = loops.result() if loops else agent_loops(config, trainer)
        if following is not None:
            self._next = self._agent_loops(following)  # importing everything, it is ready when this run is over
        if "take" in run:
            trainer.actor_rollout_wg.load_checkpoint(local_path=run["take"])
        if "keep" in run:
            trainer.actor_rollout_wg.save_checkpoint(local_path=run["keep"], global_step=0)
        if "probe" in run:
            probe_engines(trainer, Path(run["probe"]).with_suffix(".start"))
            probe_after_steps(trainer, Path(run["probe"]))
        trainer.fit(loops)
        trainer.close()
        for worker in loops.agent_loop_workers:
            ray.kill(worker)
        if hasattr(getattr(trainer, "experience_runtime", None), "manager"):
            ray.kill(trainer.experience_runtime.manager)

    def _agent_loops(self, config: Any) -> Future[Any] | None:
        """Start a run's workers in the background, if the clients that they need are there already."""
        return self._background.submit(agent_loops, config, self.lender) if self.lender else None

    def evaluate(self, run: dict[str, Any]) -> None:
        parser = argparse.ArgumentParser()
        evaluate.add_parser(parser.add_subparsers())
        output = str(self.results.with_name("result.json"))
        options = parser.parse_args(
            ["evaluate", "--greedy", "--checkpoint", run["evaluate"], "--output", output, *run["overrides"]]
        )

        def lent(config: Any) -> int:
            config.transfer_queue.enable = True
            self.train({"name": run["name"]}, config)
            return 0

        train.run, start = lent, train.run
        try:
            assert evaluate.run(options) == 0
        finally:
            train.run = start

    def _recorder(self, name: str) -> Any:
        from verl_comprl.display.progress import Progress

        results = self.results

        class Recorder(Progress):
            def step(self, step: int, total: int, metrics: Any) -> None:
                numbers = {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"run": name, "step": step} | numbers) + "\n")

        return Recorder()


def main() -> None:
    import ray
    import transfer_queue as tq
    from hydra import compose, initialize_config_dir

    from verl_comprl import plugin

    specification = json.loads(Path(sys.argv[1]).read_text())
    plugin.verify()
    lend_engines()
    configs: list[Any] = []
    with initialize_config_dir(str(ROOT / "recipes"), version_base=None):
        search = "hydra.searchpath=[pkg://verl.trainer.config,pkg://verl_comprl.config]"
        for run in specification["runs"]:
            overrides = [search, *specification["common"], *run["overrides"]]
            recipe = run.get("config", "quickstart_cpu/quickstart")
            configs.append(None if "evaluate" in run else compose(recipe, overrides=overrides))
    for config in filter(None, configs):
        config.transfer_queue.enable = True
        train.complete_config(config)
    train._start_ray(configs[0])
    tq.init(configs[0].transfer_queue)
    runs = Runs(Path(sys.argv[2]))
    try:
        for run, config, following in zip(specification["runs"], configs, [*configs[1:], None], strict=True):
            if config is None:
                runs.evaluate(run)
            else:
                runs.train(run, config, following)
    finally:
        tq.close()
        ray.shutdown()


if __name__ == "__main__":
    train.prepare_environment()
    main()
