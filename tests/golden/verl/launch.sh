#!/usr/bin/env bash
# Trains arm baseline, seed 0, with the original trainer. README.txt says what must be in place.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
: "${USERRL_HOME:?must name a checkout of UserRL whose environment is active}"
: "${OPENAI_API_KEY:?must hold the key of the server that plays the user}"
model=models/Qwen3-8B
model=$(realpath -m -- "${MODEL_FOLDER:-$model}")
home=$(realpath -m -- "$USERRL_HOME")
train=$(realpath -m -- "${TRAIN_FILE:-$home/data/intention_multiturn/train.parquet}")
validation=$(realpath -m -- "${VALIDATION_FILE:-$home/data/intention_multiturn/test.parquet}")
tools=$(realpath -m -- "${TOOL_CONFIG:-$here/tool_config.yaml}")
run=$(realpath -m -- "${VERL_LOGS:-logs/verl}")/baseline/seed-0
checkpoints=$(realpath -m -- "${CHECKPOINTS:-$run/checkpoints}")
settings=$home/examples/sglang_multiturn/config

for needed in "$model" "$train" "$validation" "$tools" "$settings/grpo_multiturn.yaml"; do
    if [ ! -e "$needed" ]; then
        echo "launch.sh: expected $needed; found none. See README.txt." >&2
        exit 2
    fi
done
if ! (cd -- "$home" && python3 -c 'import tensorboard, verl'); then
    echo "launch.sh: expected packages verl and tensorboard; activate UserRL's environment." >&2
    exit 2
fi

mapfile -t overrides < <(grep -v '^#' "$here/overrides.txt")
set_path() { # adds a path as a quoted Hydra value
    case $2 in
        *[\'\"\\$]* | *$'\n'*)
            echo "launch.sh: expected a path without quotes, \\, \$ and line breaks; found: $2" >&2
            exit 2
            ;;
    esac
    overrides+=("$1='$2'")
}
set_path actor_rollout_ref.model.path "$model"
set_path data.train_files "$train"
set_path data.val_files "$validation"
set_path actor_rollout_ref.rollout.multi_turn.tool_config_path "$tools"
set_path trainer.default_local_dir "$checkpoints"

mkdir -p -- "$run"
if [ -z "${OPENAI_BASE_URL:-}" ]; then
    for _ in {1..360}; do # an hour
        [ -s "$run/simulator.url" ] && break
        sleep 10
    done
    OPENAI_BASE_URL=$(cat -- "$run/simulator.url")
fi
export OPENAI_BASE_URL MULTITURN_MODEL_NAME=Qwen3-32B
export TENSORBOARD_DIR=$run/tensorboard PYTHONUNBUFFERED=1 RAY_DEDUP_LOGS=0

# A log that was cut off must not swallow the first line of its continuation.
if [ -s "$run/console.log" ] && [ -n "$(tail -c 1 -- "$run/console.log")" ]; then
    echo >> "$run/console.log"
fi
cd -- "$home"
python3 -m verl.trainer.main_ppo --config-path="$settings" --config-name=grpo_multiturn "${overrides[@]}" 2>&1 |
    tee -a -- "$run/console.log"
