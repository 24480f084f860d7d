#!/usr/bin/env bash
# A training run on the nodes of a SLURM job: sbatch --nodes 4 --gpus-per-node 8 recipes/cluster/slurm.sh key=value …
#
# Submit it from the environment that all nodes have (its torchrun is in PATH); data, models and trainer.default_local_dir
# have to be on a file system that all nodes share. 15 minutes before the time limit the training is told to write a
# checkpoint and end; another job with the same settings continues from it. The same earlier: scancel --batch --signal=TERM JOB.
#SBATCH --job-name=comprl
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=B:TERM@900
#SBATCH --output=comprl-%j.log
set -euo pipefail

# Not through a pipe to head: scontrol may still be writing when head has read its line, and would fail.
read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

# The signal comes to this script (B:) and goes to the training itself. Passed through torchrun it would begin a time limit
# for the last step and the checkpoint: 30 s in torch 2.11, which has no setting for it.
stop() {
  local told
  # On every node: with c10d torchrun sorts the nodes by name as texts (gpu10 before gpu9), so that the one with the
  # training need not be the first of the job. The brackets keep the pattern from matching this command.
  if ! told=$(srun --overlap --nodes "$SLURM_NNODES" --ntasks-per-node=1 sh -c \
    'pkill -TERM -f -- "-m verl_comprl[.]train" && echo "slurm.sh: the training on $(hostname) was told to stop" || true'); then
    echo "slurm.sh: the training could not be told to stop" >&2
  elif [ -n "$told" ]; then
    echo "$told"
  else # not yet, or no longer: there is nothing that a torchrun told to stop could lose
    echo "slurm.sh: no node has the training; the job ends without it" >&2
    kill "$run" 2>/dev/null || true
  fi
}
trap stop TERM

# Without binding, as otherwise Ray would find one core; the port differs between jobs, which may share a node.
srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 torchrun \
  --nnodes "$SLURM_NNODES" --nproc-per-node 1 \
  --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:$((20000 + SLURM_JOB_ID % 10000))" \
  -m verl_comprl.launch "$@" &
run=$!

# The trap ends a wait; the last one, of a run that has ended, gives the run's code.
while kill -0 "$run" 2>/dev/null; do
  wait "$run" || true
done
wait "$run"
