#!/usr/bin/env bash
# Runs what must not depend on the machine under emulated CPUs: run.sh Haswell EPYC
# Answers of the LVLM in any company, also by other instructions of this machine's CPU, and the golden curves of all
# trainers. The bits must be the recorded ones on each CPU, of Intel (Haswell) and of AMD (EPYC).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
command -v qemu-x86_64 >/dev/null || { apt-get update -qq && apt-get install -y -qq qemu-user >/dev/null; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
.venv/bin/python -m pytest -p no:cacheprovider -m emulated tests/unit/lvlms/test_company.py >"$logs/here" 2>&1 &
jobs["$!"]=here
for cpu in "$@"; do
    # A child of the emulated process would run on this machine's own CPU.
    LEVER_PIPE_CPUINFO=$here/$cpu.cpuinfo OMP_NUM_THREADS=1 qemu-x86_64 -cpu "$cpu" .venv/bin/python -m pytest -p no:cacheprovider \
        tests/unit/lvlms/test_company.py tests/unit/lever/training/test_golden_curves.py -m "not emulated" -k "test_company or repeats" --durations=6 \
        >"$logs/$cpu" 2>&1 &
    jobs["$!"]=$cpu
done
status=0
for job in "${!jobs[@]}"; do
    wait "$job" || status=1
    echo "== ${jobs[$job]}"
    grep -v "TCG doesn't support requested feature" "$logs/${jobs[$job]}"
done
exit $status
