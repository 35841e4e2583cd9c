"""The policy: a Llama, Qwen2 or Qwen3 model in a local folder, or a tiny Qwen3 with random weights."""

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
from lever_pipe.base.torch_streams import ambient_stream
from lever_pipe.experiment.agent_model import TinyQwen3
from lever_pipe.intention.agent.layers import FAMILIES
from lever_pipe.intention.codecs.protocol import ChatCodec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Precision = Literal["float32", "bfloat16"]
WEIGHTS, SETTINGS = "model.safetensors", "config.json"
ATTENTION = "sdpa"
INITIAL_DEVIATION = 0.03
"""Standard deviation of the tiny policy's initial weights. With the default of 0.02, it depends on chance whether the
warm start learns to read the slots that a request states; with 0.05, greedy decoding is perfect before training."""

CHECKPOINT_ABOVE = 1_000_000_000
"""Number of parameters above which the backward pass recomputes activations instead of storing them."""


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the autocast context of forward passes; weights and optimizer states keep their type with bfloat16."""
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

    `dtype` is the type of the weights in memory: float32 for training, independent of the type of computation.
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
    # `run_layers` has no sliding windows, so a model with them would compute other values without an error.
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
    """Write model and codec as a folder, atomically; `state` replaces the model's own weights."""
    write_folder(folder, lambda path: _fill(path, model, codec, state))


def save_policy_files(files: Iterable[Path], model: PreTrainedModel, codec: ChatCodec) -> None:
    """Write selected files of `save_policy`, each atomically, into a folder that may contain other files."""
    paths = list(files)
    with folder_in(paths[0].parent) as folder:
        _fill(folder, model, codec, None)
        for path in paths:
            place(folder / path.name, path)


def prepare_for_updates(policy: Any) -> None:
    """Switch dropout off, and activation checkpointing on for a large policy.

    Without dropout, the probability ratio of the first update is 1.
    """
    for module in policy.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    if sum(parameter.numel() for parameter in policy.parameters()) > CHECKPOINT_ABOVE:
        # vLLM requires transformers before 5.23, where the method has another name.
        enable = getattr(policy, "activation_checkpointing_enable", None) or policy.gradient_checkpointing_enable
        enable({"use_reentrant": False})


def recomputes(policy: Any) -> bool:
    """Return whether the backward pass of a policy recomputes activations (see `prepare_for_updates`)."""
    return any(getattr(module, "gradient_checkpointing", False) for module in policy.modules())


def policy_folder(files: tuple[Path, ...]) -> Path:
    """Return the policy folder of a stage's input, which is the folder itself or files in it."""
    return files[0] if files[0].is_dir() else files[0].parent


def _fill(folder: Path, model: PreTrainedModel, codec: ChatCodec, state: Mapping[str, Tensor] | None) -> None:
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder, state_dict=None if state is None else dict(state))
    codec.save(folder)
    # safetensors creates files that only the owner can read; give them the permissions of config.json.
    mode = (folder / SETTINGS).stat().st_mode
    for path in folder.glob("*.safetensors"):
        path.chmod(mode)
