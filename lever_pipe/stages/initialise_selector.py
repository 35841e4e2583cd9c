"""Rule `initialise_selector`: the untrained selector of one seed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from lever_pipe.base import storage
from lever_pipe.base.members import member
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.records import EpochMetrics, PolicyRef
from lever_pipe.base.seeding import torch_generator
from lever_pipe.experiment import execution
from lever_pipe.experiment.config import TRAIN_IDS, Selector
from lever_pipe.experiment.stage_configs import InitialiseSelectorConfig, Runtime
from lever_pipe.experiment.stage_files import Input, Output
from lever_pipe.lever.selector.network import build_selector, initialise
from lever_pipe.lever.training import state
from lever_pipe.lever.training.embeddings import architecture_of, read_table


def initialise_selector(
    *,
    embeddings: Input,
    selector: Output,
    optimiser: Output,
    metrics: Output,
    config: InitialiseSelectorConfig,
    runtime: Runtime = Runtime(),
) -> EpochMetrics:
    """Write the selector of `config.seed` before any training, with an optimiser state of zeros.

    Raises:
        ConfigError: a language model over train ids has another width than the embeddings.
    """
    device = execution.prepare(runtime)
    module = _fresh(embeddings, config.selector, torch_generator(config.seed, "selector"), device)
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
        table = read_table(embeddings, "train", device, inputs=ids.INPUTS)
        fresh: nn.Module = ids.initialise_train_ids(ids.build_train_ids(ids.ids_architecture(selector, table)), stream)
        return fresh
    table = read_table(embeddings, "train", device, inputs=selector.inputs)
    return initialise(build_selector(architecture_of(selector, table)), stream)
