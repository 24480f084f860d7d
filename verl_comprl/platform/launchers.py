"""Environment variables that launchers (torchrun, SLURM, MPI) give to a process and that its children must not see.

verl's workers are started by Ray, which hands its own environment on to them: with torchrun's variables they would look
for a store that nobody hosts (``TORCHELASTIC_USE_AGENT_STORE``) or believe that they are another rank, and libraries
that find SLURM's or MPI's variables start as one of its tasks.
"""

from collections.abc import Mapping, MutableMapping

_PREFIXES = ("TORCHELASTIC_", "TORCH_NCCL_ASYNC_", "SLURM_", "PMI_", "OMPI_")
# Not as prefixes: LOCAL_SCRATCH, ROLE_ARN and the like are the user's.
_NAMES = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
}


_AMD, _NVIDIA = "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
"""SLURM may set both, whatever the devices are, and verl's workers refuse to start then."""


def strip_launcher_variables(environment: MutableMapping[str, str]) -> None:
    """Remove the launchers' variables from ``environment``."""
    for name in [name for name in environment if name in _NAMES or name.startswith(_PREFIXES)]:
        del environment[name]
    if environment.get(_NVIDIA):
        environment.pop(_AMD, None)


def node_count(environment: Mapping[str, str]) -> int:
    """Return on how many nodes torchrun has started this run; 1 without torchrun."""
    return int(environment.get("GROUP_WORLD_SIZE") or 1)
