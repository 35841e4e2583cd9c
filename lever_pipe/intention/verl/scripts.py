"""Templates of the scripts that run the original trainer, by file name.

They stand here as text and not beside as files: a job's identity holds its code, and these are what it computes. A
value enters a script through the filter `sh`, which quotes it for the shell; the trainer's own settings never pass
through a shell's grammar at all, because `launch.sh` reads them line by line from `overrides.txt`.
"""

from __future__ import annotations

LAUNCH = r"""#!/usr/bin/env bash
# Trains arm {{ arm }}, seed {{ seed }}, with the original trainer. README.txt says what must be in place.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
: "${USERRL_HOME:?must name a checkout of UserRL whose environment is active}"
: "${OPENAI_API_KEY:?must hold the key of the server that plays the user}"
model={{ model_folder | sh }}
model=$(realpath -m -- "${MODEL_FOLDER:-$model}")
home=$(realpath -m -- "$USERRL_HOME")
train=$(realpath -m -- "${TRAIN_FILE:-$home/data/intention_multiturn/train.parquet}")
validation=$(realpath -m -- "${VALIDATION_FILE:-$home/data/intention_multiturn/test.parquet}")
tools=$(realpath -m -- "${TOOL_CONFIG:-$here/tool_config.yaml}")
run=$(realpath -m -- "${VERL_LOGS:-logs/verl}")/{{ run_folder | sh }}
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
export OPENAI_BASE_URL MULTITURN_MODEL_NAME={{ user_model | sh }}
export TENSORBOARD_DIR=$run/tensorboard PYTHONUNBUFFERED=1 RAY_DEDUP_LOGS=0

# A log that was cut off must not swallow the first line of its continuation.
if [ -s "$run/console.log" ] && [ -n "$(tail -c 1 -- "$run/console.log")" ]; then
    echo >> "$run/console.log"
fi
cd -- "$home"
status=0
python3 -m verl.trainer.main_ppo --config-path="$settings" --config-name=grpo_multiturn "${overrides[@]}" 2>&1 |
    tee -a -- "$run/console.log" || status=$?
python3 "$here/export_scalars.py" "$run/tensorboard" "$run/scalars.csv" || true # the console log remains
exit "$status"
"""

LAUNCH_JOB = r"""#!/usr/bin/env bash
#SBATCH --job-name=verl-{{ arm }}-{{ seed }}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node={{ n_gpus }}
#SBATCH --cpus-per-task={{ 8 * n_gpus }}
#SBATCH --mem=240G
#SBATCH --time={{ hours }}:00:00
# The trainer. Partition and account: SBATCH_PARTITION and SBATCH_ACCOUNT in the environment.
set -euo pipefail

folder=${LAUNCH_FOLDER:-$SLURM_SUBMIT_DIR} # SLURM runs a copy of this file, so its own place says nothing
run=$(realpath -m -- "${VERL_LOGS:-logs/verl}")/{{ run_folder | sh }}
trap 'rm -f -- "$run/simulator.url"' EXIT # the simulated user's job ends when this file is gone
bash "$folder/launch.sh"
"""

SIMULATOR_JOB = r"""#!/usr/bin/env bash
#SBATCH --job-name=user-{{ arm }}-{{ seed }}
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=16
#SBATCH --mem=160G
#SBATCH --time={{ hours }}:00:00
# The simulated user: an OpenAI-compatible server that writes its address to a file and ends when that file is gone.
set -euo pipefail

: "${SIMULATOR_MODEL:?must name a folder or model that vLLM serves}"
: "${OPENAI_API_KEY:?must hold any long random text; it becomes the key of the server}"
run=$(realpath -m -- "${VERL_LOGS:-logs/verl}")/{{ run_folder | sh }}
address=$run/simulator.url
mkdir -p -- "$run"
rm -f -- "$address"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')

# The key goes through the environment: a command line is visible to all users of a node.
VLLM_API_KEY=$OPENAI_API_KEY vllm serve "$SIMULATOR_MODEL" --served-model-name {{ user_model | sh }} \
    --host 0.0.0.0 --port "$port" --tensor-parallel-size "${SLURM_GPUS_ON_NODE:-2}" --max-model-len 24576 &
server=$!
trap 'rm -f -- "$address"; kill "$server" 2> /dev/null || true' EXIT
until curl --silent --fail --output /dev/null "http://127.0.0.1:$port/health"; do
    if ! kill -0 "$server" 2> /dev/null; then
        echo "simulator.sbatch: expected a server; found that it has ended. Its messages stand above." >&2
        exit 1
    fi
    sleep 5
done
printf 'http://%s:%s/v1\n' "$(hostname)" "$port" > "$address.part"
mv -- "$address.part" "$address"
while kill -0 "$server" 2> /dev/null && [ -e "$address" ]; do
    sleep 10
done
"""

