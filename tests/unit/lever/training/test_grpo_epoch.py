from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import small_selectors
import torch
from chains import LIMITS, Chain
from small_selectors import NOISY, table

from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.torch_streams import ambient_stream, torch_generator
from lever_pipe.experiment.grpo import AdaptiveKl, Grpo
from lever_pipe.lever.selector.embeddings import FrozenSelector
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training.best import keep_best
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.grpo import grpo_epoch, grpo_step, reference_log_probs
from lever_pipe.lever.training.loop import Step, Updates

LEVELS = [0.0, 1.6, 2.0, 0.0, 1.6, 2.0]


def selector(seed: int = 0) -> PointerSelector:
    return small_selectors.selector(seed, **NOISY)


def groups(rewards: list[list[float]]) -> Groups:
    return small_selectors.groups(len(rewards), shots=2, size=8, rewards=torch.tensor(rewards))


def take_step(
    batch: Groups, *, policy: PointerSelector, kl_beta: float = 0.15, k: int = 5
) -> tuple[torch.Tensor, dict[str, float]]:
    selected, advantages = keep_best(batch, k, **LIMITS)
    scores, anchored = (
        table().scores(policy, selected),
        reference_log_probs(FrozenSelector(selector(), table()), selected),
    )
    step = grpo_step(scores, anchored, selected, advantages, kl_beta=kl_beta, clip_epsilon=0.2)
    return step.loss, step.values


def test_neither_policy_runs_with_dropout() -> None:
    means, batch = [], groups([LEVELS, LEVELS[::-1]])
    for stream in ("a", "b"):
        policy, reference = selector(3).train(), FrozenSelector(selector().train(), table())
        updates = Updates(policy, AdamW(policy, learning_rate=1e-3, weight_decay=0.0), max_gradient_norm=1.0)
        with ambient_stream(0, stream):
            grpo_epoch(
                updates, reference, table(), (batch, batch.rewards - 0.5),
                kl_beta=0.1, settings=Grpo(batch_queries=1), generator=torch_generator(0),
            )  # fmt: skip
        means.append(updates.means())
    assert means[0] == means[1]


def test_a_step_is_the_published_formula() -> None:
    """Recompute loss and metrics of one group, selection by selection, from the two policies' scores."""
    batch, policy = groups([LEVELS]), selector(3)
    _, values = take_step(batch, policy=policy, kl_beta=0.5, k=3)
    rewards = torch.tensor(LEVELS, dtype=torch.float64)
    z = (rewards - rewards.mean()) / rewards.std()
    best = sorted(range(6), key=lambda i: -LEVELS[i])[:3]  # 2, 5 (reward 2.0) and 1 (the first 1.6)
    assert best == [2, 5, 1]
    selected = z[best]
    advantages = (selected - selected.mean()) / selected.std()
    log_probs = []
    for module in (policy, selector()):
        scores = table().scores(module, batch).detach().double()[0]
        total = []
        for i in best:
            first, second = batch.selections[0, i].tolist()
            rest = torch.cat([scores[:second], scores[second:]])
            rest[first] = -100.0
            total.append(scores.log_softmax(0)[first] + rest.log_softmax(0)[second])
        log_probs.append(torch.stack(total))
    ratio = (log_probs[0] - log_probs[1]).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    assert values["ppo_loss"] == pytest.approx(float(-surrogate.mean()), rel=1e-4)
    assert values["kl"] == pytest.approx(float((ratio - 1 - ratio.log()).mean()), rel=1e-4)
    assert values["mean_ratio"] == pytest.approx(float(ratio.mean()), rel=1e-5)
    assert values["max_advantage"] == pytest.approx(float(advantages.abs().max()), rel=1e-5)


def padded(batch: Groups) -> Groups:
    """Return the same groups with two invalid selections each, holding the best reward of all."""
    n, _, shots = batch.selections.shape
    return replace(
        batch,
        selections=torch.cat([batch.selections, torch.ones(n, 2, shots, dtype=torch.long)], dim=1),
        rewards=torch.cat([batch.rewards, torch.full((n, 2), 99.0)], dim=1),
        valid=torch.cat([batch.valid, torch.zeros(n, 2, dtype=torch.bool)], dim=1),
    )


@pytest.mark.parametrize("k", [3, 8])
def test_padding_changes_nothing(k: int) -> None:
    batch = groups([LEVELS, [1.6] * 6, [0.0, 0.0, 0.0, 0.0, 2.0, 1.6]])
    results = []
    for given in (batch, padded(batch)):
        policy = selector(3)
        loss, values = take_step(given, policy=policy, k=k)
        loss.backward()  # type: ignore[no-untyped-call]
        results.append((values, [p.grad for p in policy.parameters()]))
    (plain, gradients), (with_padding, same_gradients) = results
    assert with_padding == pytest.approx(plain, rel=1e-5, abs=1e-7)  # sums over more zeros, grouped otherwise
    for one, other in zip(gradients, same_gradients, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("adaptive", [None, AdaptiveKl(low=1e-4, high=2e-4, factor=1.5)])
def test_the_weight_follows_the_penalty_of_each_batch(adaptive: AdaptiveKl | None) -> None:
    policy, weights, penalties = selector(), list[float](), list[float]()

    class Watched(Updates):
        def take(self, step: Step, n_queries: int) -> None:
            penalties.append(step.values["kl"])
            weights.append(step.values["kl_loss"] / step.values["kl"] if step.values["kl"] else math.nan)
            super().take(step, n_queries)

    updates = Watched(policy, AdamW(policy, learning_rate=1e-3, weight_decay=0.0), max_gradient_norm=1.0)
    anchor, batch = FrozenSelector(selector(), table()), groups([LEVELS, LEVELS[::-1]] * 3)
    settings = Grpo(batch_queries=1, adaptive_kl=adaptive)
    selected = batch, batch.rewards - 0.5
    last = grpo_epoch(updates, anchor, table(), selected, kl_beta=0.12, settings=settings, generator=torch_generator(0))
    expected = [0.12]
    for penalty in penalties:
        factor = 1.0 if adaptive is None else 1.5 if penalty > 2e-4 else 1 / 1.5 if penalty < 1e-4 else 1.0
        expected.append(expected[-1] * factor)
    assert penalties[0] == 0
    assert len(penalties) == 6
    assert weights[1:] == pytest.approx(expected[1:-1])
    assert last == pytest.approx(expected[-1])
    assert (len(set(expected)) > 1) == (adaptive is not None)


def test_the_epoch_logs_the_identities(tmp_path: Path) -> None:
    chain = Chain(tmp_path, grpo=Grpo(batch_queries=3, learning_rate=1e-2))
    chain.initialise()
    chain.epoch("rce", 1)
    for epoch, k in ((1, 3), (2, 5)):
        values = chain.epoch("grpo", epoch, kl_beta=0.12).values
        assert values["kl"] > 0
        assert values["kl_loss"] == pytest.approx(0.12 * values["kl"], rel=1e-6)
        assert values["loss"] == pytest.approx(values["ppo_loss"] + values["kl_loss"], rel=1e-4)
        # every fourth of the 16 train groups is a tie; three best of 1, 1, .6, .6, 0, 0 differ, and so do five
        assert values["gradient_share"] == pytest.approx(0.75, abs=1e-6), k
        assert values["std_advantage"] == pytest.approx(0.75, abs=1e-6)
        assert abs(values["mean_advantage"]) < 1e-6
