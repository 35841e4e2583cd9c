"""Warm start of a policy: supervised fine-tuning on dialogues of an imperfect agent with access to hidden details.

The demonstrator mostly asks for a slot that is still hidden, and sometimes wastes a question, asks for two slots or
stops early. Imitation teaches the policy to call the tool, and its mistakes leave room for improvement by RL.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lever_pipe.base.errors import DataError
from lever_pipe.base.optimiser import AdamW, require_finite
from lever_pipe.base.progress import Progress
from lever_pipe.base.seeding import generator
from lever_pipe.base.sums import sum_in_order
from lever_pipe.experiment.environment import Environment, Simulator
from lever_pipe.experiment.warm_start import WarmStart
from lever_pipe.intention.agent.policy import Precision, autocast, prepare_for_updates
from lever_pipe.intention.agent.scoring import cut, score
from lever_pipe.intention.codecs.protocol import ChatCodec, ToolCall
from lever_pipe.intention.environment import IntentionEnv
from lever_pipe.intention.lexicon import RELEVANT, inquiry
from lever_pipe.intention.records import Task
from lever_pipe.intention.simulators.protocol import UserSimulator
from lever_pipe.losses.schedules import scheduled_rate


class Demonstration(NamedTuple):
    """One dialogue of the demonstrator."""

    tokens: list[int]
    is_agent: list[bool]
    """Mask of the demonstrator's tokens."""
    reward: float
    """Sum over its turns."""


@dataclass(frozen=True)
class Demonstrator:
    """Generator of demonstrations on tasks of the embedded world."""

    codec: ChatCodec
    simulator: UserSimulator
    environment: Environment
    config: WarmStart
    max_context: int

    def hold(self, task: Task, rng: np.random.Generator) -> Demonstration:
        """Return one dialogue; it ends before the first message that exceeds the context.

        Raises:
            DataError: no turn of the agent fits the context.
        """
        env = IntentionEnv(task, self.simulator, self.environment, Simulator(kind="rule"))
        tokens = self.codec.prompt(task)
        is_agent = [False] * len(tokens)
        reward = 0.0
        for turn in range(self.environment.max_turns):
            call = None if rng.random() < self.config.early_stop else self._call(env, rng)
            spoken = self.codec.closing() if call is None else self.codec.call(call)
            if len(tokens) + len(spoken) > self.max_context:
                break
            tokens += spoken
            is_agent += [True] * len(spoken)
            is_last = turn == self.environment.max_turns - 1
            if call is None or (is_last and not self.environment.execute_last_turn):
                break
            result = env.step(call.choice, call.content)
            reward += result.reward
            feedback = self.codec.feedback(result.feedback, result.reward if self.environment.show_reward else None)
            if env.done or len(tokens) + len(feedback) >= self.max_context:
                break
            tokens += feedback
            is_agent += [False] * len(feedback)
        if not any(is_agent):
            raise DataError(
                f"task {task.id!r}: expected space for a turn after the request",
                found=f"{len(tokens)} of intention.model.max_context={self.max_context} tokens taken",
                do="Raise max_context.",
            )
        return Demonstration(tokens, is_agent, reward)

    def _call(self, env: IntentionEnv, rng: np.random.Generator) -> ToolCall:
        relevant = RELEVANT[env.task.category]
        hidden = [env.task.missing_details[i].description for i in env.remaining]
        slots = [_one_of(relevant if rng.random() < self.config.irrelevant else hidden, rng)]
        if rng.random() < self.config.double:
            second = _one_of(relevant, rng)
            slots += [second] if second not in slots else []
        return ToolCall("action", inquiry(*slots))


