"""Training run with measurements after every step: ``python probed_run.py PROBE_FILE override …``, see ``probes``.

The engines' log-probs before the first step, or after the checkpoint was loaded, are in a file that ends in ``.start``,
those of each checkpoint in one that ends in ``.saved``: no update is made while it is written.
"""

import sys
from pathlib import Path
from typing import Any

from probes import probe_after_steps, probe_engines

from verl_comprl import train


def main() -> int:
    from verl_comprl.trainer.trainer import ComplementaryTrainerMixin

    file, initialized = Path(sys.argv[1]), ComplementaryTrainerMixin.on_init_end

    def measured(self: Any) -> None:
        initialized(self)
        probe_engines(self, file.with_suffix(".start"))
        save = self.experience_runtime.save

        def saved(*arguments: Any) -> None:
            save(*arguments)
            probe_engines(self, file.with_suffix(".saved"))

        self.experience_runtime.save = saved

    ComplementaryTrainerMixin.on_init_end = measured
    probe_after_steps(ComplementaryTrainerMixin, file)
    return train.main(sys.argv[2:])


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
