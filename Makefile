# One intent a line; `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
IS_SUPPORTED = -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
# A command of this name may exist and not run, as the shims of pyenv: so each is tried.
PYTHON ?= $(or $(shell for name in python3.11 python3.12 python3.13; do $$name $(IS_SUPPORTED) 2>/dev/null && echo $$name && break; done),python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
CORES ?= all
OF_BENCH = LEVER_PIPE_NUMERICS=fastest VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_LOGGING_LEVEL=ERROR
SAMPLED = $(if $(SAMPLE),--sample)
export PATH := $(CURDIR)/$(BIN):$(PATH)
export OMP_NUM_THREADS ?= 1
# Some containers switch bytecode off; every job would then compile what it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup docs reproduce smoke grid test test-all test-vllm test-emulated test-failures test-slurm check check-types check-rest format schema world rehearsal rehearsal-3b gpu bench bench-run bench-statistics real-parts size findings grid-page picture lock

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## make the virtual environment from the lock file

# Of the libraries' modules one in four is ever imported: each is compiled then, and kept. The lock names all that is
# needed, so nothing is resolved and two can install at a time; but for CUDA's libraries, without which PyPI's torch for
# Linux cannot be imported.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) $(IS_SUPPORTED) || { echo "Expected Python 3.11, 3.12 or 3.13; found $$($(PYTHON) --version 2>&1 | head -n 1). Install one, or call: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	sed '/^#/d' requirements.lock | xargs -P 2 -n 34 $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.lock)"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

reproduce: setup ## run both the set-up and the whole default experiment; the report is results/report.html
	$(BIN)/snakemake --cores $(CORES)

smoke: setup ## the whole workflow at toy size, about a minute
	$(BIN)/snakemake --cores $(CORES) --configfile config/smoke.yaml

grid: setup ## the grid of selectors, samplers and data sets; the page is results/grid/report.html
	$(BIN)/snakemake --cores $(CORES) --configfile config/grid.yaml

test: setup ## set-up and all tests that need neither GPU nor SLURM
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not gpu and not slurm and not failures and not emulated and not vllm"

test-all: check test test-vllm test-emulated test-failures test-slurm ## all checks of this machine, half an hour

test-vllm: ## answers of vLLM and of servers, in an environment of their own (3 GB)
	tests/vllm/environment.sh .venv-vllm
	VLLM_CPU_KVCACHE_SPACE=1 .venv-vllm/bin/pytest -m vllm tests/vllm

test-emulated: setup ## answers and training curves by other instructions and under emulated CPUs (Debian's qemu-user; installs it as root)
	PYTEST_ADDOPTS=$(SAMPLED) tests/emulated/run.sh Haswell EPYC

test-failures: setup ## jobs and runs killed at random moments, then the bytes compared
	$(BIN)/pytest -s -m failures $(SAMPLED) tests/failures tests/unit/failures

test-slurm: setup ## the workflow on a SLURM cluster of this machine (Debian; installs its packages as root)
	SLB_ACCOUNTING=1 tests/slurm/loopback.sh install
	tests/slurm/loopback.sh within $(BIN)/pytest -n 2 --dist worksteal -m slurm $(SAMPLED) tests/slurm

check: check-types check-rest ## formatting, lint, types, schema drift, workflow lint

check-types: setup
	$(BIN)/mypy

check-rest: setup
	$(BIN)/pip check --quiet
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/lever-pipe schema | diff -U 1 workflow/schemas/config.schema.json -
	$(BIN)/snakemake --lint

format: setup ## rewrite the sources in the house format
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

schema: setup ## write workflow/schemas/config.schema.json from the config models
	$(BIN)/lever-pipe schema > workflow/schemas/config.schema.json

docs: .venv-docs/complete ## the documentation as a site, with its links checked; the first page is site/index.html
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.venv-docs/complete: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check "$$(grep -o 'mkdocs-material==[^"]*' $<)"
	@touch $@

world: setup ## train the embedded world's models again (two readers and a CLIP, about 15 minutes on one core)
	$(BIN)/python -m tools.make_world --out resources/world --seed 0

rehearsal: setup real-parts ## study lever whole on Qwen2.5-VL's real parts and random weights; OKVQA=FOLDER for its questions
	$(BIN)/python -m benchmarks.rehearsal $(if $(OKVQA),--okvqa $(OKVQA))

rehearsal-3b: setup real-parts ## two prompts at the full size of Qwen2.5-VL-3B (8 GB of disk, 12 GB of memory, minutes)
	$(BIN)/python -m benchmarks.rehearsal --3b $(if $(OKVQA),--okvqa $(OKVQA))

gpu: setup ## tests that need a CUDA device
	$(BIN)/pytest -m gpu tests/gpu

bench: setup ## packed engine against plain answering, hf and vLLM, in turns; writes docs/benchmarks.md
	$(OF_BENCH) $(if $(wildcard .venv-vllm/complete),.venv-vllm/bin,$(BIN))/python -m benchmarks.answering

bench-run: setup ## whole commands on a fresh clone; writes docs/timings.md
	$(BIN)/python -m benchmarks.timings

bench-statistics: setup ## how often tests reject true nulls, simulated; writes its table into docs/report.md
	$(BIN)/python -m benchmarks.statistics

real-parts: setup ## real tokenizers, templates, images and a small model into a cache outside git, for tests
	$(BIN)/python -m benchmarks.real_parts

size: setup ## how much there is to read, by room
	$(BIN)/python -m benchmarks.size

findings: setup ## the pages of findings from a finished run of config/findings.yaml
	$(BIN)/python -m benchmarks.findings

grid-page: setup ## docs/grid.md from a finished `make grid`
	$(BIN)/python -m benchmarks.grid

picture: setup ## the README's picture, from the default run's report (Debian's chromium)
	$(BIN)/python -m benchmarks.picture results

lock: setup ## pin what is installed now, there and in the conda environments
	{ echo "# Exact versions of everything that runs, tests and checks this project; made by: make lock"; \
	  $(BIN)/pip freeze --all --exclude pip --exclude lever-pipe | sed -E 's/^(torch==[0-9.]+)\+.*/\1/'; } > requirements.lock.tmp
	mv requirements.lock.tmp requirements.lock
	grep == requirements.lock | while IFS== read -r name _ version; do sed -i "s/^      - $$name==.*/      - $$name==$$version/" envs/*.yaml; done
