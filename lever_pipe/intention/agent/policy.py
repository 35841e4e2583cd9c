"""The policy: a Llama, a Qwen2 or a Qwen3 in a local folder, or a tiny Qwen3 with random weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from lever_pipe.base.atomic import folder_in, place, write_folder
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.model_folders import load_strictly, readable, require_size, require_whole
from lever_pipe.base.rowwise import rowwise
from lever_pipe.base.seeding import ambient_stream
from lever_pipe.experiment.agent_config import TinyQwen3
from lever_pipe.intention.agent.layers import FAMILIES
from lever_pipe.intention.codecs.protocol import ChatCodec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Precision = Literal["float32", "bfloat16"]
WEIGHTS, SETTINGS = "model.safetensors", "config.json"
ATTENTION = "sdpa"
INITIAL_DEVIATION = 0.03
"""Of the tiny policy's weights. With the stock 0.02 at so small a width, chance decides whether the warm start learns
to read what a request already states; with 0.05 it learns so soon that greedy decoding is perfect from the start."""

CHECKPOINT_ABOVE = 1_000_000_000
"""Parameters beyond which activations are computed again in the backward pass instead of kept."""


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the context of forward passes: with bfloat16, weights and optimiser stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def build_tiny(config: TinyQwen3, vocabulary_size: int, seed: int) -> PreTrainedModel:
    """Return a `Qwen3ForCausalLM` with random float32 weights of the stream `policy` of `seed`.

    The default sizes with 63 words have 227,808 parameters.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    settings = Qwen3Config(
        vocab_size=vocabulary_size,
        hidden_size=config.hidden,
        intermediate_size=config.mlp,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.positions,
        tie_word_embeddings=True,
        initializer_range=INITIAL_DEVIATION,
        attention_dropout=0.0,
        attn_implementation=ATTENTION,
    )
    with ambient_stream(seed, "policy"):
        return rowwise(Qwen3ForCausalLM(settings).eval())


def load_policy(folder: Path, dtype: Precision, device: torch.device = torch.device("cpu")) -> PreTrainedModel:
    """Return the causal language model of a folder, in evaluation mode.

    `dtype` is that of the stored weights: float32 for those that are trained, whatever they compute in.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    require_whole(folder, "a model folder", files=(SETTINGS,))
    transformers_logging.disable_progress_bar()
    part = "causal language model"
    with readable(folder, part):
        settings = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if settings.model_type not in FAMILIES:
            raise CheckpointError(
                f"{folder}: expected a model of the families {', '.join(FAMILIES)}",
                found=repr(settings.model_type),
                do="Use another model, or play it behind a server (intention.served).",
            )
        require_size(folder, settings)
    options = {"dtype": getattr(torch, dtype), "attn_implementation": ATTENTION, "trust_remote_code": False}
    model = load_strictly(AutoModelForCausalLM, folder, part, **options)
    if any(kind != "full_attention" for kind in getattr(model.config, "layer_types", None) or ()):
        raise CheckpointError(
            f"{folder}: expected full attention in every layer",
            found="other layers",
            do="Set use_sliding_window to false in config.json where the model allows it, or use another model.",
        )
    policy: PreTrainedModel = rowwise(model.eval()).to(device)
    return policy


def save_policy(
    folder: Path, model: PreTrainedModel, codec: ChatCodec, state: Mapping[str, Tensor] | None = None
) -> None:
    """Write model and codec as a folder that appears whole or not at all; `state` may be other weights."""
    write_folder(folder, lambda path: _fill(path, model, codec, state))


def save_policy_files(files: Iterable[Path], model: PreTrainedModel, codec: ChatCodec) -> None:
    """Write files that `save_policy` names into a folder that holds others too; each appears whole or not at all."""
    paths = list(files)
    with folder_in(paths[0].parent) as folder:
        _fill(folder, model, codec, None)
        for path in paths:
            place(folder / path.name, path)


def prepare_for_updates(policy: Any) -> None:
    """Let a large policy recompute its activations, and switch dropout off: the ratio of a first update is 1."""
    for module in policy.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    if sum(parameter.numel() for parameter in policy.parameters()) > CHECKPOINT_ABOVE:
        # transformers before 5.23, which vLLM asks for, knows it by another name.
        enable = getattr(policy, "activation_checkpointing_enable", None) or policy.gradient_checkpointing_enable
        enable({"use_reentrant": False})


def recomputes(policy: Any) -> bool:
    """Return whether a training pass of a policy computes its activations again (`prepare_for_updates`)."""
    return any(getattr(module, "gradient_checkpointing", False) for module in policy.modules())


def policy_folder(files: tuple[Path, ...]) -> Path:
    """Return the policy folder that a stage's input names: one folder, or files that all lie in one."""
    return files[0] if files[0].is_dir() else files[0].parent


def _fill(folder: Path, model: PreTrainedModel, codec: ChatCodec, state: Mapping[str, Tensor] | None) -> None:
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder, state_dict=None if state is None else dict(state))
    codec.save(folder)
    # safetensors lets nobody but the owner read what it writes.
    mode = (folder / SETTINGS).stat().st_mode
    for path in folder.glob("*.safetensors"):
        path.chmod(mode)
