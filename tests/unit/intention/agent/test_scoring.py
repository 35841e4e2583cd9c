from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from trained_world import TINY

from lever_pipe.intention.agent.lessons import score
from lever_pipe.intention.agent.policy import build_tiny

LENGTHS = (9, 4, 12)
PLACES = [torch.tensor([3, 8]), torch.tensor([1]), torch.tensor([2, 5, 11])]
# Sums of 32 products in another order.
ROUNDING = 2e-6


@pytest.fixture(scope="module")
def policy() -> Any:
    return build_tiny(TINY, 63, 0)


@pytest.fixture(scope="module")
def sequences() -> list[Tensor]:
    numbers = torch.Generator().manual_seed(0)
    return [torch.randint(1, 63, (length,), generator=numbers) for length in LENGTHS]


@torch.no_grad()
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_each_sequence_alone(policy: Any, sequences: list[Tensor], temperature: float) -> None:
    found = score(policy, sequences, PLACES, pad_id=0, temperature=temperature, entropies=True)
    log_probs, entropies = [], []
    for tokens, places in zip(sequences, PLACES, strict=True):
        rows = (policy(input_ids=tokens[None]).logits[0].double() / temperature).log_softmax(dim=-1)
        for place in places.tolist():
            log_probs.append(float(rows[place - 1, tokens[place]]))
            entropies.append(float(-(rows[place - 1].exp() * rows[place - 1]).sum()))
    assert found.log_probs.tolist() == pytest.approx(log_probs, abs=ROUNDING)
    assert found.entropies is not None
    assert found.entropies.tolist() == pytest.approx(entropies, abs=ROUNDING)


@torch.no_grad()
def test_the_output_layer_sees_the_chosen_places_alone(policy: Any, sequences: list[Tensor]) -> None:
    shapes = []
    layer = policy.get_output_embeddings()
    handle = layer.register_forward_hook(lambda _, inputs, output: shapes.append(tuple(output.shape)))
    score(policy, sequences, PLACES, pad_id=0, temperature=1.0, entropies=False)
    assert policy(input_ids=sequences[0][None]).logits.shape == (1, 9, 63)  # afterwards it sees all again
    handle.remove()
    assert shapes == [(1, 6, 63), (1, 9, 63)]


@torch.no_grad()
def test_what_fills_the_ends_changes_nothing(policy: Any, sequences: list[Tensor]) -> None:
    found = [score(policy, sequences, PLACES, pad_id=pad, temperature=1.0, entropies=False) for pad in (0, 7)]
    assert torch.equal(found[0].log_probs, found[1].log_probs)
    assert found[0].entropies is None


def test_only_states_before_chosen_places_get_a_gradient(policy: Any, sequences: list[Tensor]) -> None:
    """The loss never reaches the logits of other tokens: they are not even computed."""
    seen: list[Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        seen.append(output.last_hidden_state)

    handle = policy.base_model.register_forward_hook(keep)
    score(policy, sequences, PLACES, pad_id=0, temperature=1.0, entropies=False).log_probs.sum().backward()
    handle.remove()
    assert seen[0].grad is not None
    touched = {(row, column + 1) for row, column in seen[0].grad.abs().sum(dim=-1).nonzero().tolist()}
    assert touched == {(row, int(place)) for row, places in enumerate(PLACES) for place in places}