def _one_of(words: tuple[str, ...] | list[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]


MAX_GRADIENT_NORM = 1.0
LOWEST_RATE = 0.05
"""Learning rate at the start of the warm-up and at the end of the cosine, as a share of the peak."""
LONGEST_PER_ROW = 2
"""Width of a packed row in lengths of the longest dialogue. Wider rows fill better, but cost more attention."""

Batch = Sequence[Demonstration]


def draw_batches(demonstrator: Demonstrator, tasks: Sequence[Task]) -> Iterator[Batch]:
    """Yield the batches of all steps, with new demonstrations on random tasks."""
    config = demonstrator.config
    rng = generator(config.seed, "demonstrations")
    for _ in range(config.steps):
        yield [demonstrator.hold(tasks[int(rng.integers(len(tasks)))], rng) for _ in range(config.batch)]


def imitate(
    model: Any, batches: Iterator[Batch], config: WarmStart, *, pad_id: int, precision: Precision = "float32"
) -> Iterator[dict[str, float]]:
    """Train a model on demonstrations, and yield loss, learning rate and gradient norm of each step.

    The loss is the mean cross-entropy of a batch's agent tokens. A model from a folder is trained in micro-batches of
    this `precision`, and its steps also have `tokens_per_second`. The model is updated in place.
    """
    size = config.folder_micro_batch
    if size is not None:
        prepare_for_updates(model)
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
            started = time.perf_counter()
            for parameter in parameters:
                parameter.grad = None
            if size is None:
                loss = _backward(imitation_loss(model, batch, pad_id=pad_id))
            else:
                loss = sum_in_order(map(_backward, in_parts(model, batch, pad_id, size, precision)))
            norm = float(nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM))
            values = {"loss": loss, "learning_rate": optimiser.learning_rate, "grad_norm": norm}
            location = f"the warm start, step {step + 1}: "
            require_finite(values, where=location, do="Lower warm_start.learning_rate.")
            optimiser.step()
            if size is not None:
                values["tokens_per_second"] = _length(batch) / (time.perf_counter() - started)
            progress.update()
            yield values
    model.eval()


def _backward(loss: Tensor) -> float:
    """Add the gradient of a loss to the gradients of the parameters, and return the loss's value."""
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def in_parts(model: Any, batch: Batch, pad_id: int, size: int, precision: Precision = "float32") -> Iterator[Tensor]:
    """Yield the parts [] of the batch's `imitation_loss`, each of at most `size` dialogues of similar length.

    Only the logits of agent tokens are computed: with a large vocabulary, all logits would need more memory than all
    layers.
    """
    n_targets = sum(sum(dialogue.is_agent) for dialogue in batch)
    for indices in cut([len(dialogue.tokens) for dialogue in batch], size):
        tokens = [torch.tensor(batch[i].tokens) for i in indices]
        positions = [torch.tensor(batch[i].is_agent).nonzero().flatten() for i in indices]
        with autocast(model.device, precision):
            scored = score(model, tokens, positions, pad_id=pad_id, temperature=1.0, entropies=False, shared=True)
        yield -scored.log_probs.sum() / n_targets  # of the whole batch, so that the parts add up to its mean


def imitation_loss(model: Any, batch: Batch, *, pad_id: int) -> Tensor:
    """Return the mean negative log-probability of the batch's agent tokens, []."""
    packed = Packed(*(tensor.to(model.device) for tensor in pack(batch, pad_id=pad_id)))
    # Without a mask, transformers separates the dialogues of a row where the positions restart at 0.
    logits_RLV = model(input_ids=packed.ids, position_ids=packed.positions, use_cache=False).logits
    is_target_RL = packed.is_agent[:, 1:]
    return functional.cross_entropy(logits_RLV[:, :-1][is_target_RL].float(), packed.ids[:, 1:][is_target_RL])


class Packed(NamedTuple):
    """Dialogues concatenated in R rows of L positions."""

    ids: Tensor
    """[R, L]"""
    positions: Tensor
    """[R, L], starting at 0 in each dialogue and in the padding after them."""
    is_agent: Tensor
    """[R, L]"""


def pack(batch: Batch, *, pad_id: int) -> Packed:
    """Return the dialogues of a batch packed into rows of equal width, each in the first row with enough space.

    With one dialogue per row, almost half of all tokens would be padding. Batches of equal lengths would avoid padding,
    but train worse, because long dialogues differ in content: they ask more questions.
    """
    width = LONGEST_PER_ROW * max(len(dialogue.tokens) for dialogue in batch)
    rows: list[list[Demonstration]] = []
    # Longest first: short dialogues then fill the gaps.
    for dialogue in sorted(batch, key=lambda dialogue: -len(dialogue.tokens)):
        row = next((row for row in rows if _length(row) + len(dialogue.tokens) <= width), None)
        if row is None:
            rows.append(row := [])
        row.append(dialogue)
    width = max(map(_length, rows))  # often no row is filled to the limit
    packed = Packed(
        ids=torch.full((len(rows), width), pad_id),
        positions=torch.arange(width).repeat(len(rows), 1),
        is_agent=torch.zeros(len(rows), width, dtype=torch.bool),
    )
    for r, row in enumerate(rows):
        end = 0
        for dialogue in row:
            span = slice(end, end + len(dialogue.tokens))
            packed.ids[r, span] = torch.tensor(dialogue.tokens)
            packed.is_agent[r, span] = torch.tensor(dialogue.is_agent)
            end = span.stop
            # The padding restarts too, so that it counts as a further dialogue.
            packed.positions[r, end:] = torch.arange(width - end)
    return packed


def _length(row: Batch) -> int:
    return sum(len(dialogue.tokens) for dialogue in row)
