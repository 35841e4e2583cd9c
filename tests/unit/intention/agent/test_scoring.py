from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from trained_world import TINY
from transformers import LlamaConfig, LlamaForCausalLM

from lever_pipe.base.rowwise import rowwise
from lever_pipe.intention.agent.lessons import score
from lever_pipe.intention.agent.policy import build_tiny

LENGTHS = (9, 4, 12)
PLACES = [torch.tensor([3, 8]), torch.tensor([1]), torch.tensor([2, 5, 11])]
# Sums of 32 products in another order.
ROUNDING = 2e-6


def llama() -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    return rowwise(LlamaForCausalLM(LlamaConfig(vocab_size=63, num_key_value_heads=1, **sizes)).eval())


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


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("n_alike", [127, 128, 160])
def test_what_texts_begin_with_alike_is_read_once_and_moves_no_score_nor_gradient(kind: str, n_alike: int) -> None:
    model = {"qwen3": lambda: build_tiny(TINY, 63, 0), "llama": llama}[kind]()
    numbers = torch.Generator().manual_seed(0)
    start = torch.randint(1, 63, (n_alike,), generator=numbers)
    ends = [torch.randint(1, 63, (length,), generator=numbers) for length in LENGTHS]
    for number, end in enumerate(ends):
        end[0] = number  # no more than the start is alike
    texts = [torch.cat([start, end]) for end in ends]
    places = [torch.tensor([n_alike + 1]), torch.tensor([n_alike + 3]), torch.tensor([n_alike + 2, n_alike + 11])]
    seen: list[int] = []
    handle = model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].numel()))

    def scored(of: list[Tensor], at: list[Tensor]) -> tuple[list[float], list[Tensor]]:
        found = score(model, of, at, pad_id=0, temperature=0.7, entropies=False).log_probs
        weights = torch.arange(1.0, len(found) + 1) if len(found) > 1 else torch.tensor([float(len(values) + 1)])
        gradients = torch.autograd.grad((found * weights).sum(), list(model.parameters()))
        values.extend(found.tolist())
        return found.tolist(), list(gradients)

    values: list[float] = []
    together, gradients = scored(texts, places)
    values, alone = [], [torch.zeros_like(each) for each in model.parameters()]
    for text, chosen in zip(texts, places, strict=True):
        for place in chosen:
            _, single = scored([text], [place[None]])
            alone = [one + two for one, two in zip(alone, single, strict=True)]
    handle.remove()
    padded = max(map(len, texts))
    assert seen[0] == (3 * padded if n_alike < 128 else n_alike + 3 * (padded - n_alike))
    assert together == pytest.approx(values, abs=ROUNDING)
    for one, two in zip(gradients, alone, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-4)


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
