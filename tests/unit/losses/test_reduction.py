from __future__ import annotations

import math

import torch

from lever_pipe.losses.reduction import (
    group_has_spread,
    group_means,
    group_standard_deviations,
    masked,
    mean_of_group_means,
    mean_over_queries,
)

VALUES = torch.tensor([[1.0, 3.0, 99.0], [4.0, 99.0, 99.0], [99.0, 99.0, 99.0]])
VALID = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])


def test_every_query_weighs_the_same_and_empty_ones_nothing() -> None:
    # Means 2 and 4 (the third query is empty): 3. A mean over selections would be 8/3.
    assert group_means(VALUES, VALID).tolist() == [2.0, 4.0, 0.0]
    assert mean_of_group_means(VALUES, VALID).item() == 3.0
    assert mean_over_queries(torch.tensor([2.0, 4.0, math.nan]), VALID).item() == 3.0
    assert mean_of_group_means(VALUES, torch.zeros_like(VALID)).item() == 0.0


def test_standard_deviation_is_unbiased_and_zero_without_spread() -> None:
    # Values 1, 3: variance 2 (divisor 1).
    deviations = group_standard_deviations(VALUES, VALID)
    assert deviations.tolist() == torch.tensor([2.0, 0.0, 0.0]).sqrt().tolist()
    assert group_has_spread(VALUES, VALID).tolist() == [True, False, False]
    equal = torch.full((1, 12), 1.6)
    assert group_standard_deviations(equal, torch.ones(1, 12).bool()).item() == 0.0


def test_masked_keeps_infinities_out_of_values_and_gradients() -> None:
    values = torch.tensor([1.0, 800.0], requires_grad=True)
    masked(values, torch.tensor([True, False])).exp().sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [torch.tensor(1.0).exp().item(), 0.0]
