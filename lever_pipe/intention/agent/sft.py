"""Supervised fine-tuning on demonstrations: the warm start of the tiny policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lever_pipe.base.errors import TrainingError
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.progress import Progress
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.agent_config import WarmStart
from lever_pipe.intention.demonstrator import Demonstration, Demonstrator
from lever_pipe.intention.records import Task
from lever_pipe.losses.learning_rates import scheduled_rate

MAX_GRADIENT_NORM = 1.0
LOWEST_RATE = 0.05
"""At which the warm-up begins and the cosine ends, as a share of the peak."""
LONGEST_PER_ROW = 2
"""Width of a packed row in longest dialogues: wide enough to fill up, too narrow for attention to weigh."""

Batch = Sequence[Demonstration]


def draw_batches(demonstrator: Demonstrator, tasks: Sequence[Task], config: WarmStart) -> Iterator[Batch]:
    """Yield `config.steps` batches of fresh demonstrations on random tasks."""
    rng = generator(config.seed, "demonstrations")
    for _ in range(config.steps):
        yield [demonstrator.hold(tasks[int(rng.integers(len(tasks)))], rng) for _ in range(config.batch)]


def imitate(model: Any, batches: Iterator[Batch], config: WarmStart, *, pad_id: int) -> Iterator[dict[str, float]]:
    """Train a model to say what the demonstrators say; yield loss, learning rate and gradient norm of each step.

    The loss is the mean cross-entropy of a batch's agent tokens.

    Args:
        model: a causal language model, changed in place.
        batches: `config.steps` of them.
        config: optimiser settings.
        pad_id: token that fills short dialogues.

    Raises:
        TrainingError: a loss or a gradient is not finite.
    """
    optimiser = AdamW(model, learning_rate=config.learning_rate, weight_decay=config.weight_decay)
    parameters = list(optimiser.parameters.values())
    model.train()
    with Progress(config.steps, "imitate demonstrations") as progress:
        for step, batch in enumerate(batches):
            optimiser.learning_rate = scheduled_rate(
                step,
                config.steps,
                peak=config.learning_rate,
                kind="cosine",
                warmup_steps=config.warmup_steps,
                minimum=LOWEST_RATE,
            )
            loss = imitation_loss(model, batch, pad_id=pad_id)
            for parameter in parameters:
                parameter.grad = None
            loss.backward()  # type: ignore[no-untyped-call]
            norm = float(nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM))
            values = {"loss": float(loss.detach()), "learning_rate": optimiser.learning_rate, "grad_norm": norm}
            _require_finite(values, step)
            optimiser.step()
            progress.advance()
            yield values
    model.eval()


def imitation_loss(model: Any, batch: Batch, *, pad_id: int) -> Tensor:
    """Return the mean negative log-probability of the batch's agent tokens, []."""
    packed = Packed(*(tensor.to(model.device) for tensor in pack(batch, pad_id=pad_id)))
    # Without a mask, the model tells the dialogues of a row apart by positions that begin anew.
    logits_RLV = model(input_ids=packed.ids, position_ids=packed.positions, use_cache=False).logits
    is_target_RL = packed.is_agent[:, 1:]
    return functional.cross_entropy(logits_RLV[:, :-1][is_target_RL].float(), packed.ids[:, 1:][is_target_RL])


class Packed(NamedTuple):
    """Dialogues laid end to end in R rows of L places."""

    ids: Tensor
    """[R, L]"""
    positions: Tensor
    """[R, L], from 0 in each dialogue, and in the padding behind them."""
    is_agent: Tensor
    """[R, L]"""


def pack(batch: Batch, *, pad_id: int) -> Packed:
    """Return the dialogues of a batch in rows of one width; each goes to the first row with room for it.

    A row a dialogue would be almost half padding. Batches of one length would not, but they differ in content, as long
    dialogues ask more questions, and teach less.
    """
    width = LONGEST_PER_ROW * max(len(each.tokens) for each in batch)
    rows: list[list[Demonstration]] = []
    for each in sorted(batch, key=lambda each: -len(each.tokens)):
        row = next((row for row in rows if _length(row) + len(each.tokens) <= width), None)
        if row is None:
            rows.append(row := [])
        row.append(each)
    width = max(map(_length, rows))
    packed = Packed(
        ids=torch.full((len(rows), width), pad_id),
        positions=torch.arange(width).repeat(len(rows), 1),
        is_agent=torch.zeros(len(rows), width, dtype=torch.bool),
    )
    for r, row in enumerate(rows):
        place = 0
        for each in row:
            here = slice(place, place + len(each.tokens))
            packed.ids[r, here] = torch.tensor(each.tokens)
            packed.is_agent[r, here] = torch.tensor(each.is_agent)
            place = here.stop
            packed.positions[r, place:] = torch.arange(width - place)
    return packed


def _length(row: Batch) -> int:
    return sum(len(each.tokens) for each in row)


def _require_finite(values: dict[str, float], step: int) -> None:
    infinite = {name: value for name, value in values.items() if not math.isfinite(value)}
    if infinite:
        raise TrainingError(
            "the warm start: expected a finite loss and gradient",
            found=", ".join(f"{name} {value}" for name, value in infinite.items()) + f" at step {step + 1}",
            do="Lower warm_start.learning_rate.",
        )
