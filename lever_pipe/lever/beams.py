"""Beam data: sequences of demonstrations that maximise the probability of the correct answer to a query."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from lever_pipe.base.records import Beam, Example, ExampleId, Pool, QueryBeams
from lever_pipe.experiment.beams import Beams
from lever_pipe.lvlms.asking.prompts import PromptIds, Wording
from lever_pipe.lvlms.protocol import Lvlm, LvlmReply, request_of

Demonstrations = tuple[ExampleId, ...]
"""Demonstrations in the order of choice."""
Score = Callable[[Sequence[PromptIds]], Sequence[float]]
"""Returns, for each prompt, the probability of the query's answer, in [0, 1]."""

DIGITS = 6
"""Digits of a probability: on a GPU the last bits depend on the batch composition, and ties are broken by id."""


def search_beams(pools: Iterable[Pool], score: Score, settings: Beams) -> list[QueryBeams]:
    """Run a beam search over each query's pool and return its beams, the best one first.

    gain(c | S) = P(y | x, S + c) - P(y | x, S), so the gains of a beam add up to the gain of all its demonstrations.
    Each step scores the beams themselves and every extension by a candidate that the beam lacks: 1 + K prompts at
    first, then `size` times 1 + K - s. Of equal beams the one with the smaller ids is kept.

    Source: Lever-Plus published code
    """
    chance: dict[PromptIds, float] = {}
    beams: dict[Pool, list[Demonstrations]] = {pool: [()] for pool in pools}
    for _ in range(settings.shots):
        grown = {
            pool: [(*beam, c) for beam in top for c in pool.candidates if c not in beam] for pool, top in beams.items()
        }
        prompts = [(pool.query_id, beam) for pool, top in beams.items() for beam in [*top, *grown[pool]]]
        # Rounded before any comparison, so that the batch composition cannot change the beams.
        chance.update(zip(prompts, (round(p, DIGITS) for p in score(prompts)), strict=True))
        for pool, children in grown.items():
            ranked = sorted((-_worth(chance, pool.query_id, beam, settings), beam) for beam in children)
            beams[pool] = [beam for _, beam in ranked[: settings.size]]
    return [
        QueryBeams(
            query_id=pool.query_id,
            empty=chance[pool.query_id, ()],
            beams=tuple(
                Beam(demonstrations=b, gains=_gains(chance, pool.query_id, b), probability=chance[pool.query_id, b])
                for b in top
            ),
        )
        for pool, top in beams.items()
    ]


def _worth(chance: dict[PromptIds, float], query: ExampleId, beam: Demonstrations, settings: Beams) -> float:
    return chance[query, beam] if settings.rank == "total" else _gains(chance, query, beam)[-1]


def _gains(chance: dict[PromptIds, float], query: ExampleId, beam: Demonstrations) -> tuple[float, ...]:
    path = [chance[query, beam[:n]] for n in range(len(beam) + 1)]
    return tuple(round(after - before, DIGITS) for before, after in pairwise(path))


def prompt_order(beam: Demonstrations, settings: Beams) -> Demonstrations:
    """Return selected demonstrations in the order of the prompt, the first one farthest from the question."""
    return beam if settings.newest == "last" else beam[::-1]


def scorer(train: Sequence[Example], model: Lvlm, wording: Wording, settings: Beams) -> Score:
    """Return a function that gets the probability of a train query's displayed answer from an LVLM."""

    def score(prompts: Sequence[PromptIds]) -> list[float]:
        demonstrations = [[train[i] for i in prompt_order(beam, settings)] for _, beam in prompts]
        requests = [
            request_of(train[query], of, wording) for (query, _), of in zip(prompts, demonstrations, strict=True)
        ]
        return [span_probability(reply) for reply in model.run(requests)]

    return score


def span_probability(reply: LvlmReply) -> float:
    """Return exp(mean log-probability) over the tokens of the displayed answer, in [0, 1].

    The end-of-turn token is not part of the answer.

    Source: Lever-Plus published code
    """
    # The last log-probability belongs to the end of the turn.
    *span, _ = reply.token_log_probs[0]
    return min(1.0, math.exp(statistics.fmean(span)))
