"""Generators of ordered selections for one query: beams, samples, neighbours and chance.

The proposing policy is a Plackett-Luce ranking by similarity. Its score is the similarity standardised within the
pool, times a scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.records import Pool, Proposal
from lever_pipe.experiment.rl_data import ProposalSettings

Positions = tuple[int, ...]
Scores = NDArray[np.float64]
Draft = tuple[Positions, dict[str, object]]
"""Pool positions, and the facts about the generator that their proposal records."""


def propose(
    pool: Pool, similarities: NDArray[np.float32], options: ProposalSettings, generator: np.random.Generator
) -> list[Proposal]:
    """Return the distinct ordered selections of one query.

    (i, j) and (j, i) are two selections, because order changes the prompt. Of equal selections the first one in the
    order beam, retrieval, sample, random is kept. `similarities` are the cosines `[K]` of query and candidates.
    """
    scores = standardise(similarities) * options.similarity_scale
    drafts = [
        *_beams(scores, options),
        *_retrieval(similarities, options),
        *_samples(scores, options, generator),
        *_random(len(pool.candidates), options, generator),
    ]
    distinct: dict[Positions, dict[str, object]] = {}
    for positions, facts in drafts:
        distinct.setdefault(positions, facts)
    return [_proposal(pool, positions, facts) for positions, facts in distinct.items()]


def diversity_fill(
    pool: Pool, present: Iterable[Sequence[int]], *, shots: int, budget: int, generator: np.random.Generator
) -> list[Proposal]:
    """Return `budget` further uniform selections that are not yet `present`.

    Whether to fill a query depends on its answers so far; the number of selections and their choice do not depend on
    any later answer. So there is no optional stopping, and the fill adds no bias towards successes.
    """
    selections = {tuple(positions) for positions in present}
    proposals: list[Proposal] = []
    for _ in range(100 * budget):  # bounded, because a pool may have fewer selections than the budget
        positions = _uniform(len(pool.candidates), shots, generator)
        if len(proposals) == budget:
            break
        if positions not in selections:
            selections.add(positions)
            proposals.append(_proposal(pool, positions, {"gen_method": "fill"}))
    return proposals


def standardise(similarities: NDArray[np.float32]) -> Scores:
    """Return the values with mean 0 and standard deviation 1 over the pool; all 0 when they are equal."""
    values = similarities.astype(np.float64)
    spread = values.std()
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)


def log_softmax_without(scores: Scores, picks: Positions) -> Scores:
    """Return the log-probabilities of the next pick; positions already picked have minus infinity."""
    masked = scores.copy()
    masked[list(picks)] = -np.inf
    # Shifted by the maximum, so that exp cannot overflow.
    shifted = masked - masked.max()
    result: Scores = shifted - np.log(np.exp(shifted).sum())
    return result


def _beams(scores: Scores, options: ProposalSettings) -> Iterator[Draft]:
    """Yield the most probable selections, exact for one and two shots and a beam search beyond."""
    beams: list[tuple[float, float, Positions]] = [(0.0, 0.0, ())]
    width = max(options.n_beams, 1)
    for _ in range(options.shots):
        grown = []
        for log_prob, prob_sum, picks in beams:
            step = log_softmax_without(scores, picks)
            # Picked positions come last in this order; a pool may have fewer selections than beams.
            best = np.argsort(-step, kind="stable")[: min(width, len(scores) - len(picks))]
            grown += [(log_prob + step[i], prob_sum + float(np.exp(step[i])), (*picks, int(i))) for i in best]
        beams = sorted(grown, key=lambda beam: (-beam[0], beam[2]))[:width]
    for rank, (log_prob, prob_sum, picks) in enumerate(beams[: options.n_beams]):
        facts = {"beam_rank": rank, "beam_score": prob_sum, "logprob_score": float(log_prob)}
        yield picks, {"gen_method": "beam", **facts}


def _samples(scores: Scores, options: ProposalSettings, generator: np.random.Generator) -> Iterator[Draft]:
    """Yield samples at each temperature; disjoint ones cut one ranking of the pool into consecutive selections."""
    shots, n = options.shots, options.n_samples_per_temperature
    for temperature in options.temperatures:
        tempered = scores / temperature
        order: list[int] = []
        for _ in range(n):
            if not options.disjoint_samples or len(order) < shots:
                # Sorting scores plus Gumbel noise draws a ranking from the Plackett-Luce model exactly.
                order = np.argsort(-(tempered + generator.gumbel(size=len(scores))), kind="stable").tolist()
            picks = tuple(order[:shots])
            order = order[shots:] if options.disjoint_samples else []
            log_prob = _log_prob(tempered, picks)
            yield picks, {"gen_method": "sample", "temperature": temperature, "logprob_score": log_prob}


def _retrieval(similarities: NDArray[np.float32], options: ProposalSettings) -> Iterator[Draft]:
    """Yield selections; the i-th one repeatedly takes the (i + 1)-th most similar remaining candidate."""
    for skip in range(options.n_retrieval):
        remaining = np.argsort(-similarities, kind="stable").tolist()
        picks: list[int] = []
        while len(picks) < options.shots and len(remaining) > skip:
            picks.append(remaining.pop(skip))
        if len(picks) == options.shots:
            mean = float(np.mean(similarities[picks]))
            yield tuple(picks), {"gen_method": "retrieval", "similarity_score": mean}


def _random(size: int, options: ProposalSettings, generator: np.random.Generator) -> Iterator[Draft]:
    for _ in range(options.n_random):
        yield _uniform(size, options.shots, generator), {"gen_method": "random"}


def _uniform(size: int, shots: int, generator: np.random.Generator) -> Positions:
    return tuple(generator.choice(size, shots, replace=False).tolist())


def _log_prob(scores: Scores, picks: Positions) -> float:
    return float(sum(log_softmax_without(scores, picks[:step])[pick] for step, pick in enumerate(picks)))


def _proposal(pool: Pool, positions: Positions, facts: dict[str, object]) -> Proposal:
    ids = tuple(pool.candidates[position] for position in positions)
    return Proposal.model_validate({"query_id": pool.query_id, "pointer": positions, "pointer_global": ids, **facts})
