"""The published losses of supervised learning, 24.18 in training and 21.98 in validation, from its pools and labels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from builders import WIDTH, embedding_arrays

from lever_pipe.base.seeding import torch_generator
from lever_pipe.lever.selector.embeddings import EmbeddingTable
from lever_pipe.lever.selector.network import Architecture, build_selector, initialise
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.loop import validation_loss
from lever_pipe.losses.sequence import selection_log_probs

N_TRAIN, K, BEAMS = 400, 16, 5


def own_pairs(groups: Groups) -> Groups:
    """Return every beam as a group of its own, as the published training saw it.

    Its pool is the beam itself, and a label is the train position modulo S in place of the place in the pool: where two
    of a pair are both even or both odd, the second label is already masked (source: Lever-Plus published code).
    """
    places = groups.pools[:, None].expand(-1, groups.selections.shape[1], -1)
    ids_NS = places.gather(2, groups.selections)[groups.valid]
    queries_N = groups.queries[:, None].expand_as(groups.valid)[groups.valid]
    everyone = torch.ones(len(ids_NS), 1)
    return Groups(queries_N, ids_NS, (ids_NS % ids_NS.shape[1])[:, None], everyone, everyone.bool())


def random_beams(n: int = 120) -> Groups:
    rng = np.random.default_rng(0)
    pools = np.stack([rng.permutation(N_TRAIN)[:K] for _ in range(n)])
    chosen = np.stack([[rng.permutation(K)[:2] for _ in range(BEAMS)] for _ in range(n)])
    valid = torch.ones(n, BEAMS, dtype=torch.bool)
    valid[0, 1:] = False
    return Groups(torch.arange(n), torch.from_numpy(pools), torch.from_numpy(chosen), torch.rand(n, BEAMS), valid)


def test_a_pair_of_one_parity_costs_a_masked_logit() -> None:
    """Ids 4 and 6 have label 0 twice: ln 2 for the first and 100 + ln(1 + e^-100) for the second, at logits of 0."""
    pools, chosen = torch.tensor([[4, 6, 9]]), torch.tensor([[[0, 1], [0, 2], [2, 0]]])
    valid = torch.ones(1, 3, dtype=torch.bool)
    found = own_pairs(Groups(torch.tensor([7]), pools, chosen, torch.ones(1, 3), valid))
    assert found.pools.tolist() == [[4, 6], [4, 9], [9, 4]]
    assert found.selections.tolist() == [[[0, 0]], [[0, 1]], [[1, 0]]]
    losses = -selection_log_probs(torch.zeros(3, 2), found.selections, found.valid)
    assert losses[:, 0].tolist() == pytest.approx([math.log(2) + 100, math.log(2), math.log(2)], abs=1e-4)


def test_losses_are_those_that_were_published() -> None:
    """Half of all pairs are of one parity: about 100 / 2 / 2 a pick, beside ln 2 / 2 of the first."""
    groups = random_beams()
    found = own_pairs(groups)
    assert len(found) == int(groups.valid.sum())
    same = (found.pools % 2)[:, 0] == (found.pools % 2)[:, 1]
    assert 0.4 < float(same.float().mean()) < 0.6
    module = initialise(build_selector(Architecture(WIDTH, 16, 1, 1, 0.0, 0.0, 0.1)), torch_generator(0, "selector"))
    table = EmbeddingTable(torch.from_numpy(embedding_arrays(N_TRAIN)["image"]))
    a_pick = validation_loss(module, table, found) / 2
    assert 15 < a_pick < 30
    right = validation_loss(module, table, groups, temperature=1e3) / 2
    assert right < a_pick / 2  # where labels are places in the pool, none is masked
