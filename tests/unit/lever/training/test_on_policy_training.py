from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from small_selectors import N_KINDS, groups_of_kinds, selector, table, table_of_kinds
from torch import Tensor

from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import ExampleId
from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.experiment.on_policy import AdvantageName, OnPolicy
from lever_pipe.lever.selector.embeddings import FrozenSelector
from lever_pipe.lever.selector.network import PointerSelector
from lever_pipe.lever.training import on_policy
from lever_pipe.lever.training.draws import SampledSelections
from lever_pipe.lever.training.groups import Groups
from lever_pipe.lever.training.loop import Step, Updates
from lever_pipe.lever.training.on_policy import (
    BatchResult,
    EpochSettings,
    ScoredSelection,
    advantages_of,
    draw_groups,
    on_policy_epoch,
    on_policy_step,
)
from lever_pipe.losses.kl import selection_divergence
from lever_pipe.losses.sequence import selection_log_probs, step_logits
from lever_pipe.lvlms.asking.prompts import PromptIds

N_EXAMPLES, K = 40, 7
STILL = 1e-30
"""A learning rate that moves no weight."""


def queries(n: int) -> Groups:
    """Return n queries with their pools; their stored selections are of no legal kind, as nothing may read them."""
    pools = torch.stack([torch.randperm(N_EXAMPLES, generator=torch_generator(2, i))[:K] for i in range(n)])
    nothing = torch.full((n, 2), torch.nan)
    return Groups(torch.arange(n) + 3, pools, torch.full((n, 2, 2), -1), nothing, torch.zeros(n, 2, dtype=torch.bool))


def worth(prompt: PromptIds) -> ScoredSelection:
    """Return a reward that depends on the query, the demonstrations, their order and their number."""
    query, chosen = prompt
    code = query + sum((position + 1) * (example + 1) for position, example in enumerate(chosen))
    return ScoredSelection(math.sin(code), float(code % 3 == 0))


@dataclass
class Recorder:
    """A scorer that records its requests, call by call."""

    of: Callable[[PromptIds], ScoredSelection] = worth
    calls: list[list[PromptIds]] = field(default_factory=list)

    def __call__(self, prompts: Sequence[PromptIds]) -> list[ScoredSelection]:
        self.calls.append(list(prompts))
        return [self.of(one) for one in prompts]


@dataclass
class Run:
    """The results of one epoch; `steps` lists each optimizer step's batch, logged values and learning rate."""

    policy: PointerSelector
    values: dict[str, float]
    steps_done: list[BatchResult]
    scorer: Recorder
    steps: list[tuple[Groups, dict[str, float], float]]


def epoch(
    settings: OnPolicy,
    *,
    n: int = 16,
    kl_beta: float = 0.1,
    clips: bool = True,
    number: int = 1,
    policy: PointerSelector | None = None,
    scorer: Recorder | None = None,
    head: str = "static",
) -> Run:
    """Run one epoch from the selector of seed 0, or go on with `policy`."""
    module, scorer = policy or selector(head=head), scorer or Recorder()
    adam = AdamW(module, learning_rate=1.0, weight_decay=settings.weight_decay)
    seen: list[tuple[Groups, dict[str, float], float]] = []

    def seeing(sampled: SampledSelections, *words: Any) -> Step:
        taken = on_policy_step(sampled, *words)
        seen.append((sampled.groups, taken.values, adam.learning_rate))
        return taken

    updates = Updates(module, adam, max_gradient_norm=1.0)
    steps = on_policy_epoch(
        updates, FrozenSelector(selector(head=head), table()), table(), queries(n), scorer,
        EpochSettings(settings, number, kl_beta, clips), torch_generator(0, "on policy", number),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_policy, "on_policy_step", seeing)
        steps_done = list(steps)
    return Run(module, updates.means(), steps_done, scorer, seen)


