"""Entry point: ``torchrun --nnodes N --nproc-per-node 1 … -m verl_comprl.launch key=value …``."""

import os
import sys
from collections.abc import Sequence

from verl_comprl.requirements import missing_is_one_line

with missing_is_one_line(__name__):
    from verl_comprl.config.reading import unknown_overrides
    from verl_comprl.errors import INTERRUPTED
    from verl_comprl.launch.head import lead
    from verl_comprl.launch.limits import LOST, LaunchError, leave_seconds
    from verl_comprl.launch.member import follow
    from verl_comprl.launch.node import ray_options
    from verl_comprl.launch.store import RunStore

_TRAIN = ("-m", "verl_comprl.train")


def main(arguments: Sequence[str], command: Sequence[str] = _TRAIN) -> int:
    """Do this node's part of the run and return the training's exit code, the same on all nodes.

    With torchrun's ``--max-restarts`` that of a run that was stopped is 0: torchrun starts it again otherwise.

    Args:
        arguments: Hydra overrides of the training.
        command: Arguments of Python that start it.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return 0  # one Ray per node
    if mistakes := unknown_overrides(arguments):
        print("\n".join(f"error: {mistake}" for mistake in mistakes))
        return 2
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1 and os.environ.get("OMP_NUM_THREADS") == "1":
        print("launch: torchrun set OMP_NUM_THREADS=1, for the workers too; use --nproc-per-node 1", file=sys.stderr)
    try:
        leave_seconds()  # at the end of a run it would be late to find out that this is no number
        ray_options(os.environ)  # on every node, before any of them waits for the others
        store = RunStore(os.environ)
    except ValueError as error:
        print(f"launch: {error}", file=sys.stderr)
        return 2
    except LaunchError as error:
        print(f"launch: {error}", file=sys.stderr)
        return LOST
    code = lead(store, [*command, *arguments]) if store.rank == 0 else follow(store)
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS") or 0)
    return 0 if code == INTERRUPTED and restarts else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
