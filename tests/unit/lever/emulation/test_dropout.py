from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from chains import OUTPUTS, Chain, execution, same_weights

from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import EpochMetrics
from lever_pipe.base.seeding import ambient_stream, torch_generator
from lever_pipe.experiment.config import AdaptiveKl, Grpo, Selector
from lever_pipe.experiment.stage_configs import EmulateGrpoEpochConfig
from lever_pipe.lever.emulation import dropout as module
from lever_pipe.lever.emulation.dropout import NoisyPolicies, epoch_without_updates
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training import state
from lever_pipe.lever.training.embeddings import FrozenSelector, architecture_of
from lever_pipe.lever.training.grpo import BetaController, kept_in_epoch, plan_grpo_epoch
from lever_pipe.lever.training.loop import run_epoch
from lever_pipe.lever.training.policies import Policies, PolicyPair
from lever_pipe.stages.emulate_grpo_epoch import emulate_grpo_epoch

GRPO = Grpo(batch_queries=3, learning_rate=1e-2)


def trained(folder: Path, *, grpo: Grpo = GRPO, selector: Selector | None = None) -> Chain:
    """Return a chain with its first RCE epoch."""
    chain = Chain(folder, grpo=grpo) if selector is None else Chain(folder, grpo=grpo, selector=selector)
    chain.initialise()
    chain.rce_epoch(1)
    return chain


def noisy_epoch(chain: Chain, epoch: int, *, kl_beta: float = 0.15) -> EpochMetrics:
    start = chain.outputs(f"noisy{epoch - 1}" if epoch > 1 else "rce1")
    return emulate_grpo_epoch(
        **chain.files, start=start["selector"], start_optimiser=start["optimiser"],
        reference=chain.outputs("rce1")["selector"], **chain.outputs(f"noisy{epoch}"),
        config=EmulateGrpoEpochConfig(training=chain.grpo_config(epoch, kl_beta)),
    )  # fmt: skip


def pair_of(chain: Chain) -> tuple[PointerSelector, FrozenSelector]:
    table = chain.inputs().table
    architecture = architecture_of(chain.selector, table)
    base = chain.outputs("rce1")["selector"]
    policy, reference = (state.load_selector(base, architecture) for _ in range(2))
    return policy, FrozenSelector(reference.train(), table)


def untouched(chain: Chain, pair: PolicyPair, epoch: int, stream: int = 0) -> dict[str, float]:
    data = chain.inputs()
    with ambient_stream(stream, "noise"):
        return epoch_without_updates(
            pair, data.table, kept_in_epoch(data.train, chain.grpo, epoch), clip_epsilon=0.2,
            generator=torch_generator(0),
        )  # fmt: skip


@pytest.mark.parametrize("epoch", [1, 2])
def test_without_an_update_dropout_alone_makes_a_kl(tmp_path: Path, epoch: int) -> None:
    chain = trained(tmp_path)
    right = untouched(chain, Policies(*pair_of(chain)), epoch)
    assert (right["kl"], right["kl_exact"], right["mean_ratio"], right["clip_fraction"]) == (0, 0, 1, 0)
    noisy = untouched(chain, NoisyPolicies(*pair_of(chain)), epoch)
    assert noisy["kl"] > 0.01
    assert noisy["kl_exact"] > 0.01
    assert noisy["mean_ratio"] != 1
    # what the data alone decide is the same in both
    for name in ("std_advantage", "max_advantage", "gradient_share"):
        assert noisy[name] == right[name]
    assert "kl_loss" not in right


def test_the_noise_follows_its_stream(tmp_path: Path) -> None:
    chain = trained(tmp_path)
    values = [untouched(chain, NoisyPolicies(*pair_of(chain)), 1, stream)["kl"] for stream in (0, 0, 1)]
    assert values[0] == values[1] != values[2]


def test_means_do_not_depend_on_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = trained(tmp_path)
    policy, reference = pair_of(chain)
    with torch.no_grad():
        policy.query_proj.weight.add_(0.1)
    whole = untouched(chain, Policies(policy, reference), 1)
    monkeypatch.setattr(module, "BATCH", 3)  # 16 train queries: five whole batches and one of a single query
    parts = untouched(chain, Policies(policy, reference), 1)
    assert whole["kl"] > 0
    assert parts == pytest.approx(whole, rel=0, abs=1e-5)  # float32 sums of values near 1, grouped otherwise