def sampled_of(
    settings: OnPolicy, *, n: int = 8, head: str = "static", seed: int = 3
) -> tuple[PointerSelector, SampledSelections]:
    """Return a policy that differs from its anchor, the selector of seed 0, and the groups that it draws."""
    policy = selector(seed, head=head)
    with torch.no_grad():
        return policy, draw_groups(policy, table(), queries(n), Recorder(), settings, torch_generator(5))


SETTINGS = OnPolicy(batch_queries=8, group=4, learning_rate=1e-2)
GIVEN = EpochSettings(SETTINGS, 1, kl_beta=0.5)


def test_every_selection_gets_the_verdict_on_itself() -> None:
    _, sampled = sampled_of(SETTINGS)
    pools = queries(8).pools
    for row in range(8):
        length = 1 + row % 4
        for draw in range(4):
            picks = sampled.groups.selections[row, draw, :length]
            prompt = (ExampleId(row + 3), tuple(ExampleId(int(i)) for i in pools[row, picks]))
            assert len(set(picks.tolist())) == length
            assert sampled.groups.rewards[row, draw].item() == pytest.approx(worth(prompt).reward, abs=1e-6)  # float32
            assert sampled.accuracies[row, draw].item() == worth(prompt).accuracy
            assert sampled.taken[row, draw].tolist() == [step < length for step in range(4)]
    assert torch.equal(sampled.groups.queries, torch.arange(8) + 3)
    assert torch.equal(sampled.groups.pools, pools)
    assert sampled.groups.valid.all()
    assert 0 < float(sampled.accuracies.mean()) < 1


