"""Emulation of bugs of the published evaluation; no other stage depends on it.

Checkpoints lost the tensors that GRPO had trained (`drop_head`). All queries got the same two candidates
(`first_items`). The logged KL compared a policy with dropout to a reference without (`emulation_dropout`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lever_pipe.base.records import ExampleId, Pool
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.lever.selector.decoding import greedy
from lever_pipe.lever.selector.network import Encoded, PointerSelector, build_selector, initialise

Chosen = NDArray[np.int64]
"""[N, S] train items that one policy selects for N queries, in prompt order."""


def head_names(module: PointerSelector) -> set[str]:
    """Return the names of the tensors that GRPO with frozen projections trains: attention and layer norm."""
    frozen = build_selector(module.architecture)
    frozen.freeze_projections()
    return {name for name, parameter in frozen.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def drop_head(module: PointerSelector, seed: int) -> PointerSelector:
    """Replace the trained head by freshly initialised tensors, the same for every checkpoint.

    The published converter renamed the trained tensors, the evaluated class used other names, and a lenient load
    ignored the mismatch: only the three projections of a checkpoint were loaded.
    """
    fresh = initialise(build_selector(module.architecture), torch_generator(seed, "emulated head")).state_dict()
    names = head_names(module)
    for name, tensor in module.state_dict().items():
        if name in names:
            tensor.copy_(fresh[name])
    return module


def first_items(pools: Sequence[Pool], n: int) -> list[Pool]:
    """Return a pool for each query that consists of the first `n` items of the train split."""
    items = tuple(ExampleId(i) for i in range(n))
    return [Pool(query_id=pool.query_id, candidates=items) for pool in pools]


def decode_with_repeats(module: PointerSelector, encoded: Encoded, shots: int) -> Tensor:
    """Return greedy selections `[B, S]` as pool positions, also if there are fewer candidates than shots."""
    n_pool = encoded.candidates.shape[1]
    return with_repeats(greedy(module, encoded, min(shots, n_pool)), shots, n_pool)


def with_repeats(picks_BS: Tensor, shots: int, n_pool: int) -> Tensor:
    """Extend greedy picks of a whole pool to more shots than it has candidates.

    The published decoding masks the picked candidates and takes the largest score. After all are picked, the first of
    the equal masked scores wins: two candidates give `[1, 0, 0, 0]` or `[0, 1, 0, 0]`. Ended selections stay ended.
    """
    # 0 is the first candidate, which wins all ties; n_pool marks a selection that ended earlier.
    again_B1 = torch.where(picks_BS[:, -1:] < n_pool, 0, n_pool)
    return torch.cat([picks_BS, again_B1.expand(-1, shots - picks_BS.shape[1])], dim=1)


def repeated_share(chosen_NS: Chosen, shots: int) -> float:
    """Return the share of prompts with this number of shots that show a demonstration twice."""
    ordered_Nk = np.sort(chosen_NS[:, :shots], axis=1)
    return float((ordered_Nk[:, 1:] == ordered_Nk[:, :-1]).any(axis=1).mean())


def prompts_a_query(policies: Sequence[Chosen], shots: int) -> NDArray[np.int64]:
    """Return the number of distinct prompts that the policies together make of each query, [N]."""
    stacked_PNk = np.stack([picks[:, :shots] for picks in policies])
    return np.array([len(np.unique(stacked_PNk[:, query], axis=0)) for query in range(stacked_PNk.shape[1])])
