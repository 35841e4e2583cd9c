"""Log-probabilities and entropies of tokens, from their rows of logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lever_pipe.base.torch_streams import torch_generator
from lever_pipe.losses import vocabulary

TEMPERATURE = 0.7


def random_rows(name: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Logits [3, 5, 7] and targets [3, 5]."""
    random = torch_generator(0, "vocabulary", name)
    logits = torch.randn(3, 5, 7, generator=random, dtype=torch.float64) * 3
    return logits.to(dtype), torch.randint(0, 7, (3, 5), generator=random)


def plain_log_probs(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    return (logits / temperature).log_softmax(-1).gather(-1, targets[..., None])[..., 0]


def plain_entropies(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """The specification: logsumexp z - sum softmax(z) z."""
    z = logits / temperature
    return z.logsumexp(-1) - (z.softmax(-1) * z).sum(-1)


def gradients(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    leaf = logits.clone().requires_grad_()
    result = function(leaf)
    (result * torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view_as(result)).sum().backward()
    assert leaf.grad is not None
    gradient: Tensor = leaf.grad
    return gradient


def test_hand_derived_rows() -> None:
    # Logits ln 2, 0, 0 are the shares 1/2, 1/4, 1/4: entropy 1.5 ln 2.
    logits = torch.tensor([[[math.log(2), 0.0, 0.0], [5.0, 5.0, 5.0]]], dtype=torch.float64)
    picked = vocabulary.token_log_probs(logits, torch.tensor([[2, 0]]))
    assert picked.tolist() == [pytest.approx([-2 * math.log(2), -math.log(3)], abs=1e-15)]
    assert vocabulary.token_entropies(logits).tolist() == [pytest.approx([1.5 * math.log(2), math.log(3)], abs=1e-15)]
    # At temperature 1/2 the shares are 4/6, 1/6, 1/6.
    cold = vocabulary.token_entropies(logits, 0.5)[0, 0].item()
    assert cold == pytest.approx(2 / 3 * math.log(1.5) + math.log(6) / 3, abs=1e-15)
    assert vocabulary.token_log_probs(logits, torch.tensor([[2, 0]]), 0.5)[0, 0].item() == pytest.approx(-math.log(6))


def test_against_plain_autograd() -> None:
    logits, targets = random_rows("autograd")
    for temperature in (1.0, TEMPERATURE):
        pairs = (
            (partial(vocabulary.token_log_probs, targets_BT=targets), partial(plain_log_probs, targets=targets)),
            (vocabulary.token_entropies, plain_entropies),
        )
        for ours, plain in pairs:
            ours_t, plain_t = partial(ours, temperature=temperature), partial(plain, temperature=temperature)
            assert torch.allclose(ours_t(logits), plain_t(logits), atol=1e-12, rtol=0)
            assert torch.allclose(gradients(ours_t, logits), gradients(plain_t, logits), atol=1e-12, rtol=0)


WRONG: list[tuple[object, str, object]] = [
    (vocabulary, "token_log_probs", lambda z, targets_BT, temperature=1.0: plain_log_probs(z, targets_BT)),
    (
        vocabulary,
        "token_log_probs",
        lambda z, targets_BT, temperature=1.0: plain_log_probs(z, targets_BT.roll(1), temperature),
    ),
    (vocabulary, "token_entropies", lambda z, temperature=1.0: plain_entropies(z)),
    (vocabulary, "token_entropies", lambda z, temperature=1.0: plain_entropies(z, temperature) / math.log(2)),
    (
        vocabulary,
        "token_entropies",
        lambda z, temperature=1.0: plain_entropies(z.detach(), temperature) + 0 * z.sum(-1),
    ),
]


@pytest.mark.parametrize("size", [1, 3 * 7 * 2, 3 * 7 * 5])
def test_the_chunks_change_no_bit(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = random_rows("chunks", torch.float32)
    functions = (partial(vocabulary.token_log_probs, targets_BT=targets), vocabulary.token_entropies)
    whole = [(function(logits), gradients(function, logits)) for function in functions]
    monkeypatch.setattr(vocabulary, "_CHUNK", size)
    for function, (value, gradient) in zip(functions, whole, strict=True):
        assert torch.equal(function(logits), value)
        assert torch.equal(gradients(function, logits), gradient)


def test_half_precision_is_lifted_before_anything_is_computed() -> None:
    logits, targets = random_rows("bfloat16", torch.bfloat16)
    for function in (partial(vocabulary.token_log_probs, targets_BT=targets), vocabulary.token_entropies):
        assert function(logits).dtype == torch.float32
        assert torch.equal(function(logits), function(logits.float()))
        gradient = gradients(function, logits)
        assert gradient.dtype == torch.bfloat16
        assert torch.equal(gradient, gradients(function, logits.float()).bfloat16())


def test_autograd_keeps_the_given_logits_alone() -> None:
    logits, targets = random_rows("memory", torch.bfloat16)
    logits.requires_grad_()
    for function in (partial(vocabulary.token_log_probs, targets_BT=targets), vocabulary.token_entropies):
        saved: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t) or t, lambda t: t):  # type: ignore[misc]
            function(logits)
        assert sum(t.data_ptr() == logits.data_ptr() for t in saved) == 1
        assert max(t.numel() for t in saved if t.data_ptr() != logits.data_ptr()) == targets.numel()


@pytest.mark.parametrize("filler", [math.nan, math.inf, -math.inf])
def test_a_position_without_gradient_passes_exactly_none(filler: float) -> None:
    logits, targets = random_rows("idle")
    logits[:, 2] = filler
    logits.requires_grad_()
    used = torch.arange(5) != 2
    (
        vocabulary.token_log_probs(logits, targets)[:, used].sum() + vocabulary.token_entropies(logits)[:, used].sum()
    ).backward()
    assert logits.grad is not None
    assert (logits.grad[:, 2] == 0).all()
    assert logits.grad[:, used].abs().sum(-1).min() > 0


def test_a_word_that_is_ruled_out_costs_nothing() -> None:
    logits = torch.tensor([[[0.0, -math.inf, 0.0]]], requires_grad=True)
    entropy = vocabulary.token_entropies(logits)
    assert entropy.item() == pytest.approx(math.log(2), abs=1e-6)  # float32
    (entropy + vocabulary.token_log_probs(logits, torch.tensor([[0]]))).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[[0.5, 0.0, -0.5]]]


@settings(max_examples=50)
@given(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=9), st.floats(-50, 50, width=32))
def test_entropy_is_bounded_and_probabilities_add_up(row: list[float], shift: float) -> None:
    logits = torch.tensor([[row] * len(row)])
    every = torch.arange(len(row))[None]
    assert vocabulary.token_log_probs(logits, every).exp().sum().item() == pytest.approx(1, abs=1e-5)  # float32
    entropy = vocabulary.token_entropies(logits)[0, 0].item()
    assert 0 <= entropy <= math.log(len(row)) + 1e-5
    assert vocabulary.token_entropies(logits + shift)[0, 0].item() == pytest.approx(entropy, abs=1e-3)  # 250 in float32
