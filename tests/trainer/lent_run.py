"""Two steps of several arms in one process: ``python arms_run.py SPECIFICATION RESULTS``.

Engines and servers are the same for every arm and take nearly all of the time that a run needs to start. So the first
arm starts them and lends them to the others. Everything else is each arm's own and made as the launcher makes it: the
configuration, composed from a user's overrides, the layer, the manager with its bank, the agent loop workers.

The specification is JSON: ``common`` overrides and those of each arm, in ``arms``. A line per step goes to RESULTS.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from verl_comprl import train

ROOT = Path(__file__).parents[2]
OWN = ("_init_tokenizer", "_init_dataloader", "_init_dump_executor")


def lend_engines() -> None:
    """Let every trainer after the first have the first one's workers, and the same for the extractor."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    from verl_comprl.trainer import complement

    set_up, runtime = PPOTrainer._setup, complement.ExtractorRuntime
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
    complement.ExtractorRuntime = extractor  # pyright: ignore[reportAttributeAccessIssue]


def agent_loops(config: Any, trainer: Any) -> Any:
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ

    return AgentLoopManagerTQ.create(
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )


def run_arm(name: str, config: Any, results: Path, lender: Any) -> Any:
    """Train one arm with the engines of ``lender``, if there is one yet; returns the trainer."""
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import get_trainer_cls

    from verl_comprl.config.validation import validate
    from verl_comprl.trainer.progress import Progress

    class Recorder(Progress):
        def step(self, step: int, total: int, metrics: Any) -> None:
            numbers = {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"arm": name, "step": step} | numbers) + "\n")

    validate(config)
    OmegaConf.resolve(config)
    trainer: Any = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
    trainer.progress = Recorder()
    if lender:  # its clients are known already: workers and manager can start at the same time
        with ThreadPoolExecutor(1) as background:
            starting = background.submit(agent_loops, config, lender)
            trainer.init()
            loops = starting.result()
    else:
        trainer.init()
        loops = agent_loops(config, trainer)
    trainer.fit(loops)
    trainer.close()
    ray.kill(trainer.complement.manager)
    for worker in loops.agent_loop_workers:
        ray.kill(worker)
    return trainer


def main() -> None:
    import ray
    import transfer_queue as tq
    from hydra import compose, initialize_config_dir
    from verl.utils.device import auto_set_device

    from verl_comprl import plugin

    specification = json.loads(Path(sys.argv[1]).read_text())
    plugin.verify()
    lend_engines()
    configs: dict[str, Any] = {}
    with initialize_config_dir(str(ROOT / "recipes"), version_base=None):
        search = "hydra.searchpath=[pkg://verl.trainer.config,pkg://verl_comprl.config]"
        for name, overrides in specification["arms"].items():
            configs[name] = compose("quickstart_cpu/quickstart", overrides=[search, *specification["common"], *overrides])
            configs[name].transfer_queue.enable = True
            auto_set_device(configs[name])
    first = next(iter(configs.values()))
    train._start_ray(first)
    tq.init(first.transfer_queue)
    lender = None
    try:
        for name, config in configs.items():
            lender = run_arm(name, config, Path(sys.argv[2]), lender)
    finally:
        tq.close()
        ray.shutdown()


if __name__ == "__main__":
    train.prepare_environment()
    main()
