"""Training run with measurements after every step: ``python probed_run.py PROBE_FILE override …``, see ``probes``."""

import sys
from pathlib import Path

from probes import probe_after_steps

from verl_comprl import train


def main() -> int:
    from verl_comprl.trainer.trainer import ComplementaryTrainerMixin

    probe_after_steps(ComplementaryTrainerMixin, Path(sys.argv[1]))
    return train.main(sys.argv[2:])


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
