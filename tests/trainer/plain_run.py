"""A training run of verl's own synchronous trainer, without our layer: ``python plain_run.py _ override …``.

What the launcher asks of a trainer beside verl's own methods does nothing here.
"""

import sys
from typing import Any

from verl_comprl import train


def main() -> int:
    from omegaconf import open_dict
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    import verl_comprl.trainer.layer  # noqa: F401  the name that is taken over is registered there

    class Plain(PPOTrainerSync):
        def __init__(self, config: Any) -> None:
            with open_dict(config):
                config.trainer.v1.trainer_mode = "sync"
            super().__init__(config)

        def request_stop(self) -> None: ...

        def close(self) -> None: ...

    trainer_base.TRAINER_REGISTRY["comprl_sync"] = Plain
    return train.main(sys.argv[2:])


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
