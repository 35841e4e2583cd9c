from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from agent_doubles import CODEC, ENVIRONMENT, TASKS, demonstrations, rule_user
from hypothesis import given, settings
from hypothesis import strategies as st

from lever_pipe.base.errors import TrainingError
from lever_pipe.experiment.agent_model import TinyQwen3
from lever_pipe.experiment.agent_tasks import SyntheticTasks
from lever_pipe.experiment.warm_start import WarmStart
from lever_pipe.intention.agent.policy import build_tiny
from lever_pipe.intention.agent.warm_start import (
    Demonstration,
    Demonstrator,
    draw_batches,
    imitate,
    imitation_loss,
    in_parts,
    pack,
)
from lever_pipe.intention.sources import synthetic

TINY = TinyQwen3(hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24)
BATCH = demonstrations(7)


def tiny(seed: int = 0) -> Any:
    return build_tiny(TINY, CODEC.vocabulary_size, seed)


def demonstrator(config: WarmStart) -> Demonstrator:
    return Demonstrator(CODEC, rule_user(), ENVIRONMENT, config, max_context=256)


def one_by_one(model: Any, batch: list[Demonstration]) -> torch.Tensor:
    """Return the loss by its definition: each dialogue alone, its agent tokens, the mean over all of them."""
    terms = []
    for each in batch:
        log_probs = model(input_ids=torch.tensor([each.tokens])).logits[0].log_softmax(-1)
        terms += [-log_probs[i - 1, each.tokens[i]] for i, mine in enumerate(each.is_agent) if mine]
    return torch.stack(terms).mean()


def gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_micro_batches_have_the_loss_and_gradient_of_the_whole(size: int) -> None:
    model = tiny()
    parts, single = list(in_parts(model, BATCH, 0, size)), one_by_one(model, BATCH)
    assert len(parts) == math.ceil(len(BATCH) / size)
    # float32 sums in another order.
    assert float(sum(parts).detach()) == pytest.approx(float(single.detach()), abs=1e-5)  # type: ignore[union-attr]
    for ours, theirs in zip(gradients(model, sum(parts)), gradients(model, single), strict=True):  # type: ignore[arg-type]
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-5)


def test_what_the_agent_did_not_say_is_not_learned() -> None:
    seen: dict[str, torch.Tensor] = {}

    class Watched:
        device = torch.device("cpu")

        def __call__(self, **inputs: Any) -> Any:
            output = tiny()(**inputs)
            output.logits.retain_grad()
            seen["logits"] = output.logits
            return output

    imitation_loss(Watched(), BATCH, pad_id=0).backward()  # type: ignore[no-untyped-call]
    is_target = pack(BATCH, pad_id=0).is_agent[:, 1:]
    moved = seen["logits"].grad.abs().sum(-1) > 0  # type: ignore[union-attr]
    assert torch.equal(moved[:, :-1], is_target)
    assert not moved[:, -1].any()


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    shares=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_packing_loses_and_invents_nothing(lengths: list[int], shares: list[bool]) -> None:
    batch = [
        Demonstration([100 * (i + 1) + k for k in range(n)], [k > 0 and shares[k] for k in range(n)], 0.0)
        for i, n in enumerate(lengths)
    ]
    packed = pack(batch, pad_id=0)
    assert packed.ids.shape[1] <= 2 * max(lengths)
    found = {}
    for ids, positions, is_agent in zip(packed.ids, packed.positions, packed.is_agent, strict=True):
        for column in range(len(ids)):
            if ids[column] == 0:
                assert not is_agent[column]
            else:
                found[int(ids[column])] = (int(positions[column]), bool(is_agent[column]))
    expected = {
        token: (k, mine)
        for each in batch
        for k, (token, mine) in enumerate(zip(each.tokens, each.is_agent, strict=True))
    }
    assert found == expected
    assert int((packed.ids > 0).sum()) == sum(lengths)


def imitated(config: WarmStart, seed: int = 0) -> tuple[Any, list[dict[str, float]]]:
    model = tiny(seed)
    steps = list(imitate(model, draw_batches(demonstrator(config), TASKS), config, pad_id=CODEC.pad_id))
    return model, steps


def test_the_learning_rate_warms_up_and_falls() -> None:
    _, steps = imitated(WarmStart(steps=9, batch=2, warmup_steps=4, learning_rate=0.1))
    rates = [step["learning_rate"] for step in steps]
    # From a twentieth of the peak up in four steps, then half a cosine of five towards a twentieth.
    warm = [0.1 * (0.05 + 0.95 * i / 4) for i in range(4)]
    fall = [0.1 * (0.05 + 0.95 * (1 + math.cos(math.pi * i / 5)) / 2) for i in range(5)]
    assert rates == pytest.approx(warm + fall, abs=1e-12)


def test_a_loss_that_is_no_number_stops_it() -> None:
    config = WarmStart(steps=3, batch=2)
    model = tiny()
    torch.nn.init.constant_(model.get_input_embeddings().weight, math.nan)
    steps = imitate(model, draw_batches(demonstrator(config), TASKS), config, pad_id=CODEC.pad_id)
    with pytest.raises(TrainingError, match="step 1: "):
        list(steps)


# --- the demonstrator

MANY = synthetic.read(SyntheticTasks(n_train=300)).train


def knowing(*, max_context: int = 256, environment: dict[str, Any] | None = None, **rates: float) -> Demonstrator:
    rules = ENVIRONMENT.model_copy(update=environment or {})
    return Demonstrator(CODEC, rule_user(), rules, WarmStart(**rates), max_context=max_context)


def held(maker: Demonstrator, n: int = 300, seed: int = 0) -> list[Demonstration]:
    rng = np.random.default_rng(seed)
    return [maker.hold(MANY[i % len(MANY)], rng) for i in range(n)]


@pytest.mark.parametrize("max_context", [32, 40, 60])
def test_no_demonstration_outgrows_the_context(max_context: int) -> None:
    lengths = [len(each.tokens) for each in held(knowing(max_context=max_context), 200)]
    assert max(lengths) <= max_context
    assert max(lengths) > max_context - 9  # a turn that asks for two slots has 9 tokens
