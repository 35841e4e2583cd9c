"""Two faults of the evaluation: checkpoints had lost what GRPO trained, and all queries were offered the same items."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lever_pipe.base.records import ExampleId, Pool
from lever_pipe.base.seeding import torch_generator
from lever_pipe.lever.selector.decoding import greedy
from lever_pipe.lever.selector.network import Architecture, Encoded, PointerSelector, build_selector, initialise


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


def first_items(pools: Sequence[Pool], n: int) -> list[Pool]:
    """Return for each query, in place of its own pool, the first `n` items of the train split."""
    items = tuple(ExampleId(i) for i in range(n))
    return [Pool(query_id=pool.query_id, candidates=items) for pool in pools]


def decode_with_repeats(module: PointerSelector, encoded: Encoded, shots: int) -> Tensor:
    """Return greedy selections `[B, S]` as pool positions, also where there are fewer candidates than shots."""
    n_pool = encoded.candidates.shape[1]
    return with_repeats(greedy(module, encoded, min(shots, n_pool)), shots, n_pool)


def with_repeats(picks_BS: Tensor, shots: int, n_pool: int) -> Tensor:
    """Return greedy picks of a whole pool, going on to more shots than it has candidates.

    The published decoding masks what is chosen and takes the largest score. Once all are chosen, the first of the
    equal masked scores wins: two candidates give `[1, 0, 0, 0]` or `[0, 1, 0, 0]`. What has ended stays so.
    """
    again_B1 = torch.where(picks_BS[:, -1:] < n_pool, 0, n_pool)
    return torch.cat([picks_BS, again_B1.expand(-1, shots - picks_BS.shape[1])], dim=1)
