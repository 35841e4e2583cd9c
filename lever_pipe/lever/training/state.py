"""What one epoch hands to the next: selector weights, optimiser moments, the current beta."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from lever_pipe.base.checkpoints import load_tensors, require_same_tensors, save_tensors
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.lever.selector.network import Architecture, PointerSelector, build_selector


def load_selector(path: Path, architecture: Architecture) -> PointerSelector:
    """Return the selector of a checkpoint, in eval mode.

    Raises:
        CheckpointError: missing file, or tensors of another architecture (all listed).
    """
    return load_into(build_selector(architecture), path)


Network = TypeVar("Network", bound=nn.Module)


def load_into(module: Network, path: Path) -> Network:
    """Return a module with the tensors of a checkpoint, in eval mode.

    Raises:
        CheckpointError: missing file, or tensors of another architecture (all listed).
    """
    tensors, _ = load_tensors(path)
    require_same_tensors(path, tensors, module.state_dict())
    module.load_state_dict(tensors, strict=True)
    return module.eval()


def save_selector(path: Path, module: nn.Module, *, stage: str, epoch: int) -> None:
    """Write a selector's weights."""
    save_tensors(path, module.state_dict(), about={"stage": stage, "epoch": epoch})


def save_optimiser(path: Path, optimiser: AdamW, *, stage: str, epoch: int, kl_beta: float) -> None:
    """Write the optimiser's moments by parameter name, with the beta for the next epoch."""
    beta = torch.tensor(kl_beta, dtype=torch.float64)
    save_tensors(path, {"kl_beta": beta, **optimiser.state()}, about={"stage": stage, "epoch": epoch})


def resume_optimiser(path: Path, optimiser: AdamW, *, stage: str) -> float | None:
    """Load the moments of the same stage's previous epoch and return its beta.

    A phase starts with a fresh optimiser, as published: a state of another stage is left alone and None returned.

    Raises:
        CheckpointError: missing file, moments of other parameters, or a negative beta.
    """
    tensors, about = load_tensors(path)
    if "stage" not in about:
        found = "a state that tells no stage"
        raise CheckpointError(f"{path}: expected the optimiser state of a stage", found=found, do="Rerun its rule.")
    if about["stage"] != stage:
        return None
    require_same_tensors(path, tensors, {"kl_beta": torch.tensor(0.0, dtype=torch.float64), **optimiser.state()})
    if (beta := float(tensors["kl_beta"])) < 0:
        raise CheckpointError(f"{path}: expected a kl_beta of at least 0", found=str(beta), do="Rerun its rule.")
    optimiser.load(tensors)
    return beta