def test_only_the_policy_has_dropout(tmp_path: Path) -> None:
    chain = trained(tmp_path)
    policy, reference = pair_of(chain)
    data, pair = chain.inputs(), NoisyPolicies(policy, reference)
    drawn = []
    for name in ("a", "b"):
        with ambient_stream(0, name):
            drawn.append((pair.trained(data.table, data.train), pair.reference.scores(data.train)))
    assert not torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])
    assert drawn[0][0].requires_grad
    assert not drawn[0][1].requires_grad


def test_with_a_dropout_of_zero_it_is_the_right_training_bit_for_bit(tmp_path: Path) -> None:
    selector = Selector(width=16, dropout=0.0, attention_dropout=0.0)
    chain = trained(tmp_path, selector=selector)
    for epoch in (1, 2):
        right, noisy = chain.grpo_epoch(epoch), noisy_epoch(chain, epoch)
        assert noisy.values == right.values
        files = [
            [(tmp_path / f"{run}{epoch}" / name).read_bytes() for name in OUTPUTS[:2]] for run in ("grpo", "noisy")
        ]
        assert files[0] == files[1]
        assert noisy.policy.name == f"emulation/dropout/base~1/beta~0.15/seed~0/epoch~{epoch}"
        assert noisy.policy.model_copy(update={"name": right.policy.name}) == right.policy


def test_dropout_moves_the_training(tmp_path: Path) -> None:
    chain = trained(tmp_path)
    right, noisy = chain.grpo_epoch(1), noisy_epoch(chain, 1)
    assert noisy.values["kl"] > right.values["kl"]
    assert chain.bytes_of("noisy1")[0] != chain.bytes_of("grpo1")[0]
    assert noisy.values["std_advantage"] == right.values["std_advantage"]


@pytest.mark.parametrize("adaptive", [None, AdaptiveKl()], ids=["fixed beta", "adaptive beta"])
def test_three_jobs_are_one_run(tmp_path: Path, adaptive: AdaptiveKl | None) -> None:
    chain = trained(tmp_path, grpo=GRPO.model_copy(update={"adaptive_kl": adaptive}))
    rows = [noisy_epoch(chain, epoch) for epoch in (1, 2, 3)]
    policy, values = straight(chain, [row.policy.name for row in rows])
    assert same_weights(chain.outputs("noisy3")["selector"], policy)
    assert [{name: row.values[name] for name in logged} for row, logged in zip(rows, values, strict=True)] == values


def straight(chain: Chain, streams: Sequence[str]) -> tuple[PointerSelector, list[dict[str, float]]]:
    """Return the policy and the logs of one process that trains all epochs, each with its stream of noise."""
    data, grpo = chain.inputs(), chain.grpo
    policy, reference = pair_of(chain)
    policy.freeze_projections()
    adam = AdamW(policy, learning_rate=grpo.learning_rate, weight_decay=grpo.weight_decay)
    beta = BetaController(0.15, grpo.adaptive_kl.model_dump() if grpo.adaptive_kl else None)
    values = []
    with execution():
        for epoch, stream in enumerate(streams, start=1):
            plan = plan_grpo_epoch(
                NoisyPolicies(policy, reference), data.table, kept_in_epoch(data.train, grpo, epoch), beta,
                batch_queries=grpo.batch_queries, clip_epsilon=grpo.clip_epsilon,
                generator=torch_generator(0, "grpo", epoch),
            )  # fmt: skip
            with ambient_stream(0, stream):
                values.append(run_epoch(policy, adam, plan, max_gradient_norm=1.0))
    return policy, values


def test_each_run_has_noise_of_its_own_and_leaves_the_global_stream_alone(tmp_path: Path) -> None:
    chain = trained(tmp_path, grpo=tiny_updates(GRPO))
    with torch.random.fork_rng():
        torch.manual_seed(99)
        before = torch.get_rng_state()
        first = noisy_epoch(chain, 1)
        assert torch.equal(torch.get_rng_state(), before)
    same, other = noisy_epoch(chain, 1), noisy_epoch(chain, 1, kl_beta=0.18)
    assert same.values == first.values
    assert other.values["mean_ratio"] != first.values["mean_ratio"]


def tiny_updates(grpo: Grpo) -> Grpo:
    """Return settings whose first updates are too small to tell two betas apart by themselves."""
    return grpo.model_copy(update={"learning_rate": 1e-12})
