"""Resource requests of the rules that load a model, by the size of the configured model.

The embedded worlds need a core, 2 GB and minutes. For a larger model (`models.is_large`), rules request the
resources of a production run on GPUs of 80 GB; for an agent, they depend on its parameters. Other rules use the
profile's `default-resources`. Resources never change a result: a profile or `--set-resources` may set any others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lever_pipe.base.errors import ConfigError
from lever_pipe.experiment.plans import models
from lever_pipe.experiment.studies import Experiment

SNAKEMAKE_MB = 300
"""Memory of the two Snakemake processes around a SLURM job's command."""
BYTES_OF_TRAINING = 16
"""Main memory per parameter at a checkpoint: float32 weights, the optimiser's two moments and a copy of the weights."""
BYTES_OF_PLAYING = 8

ResourceValues = dict[str, Any]


class ResourceRequest(NamedTuple):
    """Resources for the first attempt of a job."""

    mem_mb: int
    runtime: int  # minutes
    threads: int = 1
    gpus: int = 0


class LoadedModel(NamedTuple):
    """A model folder, the key of the configuration that names it, and the rules that load it."""

    key: str
    folder: str
    rules: tuple[str, ...]


class Resources(NamedTuple):
    """A rule's `threads` and `resources`; memory and time are functions of the attempt."""

    threads: int
    resources: ResourceValues


WORLD_MODEL = ResourceRequest(mem_mb=3000, runtime=60)
# Sizes are calculated, not measured: weights in bfloat16 (7.5 GB for 3 B parameters), keys and values of
# `lvlm.kv_tokens`, decoded images, embeddings of 15,000 examples. Times are generous, because a job that ends early
# releases its resources.
PRODUCTION_MODEL: Mapping[str, ResourceRequest] = {
    "embed_examples": ResourceRequest(mem_mb=32_000, runtime=120, threads=8, gpus=1),
    "generate_rl_data": ResourceRequest(mem_mb=64_000, runtime=720, threads=8, gpus=1),
    "search_beams": ResourceRequest(mem_mb=64_000, runtime=720, threads=8, gpus=1),
    "train_on_policy_epoch": ResourceRequest(mem_mb=64_000, runtime=720, threads=8, gpus=1),
    "answer_prompts": ResourceRequest(mem_mb=64_000, runtime=1440, threads=8, gpus=1),
    "answer_controls": ResourceRequest(mem_mb=64_000, runtime=720, threads=8, gpus=1),
    # Agents of 8 B parameters, as Qwen3-8B; `_of_agent` sizes others.
    "train_agent": ResourceRequest(mem_mb=160_000, runtime=1800, threads=8, gpus=1),
    "warm_start_agent": ResourceRequest(mem_mb=240_000, runtime=480, threads=8, gpus=1),
    "evaluate_agent": ResourceRequest(mem_mb=80_000, runtime=480, threads=8, gpus=1),
    "evaluate_start": ResourceRequest(mem_mb=80_000, runtime=480, threads=8, gpus=1),
}
ASKING = (
    "generate_rl_data",
    "search_beams",
    "answer_prompts",
    "answer_controls",
    "train_on_policy_epoch",
)
AGENT_RULES = ("warm_start_agent", "train_agent", "evaluate_agent", "evaluate_start")
OVERHEAD_MB = 16_000
"""Memory of Python, CUDA and the episodes of an agent."""


