"""Training run that records what is in TransferQueue at its checkpoints: ``python recorded_run.py FILE override …``."""

import sys
from pathlib import Path

from probes import record_groups

from verl_comprl import train


def main() -> int:
    from verl_comprl.trainer.trainer import ComplementaryTrainerMixin

    record_groups(ComplementaryTrainerMixin, Path(sys.argv[1]))
    return train.main(sys.argv[2:])


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
