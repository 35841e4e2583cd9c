"""What a training step and an evaluation measure, each number from sums."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import torch
from torch import Tensor

from lever_pipe.intention.agent.lessons import Credit, Lesson
from lever_pipe.intention.agent.rollout import Episode, RolloutCounts
from lever_pipe.intention.agent.scoring import Scored
from lever_pipe.intention.records import EndReason
from lever_pipe.losses.credit import groups_without_spread
from lever_pipe.losses.tokens import distances_to_reference
from lever_pipe.metrics.throughput import dense_parameters, mfu, peak_flop, training_flop

END_REASONS: tuple[str, ...] = get_args(EndReason)
PHASES = ("step", "rollout", "simulator", "log_probs", "reference", "update", "validation", "checkpoint")
"""What is timed, in wall seconds. `step` leaves out validation and checkpoint, which the published seconds include
on the steps that have them."""
PER_EPISODE: dict[str, Callable[[Episode], float]] = {
    "reward": lambda episode: sum(episode.rewards),
    "reward_per_turn": lambda episode: sum(episode.rewards) / max(1, len(episode.rewards)),
    "normalised_reward": lambda episode: sum(episode.rewards) / episode.ceiling,
    "coverage": lambda episode: episode.coverage,
    "turns": lambda episode: len(episode.rewards),
    "sequence_length": lambda episode: len(episode.tokens),
    "prompt_length": lambda episode: episode.n_prompt,
    "response_length": lambda episode: len(episode.tokens) - episode.n_prompt,
    "agent_tokens": lambda episode: sum(episode.is_agent),
}
"""What one episode adds to each of these; a step has their means over sound episodes."""
ENDS = tuple(f"end_{reason}" for reason in END_REASONS)
"""Shares of all episodes."""
PER_AGENT_TOKEN = ("kl", "kl_k1", "entropy")


class Clock:
    """Wall seconds of named phases; a phase that is entered again goes on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the block's wall time to a phase, work that the device has only been given included."""
        start = self._now()
        yield
        self.seconds[phase] += self._now() - start

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def episode_sums(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the sums of `PER_EPISODE` and `ENDS` over episodes, their tokens, and how many there are."""
    sound = [episode for episode in episodes if episode.is_sound]
    sums = {name: sum(map(of, sound), 0.0) for name, of in PER_EPISODE.items()}
    ends = {name: float(sum(f"end_{episode.end}" == name for episode in episodes)) for name in ENDS}
    tokens = sum(len(episode.tokens) for episode in episodes)
    return {**sums, **ends, "tokens": tokens, "sound": len(sound), "episodes": len(episodes)}


def log_prob_gap(episodes: Sequence[Episode], lessons: Sequence[Lesson]) -> float:
    """Return how far the log-probability of a sampled token, as it was sampled, is from its later scoring at most.

    Both are of the same policy: what differs is rounding, by the cache and by the company of other dialogues.
    """
    gaps = [
        (lesson.behaviour.cpu() - torch.tensor(episode.log_probs)).abs().max()
        for episode, lesson in zip(episodes, lessons, strict=True)
        if len(lesson.places)
    ]
    return max((float(gap) for gap in gaps), default=0.0)


def credit_sums(credit: Credit) -> dict[str, float]:
    """Return sums over the compared groups: of scores and their deviations within a group (divisor n - 1)."""
    return {
        "score": math.fsum(float(scores_N.sum()) for scores_N in credit.scores),
        "score_sd": math.fsum(float(scores_N.std()) for scores_N in credit.scores),
        "groups_without_spread": sum(float(groups_without_spread(scores_N[None])) for scores_N in credit.scores),
        "groups": float(len(credit.scores)),
        "compared": float(sum(map(len, credit.scores))),
    }


def token_sums(before: Sequence[Scored], lessons: Sequence[Lesson]) -> dict[str, float]:
    """Return sums over the tokens of sound episodes before the step's first update.

    Args:
        before: log-probabilities and entropies of every response token, an episode each.
        lessons: the same episodes.
    """
    if not lessons:
        return dict.fromkeys((*PER_AGENT_TOKEN, "entropy_all"), 0.0)
    policy, reference = _joined([each.behaviour for each in lessons]), _joined([each.reference for each in lessons])
    distances = distances_to_reference(policy, reference, torch.ones_like(policy, dtype=torch.bool), 1)
    entropy = entropy_all = 0.0
    for scored, lesson in zip(before, lessons, strict=True):
        if scored.entropies is None:
            raise ValueError("entropies must be given")
        of_agent = lesson.places - (len(lesson.tokens) - len(scored.entropies))
        entropies = scored.entropies.double()
        entropy += float(entropies[of_agent.to(entropies.device)].sum())
        entropy_all += float(entropies.sum())
    sums = {"kl": float(distances.k3), "kl_k1": float(distances.k1), "entropy": entropy}
    return {**sums, "entropy_all": entropy_all}


def update_flop(settings: Any, sequence_lengths: Sequence[int]) -> float:
    """Return the operations of one forward and backward pass over whole sequences.

    Args:
        settings: a model's configuration.
        sequence_lengths: tokens of each.
    """
    heads, layers = settings.num_attention_heads, settings.num_hidden_layers
    head_dim = getattr(settings, "head_dim", None) or settings.hidden_size // heads
    dense = dense_parameters(
        hidden=settings.hidden_size,
        layers=layers,
        heads=heads,
        kv_heads=getattr(settings, "num_key_value_heads", None) or heads,
        head_dim=head_dim,
        mlp=settings.intermediate_size,
        vocabulary=settings.vocab_size,
    )
    return float(training_flop(dense, sequence_lengths, head_dim, heads, layers))


def step_means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return a step's means from its sums."""
    n_agent = max(1.0, sums["agent_tokens"])
    return {
        **{name: sums[name] / sums["sound"] for name in PER_EPISODE},
        **{name: sums[name] / sums["episodes"] for name in ENDS},
        "score": sums["score"] / sums["compared"],
        **{name: sums[name] / sums["groups"] for name in ("score_sd", "groups_without_spread")},
        **{name: sums[name] / n_agent for name in PER_AGENT_TOKEN},
        "entropy_all": sums["entropy_all"] / max(1.0, sums["response_length"]),
        "episodes": sums["episodes"],
        "tokens_total": sums["tokens"],
        "tokens_per_rank": sums["tokens"],
        **{name: sums[name] for name in RolloutCounts().values()},
        "flop_update": sums["flop_update"],
    }


def memory_peak(device: torch.device) -> dict[str, float]:
    """Return the most memory that tensors on a GPU have taken since the process began, in 10^9 bytes; none on a CPU."""
    if device.type != "cuda":
        return {}
    return {"memory_peak_gb": torch.cuda.max_memory_allocated(device) / 1e9}


def rates(values: Mapping[str, float], device_name: str) -> dict[str, float]:
    """Return a step's tokens a second, and its share of the hardware's peak where that is known.

    Args:
        values: of the step, its seconds included.
        device_name: as the driver gives it; empty for a CPU.
    """
    seconds = values["seconds_step"]
    found = {
        "tokens_per_second": values["tokens_total"] / seconds,
        "tokens_per_second_per_device": values["tokens_total"] / seconds,
        "agent_tokens_per_second": values["agent_tokens"] * values["episodes"] / seconds,
    }
    peak = peak_flop(device_name)
    if peak is not None:
        for name, phase in (("mfu_update", "update"), ("mfu_step", "step")):
            found[name] = mfu(values["flop_update"], values[f"seconds_{phase}"], peak)
    return found


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.double() for part in parts])[None]