@pytest.mark.parametrize("shots", [(1, 2, 3, 4), (2,), (1, 3)])
def test_the_lengths_of_a_batch_are_even(shots: tuple[int, ...]) -> None:
    run = epoch(OnPolicy(batch_queries=12, group=3, shots=shots, learning_rate=STILL), n=36)
    assert len(run.scorer.calls) == 3
    for call in run.scorer.calls:
        lengths = [len(chosen) for _, chosen in call]
        assert Counter(lengths) == dict.fromkeys(shots, 12 // len(shots) * 3)
        by_query = {query: {len(chosen) for other, chosen in call if other == query} for query, _ in call}
        assert all(len(found) == 1 for found in by_query.values())  # a group has one length


def scores_of(policy: PointerSelector, batch: Groups) -> tuple[Tensor, Tensor]:
    """Return the logits of policy and anchor as a step takes them."""
    anchor = FrozenSelector(selector(head=policy.architecture.head), table())
    return table().scores(policy, batch, may_stop=True), anchor.scores(batch, may_stop=True)


@pytest.mark.parametrize("head", ["static", "gru"])
def test_log_probabilities_and_divergence_are_those_of_the_cut_selections(head: str) -> None:
    policy, sampled = sampled_of(SETTINGS, head=head)
    advantages = advantages_of(sampled.groups, SETTINGS)
    scores = scores_of(policy, sampled.groups)
    step = on_policy_step(sampled, advantages, *scores, GIVEN)
    divergences, steps = [], 0
    for row in range(8):
        length = 1 + row % 4
        one = sampled.groups.take(torch.tensor([row]))
        one = replace(one, selections=one.selections[..., :length])
        scores, anchor = scores_of(policy, one)
        expected = selection_log_probs(scores, one.selections)
        # 1e-5: the same sums in float32, in another shape
        torch.testing.assert_close(sampled.log_probs[row], expected[0].detach(), rtol=1e-5, atol=1e-5)
        found = selection_divergence(step_logits(scores, one.selections), step_logits(anchor, one.selections))
        divergences.append(found.mean().detach())
        steps += 4 * length
    mean = float(torch.stack(divergences).mean())
    total = float(sum(4 * one for one in divergences))
    assert mean > 0.01
    assert step.values["kl"] == pytest.approx(mean, rel=1e-4)
    assert step.values["kl_exact"] == pytest.approx(total / steps, rel=1e-4)
    assert step.values["kl_loss"] == 0.5 * step.values["kl"]
    assert float(step.loss.detach()) == pytest.approx(step.values["ppo_loss"] + step.values["kl_loss"], abs=1e-6)
    assert step.values["mean_ratio"] == 1.0
    assert step.values["clip_fraction"] == 0.0


def test_what_is_logged_of_a_batch() -> None:
    policy, sampled = sampled_of(SETTINGS)
    sampled = replace(sampled, accuracies=torch.tensor([[0.0, 1.0, 0.0, 1.0], *[[1.0] * 4] * 3, *[[0.0] * 4] * 4]))
    sampled.groups.rewards[5] = 0.25  # one tie
    advantages = advantages_of(sampled.groups, SETTINGS)
    scores = scores_of(policy, sampled.groups)
    step = on_policy_step(sampled, advantages, *scores, GIVEN)
    assert step.values["accuracy"] == pytest.approx(100 * 14 / 32)
    assert step.values["gradient_share_hard"] == 1 / 8
    assert step.values["gradient_share"] == 7 / 8
    assert step.values["reward"] == pytest.approx(float(sampled.groups.rewards.double().mean()), rel=1e-5)
    probabilities = table().scores(policy, sampled.groups).detach().softmax(dim=-1)
    expected = float(-(probabilities * probabilities.log()).sum(dim=-1).mean())
    assert step.values["entropy"] == pytest.approx(expected, rel=1e-5)


def test_a_batch_is_drawn_once_by_the_policy_as_it_then_is() -> None:
    run = epoch(replace_in(SETTINGS, updates=3), n=20)
    assert [len(call) for call in run.scorer.calls] == [32, 32, 16]  # 8, 8 and 4 queries, 4 selections each
    assert len(run.steps) == 9
    for number in range(3):
        batches = [batch for batch, _, _ in run.steps[3 * number : 3 * number + 3]]
        assert batches[0] is batches[1] is batches[2]
        ratios = [values["mean_ratio"] for _, values, _ in run.steps[3 * number : 3 * number + 3]]
        assert ratios[0] == 1.0  # the sampling policy is the learning policy, bit for bit
        assert 1.0 not in ratios[1:]
    penalties = [values["kl"] for _, values, _ in run.steps]
    assert penalties[0] == 0.0  # the anchor itself drew the first batch
    assert min(penalties[1:]) > 0
    assert sorted(q for batch, _, _ in run.steps[::3] for q in batch.queries.tolist()) == list(range(3, 23))


def replace_in(settings: OnPolicy, **changed: Any) -> OnPolicy:
    return OnPolicy.model_validate(settings.model_dump() | changed)


OTHERS: list[dict[str, Any]] = [
    {"kl_beta": 10.0},
    {"kl_beta": 0.0, "clips": False},
    {"updates": 1, "advantages": "batch", "clips": False, "kl_beta": 0.0},
    {"updates": 4},
    {"advantages": "centred", "clip_epsilon": 0.01},
    {"kl_form": "k2_loss", "clip_high": 0.4},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_the_stream_of_draws_does_not_depend_on_what_is_learned(other: dict[str, Any]) -> None:
    how = {name: other[name] for name in ("kl_beta", "clips") if name in other}
    what = {name: value for name, value in other.items() if name not in how}
    first, second = epoch(SETTINGS), epoch(replace_in(SETTINGS, **what), **how)
    assert second.scorer.calls[0] == first.scorer.calls[0]
    still = {"learning_rate": STILL}
    first, second = epoch(replace_in(SETTINGS, **still)), epoch(replace_in(SETTINGS, **still, **what), **how)
    assert second.scorer.calls == first.scorer.calls  # policies that agree share all their prompts
    assert epoch(SETTINGS, number=2).scorer.calls[0] != first.scorer.calls[0]


def test_steps_count_the_different_prompts_so_far() -> None:
    run = epoch(replace_in(SETTINGS, shots=(1,)), n=20)
    assert [one.step for one in run.steps_done] == [0, 1, 2]
    met: set[PromptIds] = set()
    for one, call in zip(run.steps_done, run.scorer.calls, strict=True):
        met |= set(call)
        assert one.prompts == len(met)
    assert run.steps_done[-1].prompts < sum(len(call) for call in run.scorer.calls)  # some selections were drawn twice
    # what is reported of a batch is what its first step says; the epoch's means are over all steps, by queries
    assert [one.values for one in run.steps_done] == [values for _, values, _ in run.steps[::2]]
    for name in ("reward", "kl", "mean_ratio", "ppo_loss"):
        weighed = sum(values[name] * len(batch) for batch, values, _ in run.steps) / (2 * 20)
        assert run.values[name] == pytest.approx(weighed, rel=1e-9)


def test_the_learning_rate_falls_over_the_horizon() -> None:
    settings = replace_in(SETTINGS, learning_rate=1e-3, final_learning_rate_share=0.2, horizon_epochs=2)
    rates = [[rate for _, _, rate in epoch(settings, number=number).steps] for number in (1, 2, 3)]
    # two batches an epoch, two updates each: progress 0, 1/3, 2/3, 1 and 1 from then on; cos(pi / 3) = 1/2
    expected = [1.0, 0.2 + 0.8 * 0.75, 0.2 + 0.8 * 0.25, 0.2, 0.2, 0.2]
    assert [rate for one in rates for rate in one] == pytest.approx([1e-3 * share for share in expected for _ in "ab"])
    constant = [rate for _, _, rate in epoch(replace_in(SETTINGS, horizon_epochs=2), number=2).steps]
    assert constant == [1e-2] * 4


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # rewards 0 0 1 3 and 1 1 1 1: mean 1, unbiased variance (1 + 1 + 0 + 4) / 3 = 2
        ("standardised", [[-1 / math.sqrt(2)] * 2 + [0, math.sqrt(2)], [0.0] * 4]),
        ("centred", [[-1, -1, 0, 2], [0.0] * 4]),
        ("leave_one_out", [[-4 / 3, -4 / 3, 0, 8 / 3], [0.0] * 4]),
        ("batch", [[-1, -1, 0, 2], [0.0] * 4]),  # each mean is 1, so the other query's too
    ],
)
def test_the_advantages_are_those_of_the_rule(rule: AdvantageName, expected: list[list[float]]) -> None:
    _, sampled = sampled_of(SETTINGS, n=2)
    groups = replace(sampled.groups, rewards=torch.tensor([[0.0, 0.0, 1.0, 3.0], [1.0] * 4]))
    torch.testing.assert_close(advantages_of(groups, replace_in(SETTINGS, advantages=rule)), torch.tensor(expected))
    moved = replace(groups, rewards=groups.rewards + torch.tensor([[0.0], [1.0]]))
    if rule == "batch":
        assert advantages_of(moved, replace_in(SETTINGS, advantages=rule))[0].tolist() == [-2, -2, -1, 1]
    limits = replace_in(SETTINGS, advantage_std_floor=2.0, advantage_clamp=0.75)
    if rule == "standardised":
        assert advantages_of(groups, limits)[0].tolist() == [-0.5, -0.5, 0.0, 0.75]  # 2 / 2 = 1, clamped


