#!/usr/bin/env bash
# Complementary RL on a CPU from scratch: builds two small models and the tasks (once), then trains both models.
# Arguments are Hydra overrides, such as trainer.total_training_steps=60. COMPRL_QUICKSTART is the folder of all files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export COMPRL_QUICKSTART="${COMPRL_QUICKSTART:-$PWD/outputs/quickstart}"
export HF_HUB_OFFLINE=1  # nothing is downloaded
STEPS=30

python -m recipes.quickstart_cpu.prepare --output "$COMPRL_QUICKSTART/models"
for split in train:240 val:32; do
  file="$COMPRL_QUICKSTART/data/${split%:*}.parquet"
  [ -f "$file" ] || comprl data minihack --variant room-ultimate --split "${split%:*}" --count "${split#*:}" \
    --max-turns 8 --output "$file" >/dev/null
done
echo "Tasks: 240 for training and 32 for evaluation: find the staircase in a dark room of the game MiniHack, in 8 turns"

# An interrupted run is resumed; a finished one is renamed and a new one starts.
run="$COMPRL_QUICKSTART/run"
if [ "$(cat "$run/latest_checkpointed_iteration.txt" 2>/dev/null)" = "$STEPS" ]; then
  mv "$run" "$run-$(date +%Y%m%d-%H%M%S)"
fi
exec python -m verl_comprl.train --config-dir recipes --config-name quickstart_cpu/quickstart \
  trainer.total_training_steps="$STEPS" "$@"
