"""The resume law: N jobs of one epoch give bit for bit what one run of N epochs gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from chains import Chain, Straight, same_weights

from lever_pipe.base import storage
from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.records import EpochMetrics
from lever_pipe.experiment.config import AdaptiveKl, Grpo, Rce


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    made = Chain(tmp_path)
    made.initialise()
    return made


@pytest.mark.parametrize(
    "rce",
    [
        Rce(batch_queries=3, learning_rate=1e-2),
        Rce(batch_queries=3, learning_rate=1e-2, horizon_epochs=3, passes=2, final_learning_rate_share=0.1,
            raw_reward=False, weight_by_spread=True),
    ],
    ids=["published", "every other option"],
)  # fmt: skip
def test_three_rce_jobs_are_one_run(tmp_path: Path, rce: Rce) -> None:
    chain = Chain(tmp_path, rce=rce)
    assert chain.selector.dropout == 0.5
    chain.initialise()
    rows = [chain.rce_epoch(epoch) for epoch in (1, 2, 3)]
    straight = Straight(chain)
    module = straight.rce(3)
    assert same_weights(chain.outputs("rce3")["selector"], module)
    assert [row.values for row in rows] == straight.values
    assert [storage.read_row(chain.outputs(f"rce{e}")["metrics"], EpochMetrics) for e in (1, 2, 3)] == rows


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed beta", "adaptive beta"])
def test_three_grpo_jobs_are_one_run(tmp_path: Path, adaptive: bool) -> None:
    grpo = Grpo(batch_queries=3, learning_rate=1e-2, adaptive_kl=AdaptiveKl() if adaptive else None)
    chain = Chain(tmp_path, grpo=grpo)
    chain.initialise()
    chain.rce_epoch(1)
    rows = [chain.grpo_epoch(epoch) for epoch in (1, 2, 3)]
    straight = Straight(chain)
    module = straight.grpo(3, kl_beta=0.15)
    assert same_weights(chain.outputs("grpo3")["selector"], module)
    assert [row.values for row in rows] == straight.values
    betas = [row.values["kl_beta"] for row in rows]
    # An adaptive beta goes on where the epoch before left it, up to its bound of 10.
    assert (betas[0] != 0.15 and betas[0] != betas[1]) if adaptive else betas == [0.15] * 3


def test_another_seed_of_the_global_stream_changes_nothing(chain: Chain) -> None:
    chain.rce_epoch(1)
    first = chain.bytes_of("rce1")
    with torch.random.fork_rng():
        torch.manual_seed(99)
        before = torch.get_rng_state()
        chain.rce_epoch(1)
        assert torch.equal(torch.get_rng_state(), before)
    assert chain.bytes_of("rce1") == first


def test_a_phase_starts_with_a_fresh_optimiser(chain: Chain) -> None:
    chain.rce_epoch(1)
    chain.grpo_epoch(1)
    resumed = chain.bytes_of("grpo1")
    moments, about = load_tensors(chain.outputs("grpo1")["optimiser"])
    # 20 queries, 16 of them train, 3 a batch: 6 steps; the 6 steps of the RCE epoch are forgotten
    assert {float(value) for name, value in moments.items() if name.endswith(".step")} == {6.0}
    assert about == {"stage": "grpo", "epoch": 1}
    chain.grpo_epoch(1, start_optimiser=chain.outputs("rce0")["optimiser"])
    assert chain.bytes_of("grpo1") == resumed
    chain.rce_epoch(2)
    moments, _ = load_tensors(chain.outputs("rce2")["optimiser"])
    assert {float(value) for name, value in moments.items() if name.endswith(".step")} == {12.0}


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_projections_stay_as_they_are(tmp_path: Path, frozen: bool) -> None:
    chain = Chain(tmp_path, grpo=Grpo(batch_queries=3, learning_rate=1e-2, freeze_projections=frozen))
    chain.initialise()
    chain.rce_epoch(1)
    for epoch in (1, 2):
        chain.grpo_epoch(epoch)
    base, tuned = (load_tensors(chain.outputs(run)["selector"])[0] for run in ("rce1", "grpo2"))
    kept = {name for name in base if torch.equal(base[name], tuned[name])}
    projections = {"input_proj.weight", "query_proj.weight", "cand_proj.weight"}
    assert kept == (projections if frozen else set())
    moments, _ = load_tensors(chain.outputs("grpo2")["optimiser"])
    assert any(name.startswith("query_proj") for name in moments) == (not frozen)


def test_policies_are_named_as_the_plan_names_them(chain: Chain) -> None:
    assert chain.initialise().policy.name == "preset~p/init/seed~0"
    assert chain.rce_epoch(1).policy.name == "preset~p/rce/seed~0/epoch~1"
    row = chain.grpo_epoch(1, kl_beta=0.1234567)
    assert row.policy.name == "preset~p/grpo/base~1/beta~0.1234567/seed~0/epoch~1"
    assert row.policy.kl_beta == 0.1234567