SUBMIT = r"""#!/usr/bin/env bash
# Submits the simulated user and, to start after it, the trainer. With OPENAI_BASE_URL set: the trainer alone.
set -euo pipefail

LAUNCH_FOLDER=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
VERL_LOGS=$(realpath -m -- "${VERL_LOGS:-logs/verl}")
export LAUNCH_FOLDER VERL_LOGS
run=$VERL_LOGS/{{ run_folder | sh }}
mkdir -p -- "$run"
rm -f -- "$run/simulator.url"
after=()
if [ -z "${OPENAI_BASE_URL:-}" ]; then
    user=$(sbatch --parsable --output="$run/simulator-%j.log" "$LAUNCH_FOLDER/simulator.sbatch")
    after=(--dependency="after:${user%%;*}")
fi
sbatch "${after[@]}" --output="$run/slurm-%j.log" "$LAUNCH_FOLDER/launch.sbatch"
"""

EXPORT_SCALARS = r'''"""Write TensorBoard scalars as CSV: python3 export_scalars.py EVENTS_FOLDER scalars.csv"""

import csv
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main(folder: str, target: str) -> None:
    events = EventAccumulator(folder, size_guidance={"scalars": 0})  # 0: all of them
    events.Reload()
    with Path(target).open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["step", "key", "value"])
        for key in sorted(events.Tags()["scalars"]):
            # Scalars are stored as float32, which holds seven digits.
            writer.writerows([event.step, key, f"{event.value:.7g}"] for event in events.Scalars(key))


main(*sys.argv[1:])
'''

TOOL_CONFIG = r"""# The environment's one tool, in our words; the original's own wording: TOOL_CONFIG names its file.
tools:
  - class_name: verl.tools.interact_tool.InteractTool
    config: {}
    tool_schema:
      type: function
      function:
        name: interact_with_env
        description: Talk to the environment that the system message describes, one step a call.
        parameters:
          type: object
          properties:
            choice:
              type: string
              enum: [action, answer, search]
              description: Kind of the step. The system message says which kinds this environment knows.
            content:
              type: string
              description: What the step says, in the form that the system message asks for.
          required: [choice, content]
"""

README = r"""Launch files for the original trainer: arm {{ arm }}, seed {{ seed }}
Metric definitions: {{ version }}

These files were rendered from the configuration. Nobody has run them in this project: its tests render them, check
them and convert a recorded log, no more.

What must be in place
  USERRL_HOME       a checkout of UserRL, its environment active, with the package tensorboard in it
  MODEL_FOLDER      folder of the start model; else {{ model_folder }}
  OPENAI_API_KEY    any long random text for a server of your own, else the key of the one that you use
  SIMULATOR_MODEL   what vLLM serves as the user, under the name {{ user_model }}
                    (or OPENAI_BASE_URL, the address of a server that runs already: then no other one is started)
  TRAIN_FILE, VALIDATION_FILE   RL rows; else USERRL_HOME/data/intention_multiturn/{train,test}.parquet
  VERL_LOGS         the folder that intention.verl.logs names; else logs/verl
  CHECKPOINTS       room for two checkpoints of about 100 GB each at 8B; else a folder beside the log
  TOOL_CONFIG       another description of the tool; else tool_config.yaml in this folder

Then, from the folder of the repository
  bash FOLDER/submit.sh     FOLDER is this one: two SLURM jobs, the user on 2 GPUs and the trainer on {{ n_gpus }}
  bash FOLDER/launch.sh     or without SLURM, with a server that runs already
Call it again after an interruption: the trainer goes on from its last checkpoint and appends to the log.

Where the log must be for the report
  VERL_LOGS/{{ run_folder }}/console.log     is written there; a log from elsewhere is put there by hand
  VERL_LOGS/{{ run_folder }}/scalars.csv     the same numbers with seven digits; the console prints three decimals.
                    Copied over console.log it is read instead: the format is recognised by the content.
When every arm and seed has its log, call snakemake with this configuration and engine verl again.

What this run does otherwise than the configuration says
{% for line in differences %}
  * {{ line }}
{% endfor %}
  * The tool is described in our words, not in the original's (TOOL_CONFIG).
"""