def test_only_the_clipped_objective_clips() -> None:
    settings = replace_in(SETTINGS, clip_epsilon=0.001, learning_rate=0.1, updates=3)
    assert epoch(settings).values["clip_fraction"] > 0.1
    assert epoch(settings, clips=False).values["clip_fraction"] == 0.0
    higher = epoch(replace_in(settings, clip_high=9.0)).values["clip_fraction"]
    assert 0 < higher < epoch(settings).values["clip_fraction"]


def next_kind(prompt: PromptIds) -> ScoredSelection:
    """Reward by the share of demonstrations whose kind follows the query's."""
    query, chosen = prompt
    share = sum(example % N_KINDS == (query + 1) % N_KINDS for example in chosen) / len(chosen)
    return ScoredSelection(share, float(share == 1))


def expected_share(module: PointerSelector, groups: Groups) -> float:
    """Return the exact expected reward of one shot: the probability of a first pick of the right kind."""
    probabilities = table_of_kinds(N_EXAMPLES).scores(module, groups).softmax(dim=-1)
    right = groups.pools % N_KINDS == (groups.queries[:, None] + 1) % N_KINDS
    return float((probabilities * right).sum(dim=1).mean().detach())


def queries_in(run: Run) -> set[int]:
    """Return the queries that an epoch drew for."""
    return {query for call in run.scorer.calls for query, _ in call}


