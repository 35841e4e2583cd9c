"""What one epoch hands to the next: selector weights, optimiser moments, the current beta."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lever_pipe.checkpoints import load_tensors, require_same_tensors, save_tensors
from lever_pipe.selector.network import Architecture, PointerSelector, build_selector

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def load_selector(path: Path, architecture: Architecture) -> PointerSelector:
    """Return the selector of a checkpoint, in eval mode.

    Raises:
        CheckpointError: missing file, or tensors of another architecture (all listed).
    """
    module = build_selector(architecture)
    tensors, _ = load_tensors(path)
    require_same_tensors(path, tensors, module.state_dict())
    module.load_state_dict(tensors, strict=True)
    return module.eval()


def save_selector(path: Path, module: PointerSelector, *, stage: str, epoch: int) -> None:
    """Write a selector's weights."""
    save_tensors(path, module.state_dict(), about={"stage": stage, "epoch": epoch})


def make_optimiser(module: PointerSelector, *, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Return AdamW over the trainable parameters, in the module's order."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    return torch.optim.AdamW(trainable, lr=learning_rate, weight_decay=weight_decay, foreach=True)


def save_optimiser(
    path: Path, optimiser: torch.optim.AdamW, module: PointerSelector, *, stage: str, epoch: int, kl_beta: float
) -> None:
    """Write the optimiser's moments by parameter name, with the beta for the next epoch."""
    tensors: dict[str, Tensor] = {"kl_beta": torch.tensor(kl_beta, dtype=torch.float64)}
    for name, parameter in _trainable(module):
        for moment, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{name}.{moment}"] = value
    save_tensors(path, tensors, about={"stage": stage, "epoch": epoch})


def resume_optimiser(path: Path, optimiser: torch.optim.AdamW, module: PointerSelector, *, stage: str) -> float | None:
    """Load the moments of the same stage's previous epoch and return its beta.

    A phase starts with a fresh optimiser, as published: a state of another stage is left alone and None returned.

    Raises:
        CheckpointError: missing file, or moments of other parameters.
    """
    tensors, about = load_tensors(path)
    if about.get("stage") != stage:
        return None
    expected: dict[str, Tensor] = {"kl_beta": torch.tensor(0.0, dtype=torch.float64)}
    for name, parameter in _trainable(module):
        expected |= {f"{name}.{moment}": torch.zeros_like(parameter) for moment in MOMENTS[1:]}
        expected[f"{name}.step"] = torch.tensor(0.0)
    require_same_tensors(path, tensors, expected)
    for name, parameter in _trainable(module):
        optimiser.state[parameter] = {moment: tensors[f"{name}.{moment}"] for moment in MOMENTS}
    return float(tensors["kl_beta"])


def _trainable(module: PointerSelector) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]
