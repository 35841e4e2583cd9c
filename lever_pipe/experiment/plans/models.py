"""Facts about the model folders that a configuration names: identity, family, size, and the name in captions."""

from __future__ import annotations

import math
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePath

from lever_pipe.base.contents import model_identity
from lever_pipe.base.model_folders import model_type
from lever_pipe.base.plugins import available
from lever_pipe.base.storage import header_of
from lever_pipe.experiment.lvlm import AUTO, LvlmConfig, LvlmSettings
from lever_pipe.experiment.studies import Experiment

EMBEDDED = "embedded"
"""Identity of the tiny agent, whose weights come from its own rule."""
EMBEDDED_MODELS = "resources/world"
EMBEDDED_PARAMETERS = 50_000_000
"""A larger model requests a GPU."""


@cache
def identity_of_model(folder: str) -> str:
    """Return the identity of a model folder, read once for all jobs; `EMBEDDED` without a folder."""
    return model_identity(folder) if folder else EMBEDDED


@cache
def parameters_of(folder: str) -> int:
    """Return the number of weights from the headers of a folder's safetensors files; 0 if none can be read."""
    try:
        headers = [header_of(path) for path in sorted(Path(folder).glob("*.safetensors"))]
    except (OSError, ValueError, ImportError):  # rules are linted where Snakemake alone is installed
        return 0
    return sum(math.prod(tensor["shape"]) for _, tensors in headers for tensor in tensors.values())


def is_large(folder: str) -> bool:
    """Return whether a model is larger than an embedded one; a missing folder counts as large."""
    return bool(folder) and not 0 < parameters_of(folder) <= EMBEDDED_PARAMETERS


def is_embedded(folder: str) -> bool:
    """Return whether a model folder is one of the small models of this repository."""
    return PurePath(folder).parent.as_posix().endswith(EMBEDDED_MODELS)


def with_parameters(subject: str, folder: str) -> str:
    """Return a subject, with the number of parameters if the model folder exists."""
    n_parameters = parameters_of(folder)
    return f"{subject}, {n_parameters / 1e6:.1f} M parameters" if n_parameters else subject


def lvlm_name(lvlm: LvlmSettings) -> str:
    """Return the LVLM's name for captions."""
    return "embedded Qwen2.5-VL" if is_embedded(lvlm.model) else lvlm.model.rstrip("/").split("/")[-1]


def lvlm_engine(lvlm: LvlmSettings) -> str:
    """Return the LVLM's plugin: the configured one, else `vllm` for a large model, else that of the model's family.

    Without vLLM, or without a plugin of the family, the model library answers (`hf`).
    """
    if lvlm.engine != AUTO:
        return lvlm.engine
    if is_large(lvlm.model):
        return "vllm" if find_spec("vllm") else "hf"
    kind = model_type(Path(lvlm.model))
    return kind if kind in available("lvlms") else "hf"


def lvlm_config(lvlm: LvlmSettings) -> LvlmConfig:
    """Return the settings that the LVLM's answers depend on."""
    # A served model has no folder to digest, so its name is its identity.
    identity = lvlm.model if lvlm.is_served else identity_of_model(lvlm.model)
    return LvlmConfig.of(lvlm, engine=lvlm_engine(lvlm), model_identity=identity)


def asks_vllm(experiment: Experiment) -> bool:
    """Return whether any of the experiment's LVLMs runs in vLLM."""
    return "vllm" in map(lvlm_engine, (experiment.lvlm, *experiment.grid.lvlms.values()))
