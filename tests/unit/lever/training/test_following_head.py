"""A head that follows the picks, through training and choice, and what it learns that a ranking cannot."""

from __future__ import annotations

from typing import Any

import pytest
import small_selectors
import torch

from lever_pipe.base.optimiser import AdamW
from lever_pipe.lever.selector.embeddings import EmbeddingTable
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.loop import Step, Updates
from lever_pipe.losses.sequence import selection_log_probs


def selector(seed: int = 0, **changed: Any) -> PointerSelector:
    return small_selectors.selector(seed, head="gru", **changed)


def table() -> EmbeddingTable:
    return small_selectors.table(30)


def groups(n: int = 5, shots: int = 3) -> Groups:
    return small_selectors.groups(n, shots=shots, n_examples=30)


def test_selections_of_one_shot_leave_the_head_where_it_is() -> None:
    module = selector()
    adam = AdamW(module, learning_rate=0.01, weight_decay=0.0)

    updates = Updates(module, adam, max_gradient_norm=1.0)

    def take(batch: Groups) -> None:
        loss = -selection_log_probs(table().scores(module, batch), batch.selections).mean()
        updates.take(Step(loss, {}), len(batch))

    before, query = module.decoder_gru.weight_hh.detach().clone(), module.query_proj.weight.detach().clone()
    take(groups(shots=1))
    assert torch.equal(module.decoder_gru.weight_hh, before)
    assert not torch.equal(module.query_proj.weight, query)
    take(groups(shots=2))
    assert not torch.equal(module.decoder_gru.weight_hh, before)


def test_a_missing_gradient_elsewhere_is_still_refused() -> None:
    module = selector()
    updates = Updates(module, AdamW(module, learning_rate=0.01, weight_decay=0.0), max_gradient_norm=1.0)
    with pytest.raises(RuntimeError, match="no gradient"):
        updates.take(Step(module.input_proj.weight.sum(), {}), len(groups()))
