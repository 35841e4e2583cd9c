"""One optimizer update: against a slow loss over all logits, for every split, and without anything to learn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from slow_agent_loss import BY_TOKEN, slow_terms
from torch import Tensor
from trained_world import TINY

from lever_pipe.base.errors import TrainingError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.experiment.agent_training import AgentArm, AgentGrpo
from lever_pipe.intention.agent import policy as policies
from lever_pipe.intention.agent.policy import build_tiny, prepare_for_updates
from lever_pipe.intention.agent.scoring import score
from lever_pipe.intention.agent.update import TrainingSample, update

LENGTHS = (14, 9, 12, 11, 9, 13)
VOCABULARY = 63
PULLED = AgentArm(name="pulled", kl=0.3, entropy=0.05)


def training_samples() -> list[TrainingSample]:
    """Return six episodes whose earlier log-probabilities lie up to 0.6 from the policy's, so that clips cut."""
    numbers = torch.Generator().manual_seed(1)
    policy = build_tiny(TINY, VOCABULARY, 0)
    samples = []
    for length in LENGTHS:
        tokens = torch.randint(1, VOCABULARY, (length,), generator=numbers)
        positions = torch.arange(3, length)[torch.rand(length - 3, generator=numbers) < 0.6]
        with torch.no_grad():
            now = score(policy, [tokens], [positions], pad_id=0, temperature=1.0, entropies=False).log_probs
        shift = (torch.rand(2, len(positions), generator=numbers) - 0.5) * 1.2
        advantages = torch.randn(len(positions), generator=numbers)
        samples.append(TrainingSample(tokens, positions, advantages, now + shift[0], now + shift[1]))
    return samples


def run(samples: list[TrainingSample], arm: AgentArm, **settings: Any) -> tuple[Any, dict[str, float]]:
    """Return the policy after one update, with its gradients, and the measurements."""
    grpo = settings_of(**settings)
    policy = build_tiny(TINY, VOCABULARY, 0)
    prepare_for_updates(policy)
    optimiser = AdamW(policy, learning_rate=grpo.learning_rate, weight_decay=grpo.weight_decay)
    values = update(policy, optimiser, samples, arm=arm, grpo=grpo, pad_id=0, precision="float32")
    return policy, values


def settings_of(**settings: Any) -> AgentGrpo:
    """Return settings under which every clip cuts some token."""
    base = {"micro_batch": 2, "max_gradient_norm": 1e9, "weight_decay": 0.0, "dual_clip": 1.3}
    return AgentGrpo(**{**base, **settings})


def gradients(policy: Any) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in policy.named_parameters()}