def test_an_epoch_of_some_queries_is_the_start_of_one_of_all() -> None:
    some, every, later = (epoch(replace_in(SETTINGS, queries=n), number=at) for n, at in ((12, 1), (None, 1), (12, 2)))
    assert [len(batch.queries) for batch, *_ in some.steps[::2]] == [8, 4]
    assert some.scorer.calls[0] == every.scorer.calls[0]
    assert queries_in(some) != queries_in(later)


@pytest.mark.parametrize(
    ("rule", "clips"), [("standardised", True), ("leave_one_out", True), ("centred", True), ("batch", False)]
)
def test_it_learns_what_the_scorer_rewards(rule: AdvantageName, clips: bool) -> None:
    settings = OnPolicy(batch_queries=8, group=8, shots=(1, 2), learning_rate=2e-2, advantages=rule)
    settings = replace_in(settings, updates=2 if clips else 1)
    module, table, groups = selector(), table_of_kinds(N_EXAMPLES), groups_of_kinds(24, N_EXAMPLES)
    adam = AdamW(module, learning_rate=1.0, weight_decay=0.0)
    # A quarter of each pool is right, and the untrained policy prefers the query's own kind.
    before = expected_share(module, groups)
    assert before < 1 / N_KINDS
    rewards = []
    for number in range(1, 13):
        updates = Updates(module, adam, max_gradient_norm=1.0)
        steps = on_policy_epoch(
            updates, FrozenSelector(selector(), table), table, groups, Recorder(next_kind),
            EpochSettings(settings, number, 0.0, clips), torch_generator(number),
        )  # fmt: skip
        assert len(list(steps)) == 3
        rewards.append(updates.means()["reward"])
    # No ranking that ignores the query is right for more than one kind of four: 1/4 on the average of all queries.
    # Values above 1/2 require a distinction of at least two kinds of queries.
    assert expected_share(module, groups) > 1 / 2
    assert rewards[-1] > 1 / 2 > rewards[0]


@pytest.mark.parametrize("head", ["static", "gru"])
def test_what_comes_after_a_selection_does_not_count(head: str) -> None:
    policy, sampled = sampled_of(SETTINGS, head=head)
    advantages = advantages_of(sampled.groups, SETTINGS)
    others = sampled.groups.selections.clone()
    for row, plugin in torch.cartesian_prod(torch.arange(8), torch.arange(4)).tolist():
        length = 1 + row % 4
        chosen = others[row, plugin, :length].tolist()
        rest = [position for position in range(K) if position not in chosen][::-1]
        others[row, plugin, length:] = torch.tensor(rest[: 4 - length], dtype=torch.long)
    assert not torch.equal(others, sampled.groups.selections)
    results = []
    for selections in (sampled.groups.selections, others):
        batch = replace(sampled.groups, selections=selections)
        step = on_policy_step(replace(sampled, groups=batch), advantages, *scores_of(policy, batch), GIVEN)
        gradients = torch.autograd.grad(step.loss, list(policy.parameters()), allow_unused=True)
        results.append((step.values, gradients))
    assert results[0][0] == results[1][0]
    for one, other in zip(results[0][1], results[1][1], strict=True):
        if one is not None and other is not None:
            assert torch.equal(one, other)
