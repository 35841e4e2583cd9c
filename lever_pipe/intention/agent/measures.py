"""Metrics and times of a training step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lever_pipe.base.sums import sum_in_order
from lever_pipe.intention.agent.rollout import Episode, RolloutCounts
from lever_pipe.intention.agent.scoring import Scored
from lever_pipe.intention.agent.update import Credit, TrainingSample
from lever_pipe.intention.records import END_REASONS
from lever_pipe.losses.credit import groups_without_spread
from lever_pipe.losses.tokens import distances_to_reference
from lever_pipe.metrics.throughput import dense_parameters, mfu, peak_flop, training_flop

PHASES = ("step", "rollout", "simulator", "log_probs", "reference", "update", "validation", "checkpoint")
"""Timed phases, in wall seconds. `step` excludes validation and checkpoint, which the published seconds include on the
steps that have them."""
PER_EPISODE: dict[str, Callable[[Episode], float]] = {
    "reward": lambda episode: sum_in_order(episode.rewards),
    "reward_per_turn": lambda episode: sum_in_order(episode.rewards) / max(1, len(episode.rewards)),
    "normalised_reward": lambda episode: sum_in_order(episode.rewards) / episode.ceiling,
    "coverage": lambda episode: episode.coverage,
    "turns": lambda episode: len(episode.rewards),
    "sequence_length": lambda episode: len(episode.tokens),
    "prompt_length": lambda episode: episode.n_prompt,
    "response_length": lambda episode: len(episode.tokens) - episode.n_prompt,
    "agent_tokens": lambda episode: episode.n_agent_tokens,
}
"""Metrics that a step averages over its sound episodes."""
PER_AGENT_TOKEN = ("kl", "kl_k1", "entropy")


class Clock:
    """Wall seconds of named phases; times of a phase that is entered again add up."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the block's wall time to a phase, including work that is still queued on the device."""
        start = self._now()
        yield
        self.seconds[phase] += self._now() - start

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # CUDA calls return before their work is done
        return time.perf_counter()


def step_values(
    episodes: Sequence[Episode],
    counts: RolloutCounts,
    credit: Credit,
    before: Sequence[Scored],
    training_samples: Sequence[TrainingSample],
    settings: Any,
) -> dict[str, float]:
    """Return a step's metrics before its first update: means over sound episodes, shares of end reasons over all.

    `before` contains the log-probabilities and entropies of every response token of each episode. `training_samples`
    still contain the agent's tokens of all episodes: none is silenced yet.
    """
    sound = [index for index, episode in enumerate(episodes) if episode.is_sound]
    tokens = token_sums([before[index] for index in sound], [training_samples[index] for index in sound])
    n_agent = max(1, sum(episodes[index].n_agent_tokens for index in sound))
    n_response = max(1, sum(len(episodes[index].tokens) - episodes[index].n_prompt for index in sound))
    n_tokens = float(sum(len(episode.tokens) for episode in episodes))
    rewards = [sum_in_order(episodes[index].rewards) for index in sound]
    return {
        **{name: sum_in_order(f(episodes[index]) for index in sound) / len(sound) for name, f in PER_EPISODE.items()},
        **{f"end_{end}": sum(episode.end == end for episode in episodes) / len(episodes) for end in END_REASONS},
        **score_means(credit.scores),
        **{name: tokens[name] / n_agent for name in PER_AGENT_TOKEN},
        "entropy_all": tokens["entropy_all"] / n_response,
        "episodes": len(episodes),
        "tokens_total": n_tokens,
        "tokens_per_rank": n_tokens,
        **counts.values(),
        "flop_update": update_flop(settings, [len(episode.tokens) for episode in episodes]),
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "rollout_log_prob_gap": log_prob_gap(episodes, training_samples),
    }


def score_means(scores: Sequence[Tensor]) -> dict[str, float]:
    """Return the mean score, the mean standard deviation in a group (divisor n - 1) and the share without spread."""
    n = len(scores)
    return {
        "score": math.fsum(float(scores_N.sum()) for scores_N in scores) / sum(map(len, scores)),
        "score_sd": math.fsum(float(scores_N.std()) for scores_N in scores) / n,
        "groups_without_spread": sum_in_order(float(groups_without_spread(scores_N[None])) for scores_N in scores) / n,
    }


def token_sums(before: Sequence[Scored], training_samples: Sequence[TrainingSample]) -> dict[str, float]:
    """Return sums over the agent's tokens (KL to the reference, entropy) and the entropy sum over response tokens."""
    policy, reference = (
        _joined([each.behaviour for each in training_samples]),
        _joined([each.reference for each in training_samples]),
    )
    # A divisor of 1 gives sums instead of means.
    distances = distances_to_reference(policy, reference, torch.ones_like(policy, dtype=torch.bool), 1)
    entropy = entropy_all = 0.0
    for scored, sample in zip(before, training_samples, strict=True):
        entropies = torch.as_tensor(scored.entropies).double()
        # `entropies` start at the response, `positions` count from the prompt.
        of_agent = sample.positions - (len(sample.tokens) - len(entropies))
        entropy += float(entropies[of_agent.to(entropies.device)].sum())
        entropy_all += float(entropies.sum())
    return {"kl": float(distances.k3), "kl_k1": float(distances.k1), "entropy": entropy, "entropy_all": entropy_all}


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.double() for part in parts])[None]


def log_prob_gap(episodes: Sequence[Episode], training_samples: Sequence[TrainingSample]) -> float:
    """Return the largest difference between a token's log-probability when sampled and when scored afterwards.

    Both are of the same policy. They differ by rounding, because of the cache and of other dialogues in the batch.
    """
    gaps = [
        float((sample.behaviour.cpu() - torch.tensor(episode.log_probs)).abs().max())
        for episode, sample in zip(episodes, training_samples, strict=True)
        if len(sample.positions)
    ]
    return max(gaps, default=0.0)


def update_flop(settings: Any, sequence_lengths: Sequence[int]) -> float:
    """Return the FLOPs of one forward and backward pass over whole sequences; `settings` is a model configuration."""
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


def memory_peak(device: torch.device) -> dict[str, float]:
    """Return the peak memory of tensors on a GPU since the process started, in 10^9 bytes; empty on a CPU."""
    return {"memory_peak_gb": torch.cuda.max_memory_allocated(device) / 1e9} if device.type == "cuda" else {}


def rates(values: Mapping[str, float], device: torch.device) -> dict[str, float]:
    """Return a step's tokens per second, and its model FLOPs utilization where the hardware's peak is known."""
    seconds = values["seconds_step"]
    values_per_second = {
        "tokens_per_second": values["tokens_total"] / seconds,
        "tokens_per_second_per_device": values["tokens_total"] / seconds,
        "agent_tokens_per_second": values["agent_tokens"] * values["episodes"] / seconds,
    }
    peak = peak_flop(torch.cuda.get_device_name(device) if device.type == "cuda" else "")
    if peak is not None:
        for name, phase in (("mfu_update", "update"), ("mfu_step", "step")):
            values_per_second[name] = mfu(values["flop_update"], values[f"seconds_{phase}"], peak)
    return values_per_second
