from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lever_pipe.intention.agent.generation import UNIFORMS_PER_DRAW, draw_tokens, uniforms

PROBABILITIES = [0.5, 0.0, 0.25, 0.25]
LOGITS = torch.tensor([[math.log(p) if p else -math.inf for p in PROBABILITIES]])


def sampled(uniform: float, logits: torch.Tensor = LOGITS, temperature: float = 1.0) -> int:
    tokens, _ = draw_tokens(logits, torch.tensor([uniform], dtype=torch.float64), temperature=temperature)
    return int(tokens)


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.4999, 0), (0.5001, 2), (0.7499, 2), (0.7501, 3), (1 - 2**-53, 3)]
)
def test_a_token_is_where_the_distribution_function_passes_the_number(uniform: float, token: int) -> None:
    # The function is 0.5, 0.5, 0.75, 1: token 1 is never passed at.
    assert sampled(uniform) == token


def test_temperature_divides_the_logits() -> None:
    # At 0.5 the probabilities 1/2, 1/4, 1/4 become proportional to their squares: 2/3, 1/6, 1/6.
    assert [sampled(u, temperature=0.5) for u in (0.66, 0.67, 0.83, 0.84)] == [0, 2, 2, 3]
    _, log_probs = draw_tokens(LOGITS, torch.tensor([0.9], dtype=torch.float64), temperature=0.5)
    assert float(log_probs) == pytest.approx(math.log(1 / 6), abs=1e-7)  # the logits are float32


@given(
    logits=st.lists(st.floats(-30, 30), min_size=2, max_size=8),
    impossible=st.sets(st.integers(0, 7), max_size=5),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_no_impossible_token_is_drawn(logits: list[float], impossible: set[int], uniform: float) -> None:
    masked = [-math.inf if i in impossible else value for i, value in enumerate(logits)]
    if all(math.isinf(value) for value in masked):
        return
    tokens, log_probs = draw_tokens(torch.tensor([masked]), torch.tensor([uniform], dtype=torch.float64), temperature=1)
    assert int(tokens) < len(masked)
    assert math.isfinite(masked[int(tokens)])
    expected = torch.tensor(masked).double().log_softmax(0)[int(tokens)]
    assert float(log_probs) == pytest.approx(float(expected), abs=1e-12)  # float64 throughout


def test_a_row_depends_on_its_own_numbers_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 63, generator=generator)
    numbers = torch.rand(50, dtype=torch.float64, generator=generator)
    together, log_probs = draw_tokens(logits, numbers, temperature=0.8)
    for i in range(50):
        alone, log_prob = draw_tokens(logits[i : i + 1], numbers[i : i + 1], temperature=0.8)
        assert alone == together[i]
        assert float(log_prob) == pytest.approx(float(log_probs[i]), abs=1e-12)  # float64 throughout


def test_numbers_come_one_by_one_from_the_stream() -> None:
    n = 2 * UNIFORMS_PER_DRAW + 3
    numbers = uniforms(np.random.default_rng(7))
    assert [next(numbers) for _ in range(n)] == [np.random.default_rng(7).random(n)[i] for i in range(n)]
