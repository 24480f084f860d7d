#!/usr/bin/env bash
# A training run on the nodes of a SLURM job: sbatch --nodes 4 --gpus-per-node 8 recipes/cluster/slurm.sh key=value …
#
# Submit it from the environment that all nodes have (its torchrun is in PATH); data, models and trainer.default_local_dir
# have to be on a file system that all nodes share. SIGTERM, here 15 minutes before the time limit, makes the run write a
# checkpoint; another job with the same settings goes on from it.
#SBATCH --job-name=comprl
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=TERM@900
#SBATCH --output=comprl-%j.log
set -euo pipefail

# Not through a pipe to head: scontrol may still be writing when head has read its line, and would fail.
read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# Time for the last step and the checkpoint after SIGTERM; torchrun's own default is 30 s.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-600}

# Without binding, as otherwise Ray would find one core; the port differs between jobs, which may share a node.
exec srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 torchrun \
  --nnodes "$SLURM_NNODES" --nproc-per-node 1 \
  --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:$((20000 + SLURM_JOB_ID % 10000))" \
  -m verl_comprl.launch "$@"
