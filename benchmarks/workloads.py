"""Workloads in the shape of the two stages that send most prompts to the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from benchmarks.subjects import Subject
from lever_pipe.base.records import Example
from lever_pipe.base.seeding import generator
from lever_pipe.lvlms.protocol import LvlmRequest

N_GIVEN = 4  # answers scored for each prompt of the RL data
RL_SHOTS = 2
SHOTS = (1, 2, 3, 4)
PEAKEDNESS = 0.15  # shape of the gamma weights of a policy; a few demonstrations have most of the weight
N_CHECKPOINTS = 32  # policies in most batches of the default run
AGREEMENT = 0.8  # probability that a checkpoint's selection follows the common one


@dataclass(frozen=True)
class Workload:
    """Requests in the order of a stage."""

    name: str
    title: str
    requests: Sequence[LvlmRequest]


def rl_data(subject: Subject, *, n_queries: int = 4, n_sequences: int = 20) -> Workload:
    """Return queries with distinct two-shot sequences from one pool, each with given answers to score."""
    requests = []
    for number, query in enumerate(subject.queries[:n_queries]):
        rng = generator(0, "benchmark", "rl_data", number)
        given = tuple(map(str, rng.choice(subject.answers, N_GIVEN, replace=False)))
        sequences = _sequences(len(subject.pool), n_sequences, rng)
        requests += [_request(subject, query, demonstrations, given) for demonstrations in sequences]
    return Workload("rl_data", "RL data", requests)


def evaluation(subject: Subject, *, n_checkpoints: int = N_CHECKPOINTS, n_queries: int = 6) -> Workload:
    """Return the nested selections of several checkpoints, which agree in most demonstrations."""
    requests = []
    for number, query in enumerate(subject.queries[:n_queries]):
        rng = generator(0, "benchmark", "evaluation", number)
        common = rng.choice(len(subject.pool), max(SHOTS), replace=False)
        for _ in range(n_checkpoints):
            chosen = _follow(common.tolist(), len(subject.pool), rng)
            requests += [_request(subject, query, chosen[:shots], ()) for shots in SHOTS]
    return Workload("evaluation", "Evaluation", requests)


def _request(subject: Subject, query: Example, demonstrations: Sequence[int], given: tuple[str, ...]) -> LvlmRequest:
    return LvlmRequest(subject.wording.prompt(query, [subject.pool[i] for i in demonstrations]), given)


def _sequences(n_pool: int, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Return distinct sequences: the best ones of a peaked policy, samples of it, and random ones."""
    weights = rng.gamma(PEAKEDNESS, size=n_pool)
    policy = weights / weights.sum()

    def probability(sequence: tuple[int, ...]) -> float:
        first, second = sequence
        return float(policy[first] * policy[second] / (1 - policy[first]))

    ranked = sorted(permutations(range(n_pool), RL_SHOTS), key=probability, reverse=True)
    found = dict.fromkeys(ranked[: count // 4])
    while len(found) < count:
        sampled = len(found) < count // 4 + 2 * count // 5
        chosen = rng.choice(n_pool, RL_SHOTS, replace=False, p=policy if sampled else None)
        found[tuple(chosen.tolist())] = None
    return list(found)


def _follow(common: Sequence[int], n_pool: int, rng: np.random.Generator) -> list[int]:
    """Return distinct choices, each the common one of its position with probability `AGREEMENT`."""
    chosen: list[int] = []
    for usual in common:
        free = [i for i in range(n_pool) if i not in chosen]
        follows = rng.random() < AGREEMENT and usual in free
        chosen.append(int(usual if follows else rng.choice(free)))
    return chosen
