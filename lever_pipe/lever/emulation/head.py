"""The fault that evaluated checkpoints had lost what GRPO trained."""

from __future__ import annotations

import torch

from lever_pipe.base.seeding import torch_generator
from lever_pipe.lever.selector.network import Architecture, PointerSelector, build_selector, initialise


def head_names(module: PointerSelector) -> set[str]:
    """Return the tensors that GRPO with frozen projections trains: attention and layer norm."""
    frozen = build_selector(module.architecture)
    frozen.freeze_projections()
    return {name for name, parameter in frozen.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def drop_head(module: PointerSelector, seed: int) -> PointerSelector:
    """Put freshly initialised tensors, the same for every checkpoint, in the place of the trained head.

    The published converter renamed the trained tensors, the evaluated class knew other names, and a lenient load
    passed over both: what was left of a checkpoint were its three projections.
    """
    fresh = fresh_head(module.architecture, seed).state_dict()
    names = head_names(module)
    for name, tensor in module.state_dict().items():
        if name in names:
            tensor.copy_(fresh[name])
    return module


def fresh_head(architecture: Architecture, seed: int) -> PointerSelector:
    """Return an untrained selector whose attention and layer norm stand in for lost ones."""
    return initialise(build_selector(architecture), torch_generator(seed, "emulated head"))
