#!/usr/bin/env bash
# Make a recipe's tasks (once) and train on them: run.sh RECIPE [SETTING] [key=value …]
#
#   bash recipes/run.sh mix3          the paper's setting (16 GPUs)
#   bash recipes/run.sh mix3 cpu      small models, two CPU cores, a few steps
#   bash recipes/run.sh minihack_small cpu    the complete method on two CPU cores, in minutes
#   bash recipes/run.sh smollm2 cpu   a real instruct model on two CPU cores (make smollm2 installs it first)
#   bash recipes/run.sh mix3 paper shared/extractor=30b     the paper's setting with a larger extractor
#   bash recipes/run.sh mix3 paper shared/gpus=1x8          the paper's setting on 8 GPUs; see docs/gpus.md for others
#
# COMPRL_RECIPES is the folder of data and runs (default: outputs/recipes), where each choice of an arm, a layout and so on
# has a run of its own; models that it makes are in outputs/models. The tasks are listed in the recipe's tasks.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

recipe="${1:-}"
if [ ! -f "recipes/$recipe/tasks.sh" ]; then
  echo "run.sh: no recipe '$recipe'; there are: $(cd recipes && printf '%s\n' */tasks.sh | xargs -n1 dirname | xargs)" >&2
  exit 2
fi
setting="${2:-paper}"
if [[ "$setting" == *=* ]]; then setting=paper; else set -- "$recipe" "${@:3}"; fi
if [ ! -f "recipes/$recipe/$setting.yaml" ]; then
  echo "run.sh: no setting '$setting' of $recipe; there are: $(cd "recipes/$recipe" && basename -s .yaml -a -- *.yaml | xargs)" >&2
  exit 2
fi
overrides=("${@:2}")

# choices: what the run differs in from the recipe alone, for the name of its folder.
choices() {
  local override
  for override in "${overrides[@]}"; do
    case "$override" in arm=* | shared/*=*) printf %s "-${override#*=}" ;; esac
  done
}

root="${COMPRL_RECIPES:-$PWD/outputs/recipes}"
data="$setting"
[ "${COMPRL_STAND_INS:-}" != 1 ] || data="$setting-stand-ins"
export COMPRL_TASKS="$root/tasks-$data"
COMPRL_RUN="$root/$recipe-$data$(choices)"
export COMPRL_RUN

# The CPU setting of a paper's recipe is a smoke test: it needs few tasks, and short ones.
smoke=
[ "$setting" != cpu ] || [ ! -f "recipes/$recipe/paper.yaml" ] || smoke=1

# task NAME TRAIN VAL …: makes the rows of a task with `comprl data …`; TRAIN and VAL are numbers of rows, or all.
# They are made once; recipes share them, so they are made again where another recipe has left other rows.
task() {
  local name=$1 train=$2 val=$3
  shift 3
  [ -z "$smoke" ] || set -- "$@" --max-turns 4
  [ -z "$smoke" ] || train=24 val=2
  for split in "train:$train" "val:$val"; do
    local file="$COMPRL_TASKS/$name-${split%:*}.parquet" wanted=("$@" --split "${split%:*}")
    [ "${split#*:}" = all ] || wanted+=(--count "${split#*:}")
    if [ ! -f "$file" ] || [ "$(cat "$file.args" 2>&1)" != "${wanted[*]}" ]; then
      rm -f "$file.args"
      comprl data "${wanted[@]}" --output "$file"
      printf '%s\n' "${wanted[*]}" >"$file.args"
    fi
  done
}

# needs VARIABLE COMMAND: the paper's setting wants a benchmark's own data; COMPRL_STAND_INS=1 takes what comes with us.
needs() {
  [ -z "$smoke" ] && [ "${COMPRL_STAND_INS:-}" != 1 ] || return 0
  local place="${!1:-}"
  [ -n "$place" ] || { [ "$1" = ALFWORLD_DATA ] && place="$HOME/.cache/alfworld/json_2.1.1"; } || true
  [ -n "$place" ] && [ -e "$place" ] && return
  printf 'run.sh: %s needs its data: %s\nCOMPRL_STAND_INS=1 trains on stand-ins, under names of their own.\n' "$recipe" "$2" >&2
  exit 2
}

# Models for the CPU are made here, once; a recipe that has none of its own takes small ones.
models=
[ "$setting" = paper ] || models=minihack_small
[[ -z "$models" || "$recipe" != mix* ]] || models=mix_models
[ ! -f "recipes/$recipe/prepare.py" ] || models=$recipe
if [ -n "$models" ]; then
  export COMPRL_MODELS="$PWD/outputs/models/$models"
  export HF_HUB_OFFLINE=1  # nothing is downloaded
  python -m "recipes.$models.prepare" --output "$COMPRL_MODELS"
fi
source "recipes/$recipe/tasks.sh"
exec python -m verl_comprl.train --config-dir recipes --config-name "$recipe/$setting" "${overrides[@]}"
