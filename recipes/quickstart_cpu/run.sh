#!/usr/bin/env bash
# Complementary RL from nothing on a CPU: makes two tiny models and the tasks (once), then trains both models.
# Arguments are Hydra overrides, such as trainer.total_training_steps=60. COMPRL_QUICKSTART is where everything goes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export COMPRL_QUICKSTART="${COMPRL_QUICKSTART:-$PWD/outputs/quickstart}"
export VERL_PLATFORM=cpu
export VLLM_CPU_KVCACHE_SPACE=1          # GiB per server
export VLLM_CPU_OMP_THREADS_BIND=nobind  # two servers share the cores
export HF_HUB_OFFLINE=1
export TENSORBOARD_DIR="$COMPRL_QUICKSTART/run/tensorboard"
STEPS=30

python -m recipes.quickstart_cpu.prepare --output "$COMPRL_QUICKSTART/models"
for split in train:240 val:32; do
  file="$COMPRL_QUICKSTART/data/${split%:*}.parquet"
  [ -f "$file" ] || comprl data minihack --variant room-ultimate --split "${split%:*}" --count "${split#*:}" \
    --max-turns 8 --output "$file"
done

# An interrupted run goes on where it was; a finished one is kept and a new one begins.
run="$COMPRL_QUICKSTART/run"
if [ "$(cat "$run/latest_checkpointed_iteration.txt" 2>/dev/null)" = "$STEPS" ]; then
  mv "$run" "$run-$(date +%Y%m%d-%H%M%S)"
fi
exec python -m verl_comprl.train --config-dir recipes --config-name quickstart_cpu/quickstart \
  trainer.total_training_steps="$STEPS" "$@"