def resources_for(experiment: Experiment, *, gpu_request: str = "gpu") -> Callable[[str], Resources]:
    """Return a function from a rule's name to its threads and resources.

    Memory and time grow with each attempt.

    Args:
        experiment: contains the models' configuration.
        gpu_request: the cluster's form of a GPU request: `gpu`, `gpu:MODEL`, `gres` or `gres:MODEL`.

    Raises:
        ConfigError: invalid `gpu_request`.
    """
    _gpus(1, gpu_request)  # validate the setting even if no rule needs a GPU

    def request_for(rule: str) -> ResourceRequest:
        request = PRODUCTION_MODEL[rule]
        if rule in ASKING and experiment.lvlm.is_served:
            return request._replace(mem_mb=16_000, threads=1, gpus=0)
        if not models.is_large(model_of(experiment, rule)):
            return WORLD_MODEL
        if rule in AGENT_RULES:
            return _of_agent(experiment, rule)
        return request._replace(gpus=experiment.lvlm.vllm.gpus) if rule in ASKING else request

    def resources_of(rule: str) -> Resources:
        request = request_for(rule)
        resources: ResourceValues = {
            "device": "cuda" if request.gpus else "cpu",
            "mem_mb": lambda _, attempt: attempt * (request.mem_mb + SNAKEMAKE_MB),
            "runtime": lambda _, attempt: attempt * request.runtime,
            **_gpus(request.gpus, gpu_request),
        }
        return Resources(request.threads, resources)

    return resources_of


def gpus_of(resources: Mapping[str, Any]) -> int:
    """Return the number of GPUs in a job's resources: `gpu=2`, or `gres` as `gpu`, `gpu:2`, `gpu:a100:2`."""
    # A count is optional: `gpu` and `gpu:a100` mean one GPU.
    of_gres = [word.split(":") for word in str(resources.get("gres") or "").split(",")]
    counts = [int(words[-1]) if words[-1].isdecimal() else 1 for words in of_gres if words[0] == "gpu"]
    return int(resources.get("gpu") or sum(counts))


def _gpus(count: int, request: str) -> ResourceValues:
    """Return the resources that the SLURM plugin converts to `--gpus` or `--gres`, with all GPUs on one node."""
    word, _, model = request.partition(":")
    if word not in ("gpu", "gres"):
        raise ConfigError(
            "gpu_request: expected gpu, gpu:MODEL, gres or gres:MODEL",
            found=repr(request),
            do="Fix it under default-resources of the profile.",
        )
    if not count:
        return {}
    if word == "gres":
        return {"nodes": 1, "gres": ":".join(["gpu", *([model] if model else []), str(count)])}
    return {"nodes": 1, "gpu": count, **({"gpu_model": model} if model else {})}


def loaded(experiment: Experiment) -> list[LoadedModel]:
    """Return the model folders of the configured studies; the tiny agent has none."""
    lvlms = {"lvlm.model": experiment.lvlm} if "lever" in experiment.studies else {}
    if "grid" in experiment.studies:
        lvlms |= {f"grid.lvlms.{name}.model": lvlm for name, lvlm in experiment.grid.lvlms.items()}
    encoders = {"encoder.model": experiment.encoder, "pools.encoder.model": experiment.pools.encoder} if lvlms else {}
    models = [LoadedModel(key, m.model, ("embed_examples",)) for key, m in encoders.items() if m is not None]
    models += [LoadedModel(key, m.model, ASKING) for key, m in lvlms.items() if not m.is_served]
    if "intention" in experiment.studies and experiment.intention.model.folder:
        readers = AGENT_RULES if experiment.intention.is_taught else AGENT_RULES[1:]
        models.append(LoadedModel("intention.model.folder", experiment.intention.model.folder, readers))
    return models


def model_of(experiment: Experiment, rule: str) -> str:
    """Return the model folder that a rule loads, the largest of several; empty if it loads none."""
    folders = [model.folder for model in loaded(experiment) if rule in model.rules]
    # A folder of unknown size, such as one not yet downloaded, counts as the largest.
    return max(folders, key=lambda folder: models.parameters_of(folder) or math.inf, default="")


def _of_agent(experiment: Experiment, rule: str) -> ResourceRequest:
    """Return the request to train or run an agent of this folder's size; an unknown size counts as 8 B parameters."""
    request, parameters = PRODUCTION_MODEL[rule], models.parameters_of(experiment.intention.model.folder)
    if not parameters:
        return request
    of_each = BYTES_OF_PLAYING if rule.startswith("evaluate") else BYTES_OF_TRAINING
    return request._replace(mem_mb=OVERHEAD_MB + of_each * parameters // 1_000_000)
