#!/usr/bin/env bash
# Submits the simulated user and, to start after it, the trainer. With OPENAI_BASE_URL set: the trainer alone.
set -euo pipefail

LAUNCH_FOLDER=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
VERL_LOGS=$(realpath -m -- "${VERL_LOGS:-logs/verl}")
export LAUNCH_FOLDER VERL_LOGS
run=$VERL_LOGS/baseline/seed-0
mkdir -p -- "$run"
rm -f -- "$run/simulator.url"
after=()
if [ -z "${OPENAI_BASE_URL:-}" ]; then
    user=$(sbatch --parsable --output="$run/simulator-%j.log" "$LAUNCH_FOLDER/simulator.sbatch")
    after=(--dependency="after:${user%%;*}")
fi
sbatch "${after[@]}" --output="$run/slurm-%j.log" "$LAUNCH_FOLDER/launch.sbatch"