def slow_loss(
    policy: Any, samples: list[TrainingSample], arm: AgentArm, grpo: AgentGrpo
) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of the specification, one token after the other, and the logits of each episode."""
    tokens, all_logits = [], []
    for sample in samples:
        logits = policy(input_ids=sample.tokens[None]).logits[0]
        logits.retain_grad()
        all_logits.append(logits)
        rows = (logits[sample.positions - 1] / grpo.temperature).log_softmax(dim=-1)
        mine, entropies = rows[range(len(rows)), sample.tokens[sample.positions]], -(rows.exp() * rows).sum(dim=-1)
        given = (mine, sample.behaviour, sample.reference, entropies, sample.advantages)
        tokens.append(torch.stack([*given, torch.ones_like(mine)]))
    clips = {name: getattr(grpo, name) for name in ("clip_low", "clip_high", "dual_clip")}
    by_token = dict(zip(BY_TOKEN, torch.cat(tokens, dim=1), strict=True))
    n_tokens = len(by_token["mask_BT"])
    return slow_terms({**by_token, **clips, "n_tokens": n_tokens, "kl": arm.kl, "entropy": arm.entropy})[
        "total"
    ], all_logits


@pytest.mark.parametrize(("temperature", "size"), [(1.0, 1), (0.8, 2), (1.0, 4), (1.0, 6)])
def test_gradients_are_those_of_the_slow_loss_however_it_is_cut(temperature: float, size: int) -> None:
    samples = training_samples()
    policy, values = run(samples, PULLED, temperature=temperature, micro_batch=size)
    slow = build_tiny(TINY, VOCABULARY, 0)
    loss, all_logits = slow_loss(slow, samples, PULLED, settings_of(temperature=temperature))
    loss.backward()
    assert values["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert values["clip_fraction"] > 0.1
    assert values["dual_clip_fraction"] > 0.01
    expected = gradients(slow)
    for name, gradient in gradients(policy).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=0, msg=name)
    assert values["grad_norm"] == pytest.approx(
        math.sqrt(sum(float((g**2).sum()) for g in expected.values())), abs=1e-5
    )
    for sample, logits in zip(samples, all_logits, strict=True):
        is_agents = torch.zeros(len(sample.tokens), dtype=torch.bool)
        is_agents[sample.positions - 1] = True
        assert logits.grad is not None
        assert not logits.grad[~is_agents].any()  # the environment's tokens
        assert logits.grad[is_agents].any()


@pytest.mark.parametrize("size", [1, 4])
def test_silenced_samples_take_part_and_move_nothing(size: int) -> None:
    samples = training_samples()
    policy, values = run(
        [each.silenced() if n % 2 else each for n, each in enumerate(samples)], PULLED, micro_batch=size
    )
    others, expected = run(samples[::2], PULLED)
    assert values == pytest.approx(expected, abs=1e-6)
    for name, gradient in gradients(policy).items():
        torch.testing.assert_close(gradient, gradients(others)[name], atol=1e-6, rtol=0, msg=name)
    still, nothing = run([each.silenced() for each in samples], PULLED, micro_batch=size, learning_rate=0.1)
    assert not any(nothing.values())
    before = build_tiny(TINY, VOCABULARY, 0).state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in still.state_dict().items())


def test_the_gradient_is_clipped_and_counted() -> None:
    _, free = run(training_samples(), PULLED)
    policy, values = run(training_samples(), PULLED, max_gradient_norm=free["grad_norm"] / 2)
    left = math.sqrt(sum(float((g**2).sum()) for g in gradients(policy).values()))
    assert (free["grad_clipped"], values["grad_clipped"]) == (0, 1)
    assert values["grad_norm"] == free["grad_norm"]
    assert left == pytest.approx(free["grad_norm"] / 2, abs=1e-4)


@pytest.mark.parametrize("field", ["advantages", "behaviour", "reference"])
def test_a_number_that_is_none_stops_before_the_step(field: str) -> None:
    samples = training_samples()
    samples[0] = replace(samples[0], **{field: torch.full_like(samples[0].advantages, math.nan)})
    policy = build_tiny(TINY, VOCABULARY, 0)
    optimiser = AdamW(policy, learning_rate=0.1, weight_decay=0.1)
    with pytest.raises(TrainingError, match="nan"):
        update(policy, optimiser, samples, arm=PULLED, grpo=AgentGrpo(), pad_id=0, precision="float32")
    before = build_tiny(TINY, VOCABULARY, 0).state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())


def test_a_large_policy_computes_again_what_it_does_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = training_samples()
    kept = run(samples, PULLED)
    monkeypatch.setattr(policies, "CHECKPOINT_ABOVE", 0)
    passes = []
    first = build_tiny(TINY, VOCABULARY, 0)
    monkeypatch.setattr(
        type(first.model.layers[0].mlp),
        "forward",
        counted(type(first.model.layers[0].mlp).forward, passes),
    )
    again = run(samples, PULLED)
    assert len(passes) == 2 * 3  # each of 3 micro-batches forward, and once more on the way back
    assert again[1] == pytest.approx(kept[1], abs=1e-6)
    assert not again[0].training


def counted(forward: Any, passes: list[int]) -> Any:
    def call(self: Any, *arguments: Any) -> Any:
        passes.append(1)
        return forward(self, *arguments)

    return call
