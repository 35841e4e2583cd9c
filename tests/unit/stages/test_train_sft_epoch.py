"""Supervised learning of beam data, from files to files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from builders import WIDTH, embedding_arrays
from chains import SftChain, beam_groups

from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.experiment.sft import Sft
from lever_pipe.lever.networks.cross_attention import CrossAttention
from lever_pipe.lever.selector.embeddings import EmbeddingTable
from lever_pipe.lever.selector.network import Architecture, build_selector
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.loop import validation_loss
from lever_pipe.lever.training.supervised import imitation_step, targets_of
from lever_pipe.losses.sequence import step_logits
from lever_pipe.stages.selector_training import train_rce_epoch


@pytest.fixture
def chain(tmp_path: Path) -> SftChain:
    return SftChain(tmp_path)


class Even(CrossAttention):
    """Logits of zero, whatever it sees."""

    def first(self, encoded: object) -> torch.Tensor:  # type: ignore[override]
        v: torch.Tensor = encoded.candidates  # type: ignore[attr-defined]
        return v.sum(dim=-1) * 0.0


@pytest.mark.parametrize("targets", ["best", "beams"])
def test_a_selector_that_knows_nothing_has_the_uniform_loss(targets: Literal["best", "beams"]) -> None:
    """ln 64 for the first pick and ln 63 for the second; their mean is 4.151."""
    arrays = embedding_arrays(80)
    table = EmbeddingTable(torch.from_numpy(arrays["image"]))
    rng = np.random.default_rng(0)
    queries = torch.arange(3)
    pools = torch.from_numpy(np.stack([rng.permutation(np.arange(10, 80))[:64] for _ in range(3)]))
    selections = torch.from_numpy(np.stack([[rng.permutation(64)[:2] for _ in range(4)] for _ in range(3)]))
    groups = Groups(queries, pools, selections, torch.rand(3, 4), torch.ones(3, 4, dtype=torch.bool))
    module = Even(Architecture(WIDTH, 16, 1, 1, 0.0, 0.0, 0.1))
    settings = Sft(targets=targets)
    wanted = targets_of(groups, settings)
    loss = imitation_step(module, table, wanted, settings.temperature, per_pick=True).loss
    total = math.log(64) + math.log(63)
    assert total == pytest.approx(8.302, abs=1e-3)
    assert float(loss.detach()) == pytest.approx(total / 2, abs=1e-5)
    found = validation_loss(module, table, wanted, temperature=settings.temperature)
    assert found == pytest.approx(total, abs=1e-5)


def test_best_is_the_first_beam_and_beams_are_weighted() -> None:
    groups = beam_groups()
    assert torch.equal(targets_of(groups, Sft()).selections, groups.selections[:, :1])
    assert targets_of(groups, Sft(targets="beams")) is groups
    module = build_selector(Architecture(WIDTH, 16, 1, 1, 0.0, 0.0, 0.1)).eval()
    table = EmbeddingTable(torch.from_numpy(embedding_arrays(60)["image"]))
    step = imitation_step(module, table, groups, 0.2, per_pick=True)
    with torch.no_grad():
        log_probs = step_logits(table.scores(module, groups), groups.selections).log_softmax(dim=-1)
    per_beam = -log_probs.gather(-1, groups.selections[..., None]).squeeze(-1).mean(dim=-1)  # over picks
    weights = torch.tensor([math.exp(p / 0.2) for p in (0.9, 0.5, 0.2)])
    expected = (per_beam * (weights / weights.sum())).sum(dim=1).mean()
    assert float(step.loss.detach()) == pytest.approx(float(expected), abs=1e-5)


def test_rce_goes_on_from_an_sft_epoch_with_a_fresh_optimiser(chain: SftChain) -> None:
    chain.epoch("sft", 1)
    start, out = chain.outputs("sft1"), chain.outputs("rce1")
    config = chain.config("rce", 1, rce_from_sft_epoch=1)
    train_rce_epoch(
        **chain.files, start=start["selector"], start_optimiser=start["optimiser"], **out, config=config
    )  # fmt: skip
    moments, about = load_tensors(out["optimiser"])
    assert about == {"stage": "rce", "epoch": 1}
    steps = {float(value) for key, value in moments.items() if key.endswith(".step")}
    assert steps == {math.ceil(32 / chain.rce.batch_queries) * chain.rce.passes}
    began, ended, scratch = (
        load_tensors(chain.outputs(run)["selector"])[0]["input_proj.weight"] for run in ("sft1", "rce1", "rce0")
    )
    assert 0 < float((ended - began).norm()) < float((ended - scratch).norm())
