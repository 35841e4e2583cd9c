"""Rule `initialise_selector`: the selector of one seed before any training of this run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.members import member
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import EpochMetrics, PolicyRef
from lever_pipe.base.seeding import torch_generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.config import TRAIN_IDS, Selector
from lever_pipe.experiment.stage_configs import InitialiseSelectorConfig, Runtime
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.lever.selector.network import build_selector, initialise
from lever_pipe.lever.training import state
from lever_pipe.lever.training.embeddings import architecture_of, read_table

TRAINING_ALONE = ("dropout", "attention_dropout", "penalty")
"""Settings that a trained selector does not compute with."""


def initialise_selector(
    *,
    embeddings: Input,
    start: Inputs,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: InitialiseSelectorConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Write the selector of `config.seed` before any training, with an optimiser state of zeros.

    Its tensors are random, or those of the one checkpoint that `start` may name.

    Raises:
        CheckpointError: `start` is of another selector, by its tensors or by the record beside it.
        ConfigError: a language model over train ids has another width than the embeddings.
    """
    device = execution.prepare(runtime)
    module = _fresh(embeddings, config.selector, torch_generator(config.seed, "selector"), device)
    for path in start:
        _require_same_selector(path, config)
        module = state.load_into(module, path)
    state.save_selector(selector, module, stage="init", epoch=0)
    unused = AdamW(module, learning_rate=0.0, weight_decay=0.0)
    state.save_optimiser(optimiser, unused, stage="init", epoch=0, kl_beta=0.0)
    ref = PolicyRef.of(PolicyName(kind="init", preset=config.preset, seed=config.seed)).model_copy(update={"epoch": 0})
    row = EpochMetrics(policy=ref, values={"parameters": float(sum(p.numel() for p in module.parameters()))})
    storage.write_row(metrics, row)
    return row


def _fresh(embeddings: Path, selector: Selector, stream: torch.Generator, device: torch.device) -> nn.Module:
    if selector.network == TRAIN_IDS:
        ids = member("lever/networks", TRAIN_IDS)
        table = read_table(embeddings, device, inputs=ids.INPUTS)
        fresh: nn.Module = ids.initialise_train_ids(ids.build_train_ids(ids.ids_architecture(selector, table)), stream)
        return fresh
    table = read_table(embeddings, device, inputs=selector.inputs)
    return initialise(build_selector(architecture_of(selector, table)), stream)


def _require_same_selector(path: Path, config: InitialiseSelectorConfig) -> None:
    """Refuse a checkpoint whose record tells of another selector: no tensor tells of attention heads."""
    own = config.selector.model_dump(mode="json", exclude=set(TRAINING_ALONE))
    for record in filter(Path.is_file, (path.with_name(f"{name}.json") for name in ("run", "import"))):
        told = storage.read_json(record)
        told = told.get("config", told) if isinstance(told, dict) else None
        theirs = told.get("selector") if isinstance(told, dict) else None
        pairs = [(name, theirs[name], own[name]) for name in own if name in theirs] if isinstance(theirs, dict) else []
        if other := [f"{name} {value!r}, here {wanted!r}" for name, value, wanted in pairs if value != wanted]:
            raise CheckpointError(
                f"{path}: expected the selector of presets.{config.preset}, whose start_from names it",
                found=f"{'; '.join(other)} ({record.name} beside it)",
                do=f"Write presets.{config.preset}.selector as it says, or name another checkpoint.",
            )
