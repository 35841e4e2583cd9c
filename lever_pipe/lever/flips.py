"""Two long-format files of what training moved: questions that flip, and what the chosen demonstrations agree in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.policy_names import group_of
from lever_pipe.base.records import Example
from lever_pipe.lever.gallery import EQUAL, Comparison, kind_of
from lever_pipe.lever.samples import PolicyAnswers
from lever_pipe.metrics.agreement import ENDED, padded_selections

ALL, MEAN = "all", "mean"

Agreements = Mapping[str, NDArray[np.bool_]]
"""What a demonstration may have in common with a query -> [Q, T] by query and train example."""


class FlipRow(NamedTuple):
    """A line of `flips.csv`: how many questions a GRPO run answers better and worse than its RCE base."""

    left: str  # group of the GRPO run
    right: str  # group of its base
    seed: int
    shots: str  # a shot count, or `mean` over all
    better: int
    worse: int
    equal: int
    in_gallery: int  # 1 for the group that the gallery compares, else 0


class SelectionRow(NamedTuple):
    """A line of `selections.csv`: a share of the demonstrations at one rank, over all seeds or draws of a group."""

    group: str
    kind: str  # of question, or `all`
    rank: int  # from 1
    agrees_in: str  # what demonstration and query have in common
    share: float  # in [0, 1]
    n: int  # demonstrations


def flips(
    policies: Mapping[str, PolicyAnswers],
    queries: Sequence[Example],
    shots: Sequence[int],
    shown: Comparison | None,
) -> Iterator[FlipRow]:
    """Yield the rows of every run that starts from an RCE base, at each shot count and their mean.

    Args:
        policies: by name; a run whose base is not among them is passed over.
        queries: the evaluated questions that count.
        shots: the evaluated shot counts.
        shown: the comparison of the gallery.
    """
    for policy in policies.values():
        base = policies.get(str(policy.name.start)) if policy.name.base is not None else None
        if base is None:
            continue
        groups = group_of(str(policy.name)), group_of(str(base.name))
        in_gallery = shown is not None and groups[0] == group_of(str(shown.left))
        for column, counted in {**{str(k): (k,) for k in shots}, MEAN: tuple(shots)}.items():
            gains = [policy.accuracy(q.example_id, counted) - base.accuracy(q.example_id, counted) for q in queries]
            better, worse = sum(gain > EQUAL for gain in gains), sum(gain < -EQUAL for gain in gains)
            equal = len(gains) - better - worse
            yield FlipRow(*groups, policy.name.seed or 0, column, better, worse, equal, int(in_gallery))


def selections(
    policies: Mapping[str, PolicyAnswers], queries: Sequence[Example], shots: Sequence[int], agreements: Agreements
) -> Iterator[SelectionRow]:
    """Yield the shares of each group, over all questions and over those of each kind; policies without demonstrations
    have none, and at a rank those questions count that have so many.

    Args:
        policies: by name.
        queries: the evaluated questions that count.
        shots: the evaluated shot counts; ranks go up to the largest.
        agreements: what is looked at.
    """
    kinds = {ALL: list(range(len(queries)))}
    for place, query in enumerate(queries):
        kinds.setdefault(kind_of(query), []).append(place)
    ids = np.array([query.example_id for query in queries])
    groups: dict[str, list[NDArray[np.int64]]] = {}
    for name, policy in policies.items():
        chosen = [policy.said[query.example_id, max(shots)].demonstrations for query in queries]
        if any(chosen):
            groups.setdefault(group_of(name), []).append(padded_selections(chosen, max(shots)))
    for group, runs in groups.items():
        chosen_SQR = np.stack(runs)
        for kind, places in sorted(kinds.items(), key=lambda item: (item[0] != ALL, item[0])):
            picked_SNR = chosen_SQR[:, places]
            for rank in range(picked_SNR.shape[2]):
                taken = picked_SNR[:, :, rank] != ENDED
                for what, agrees_QT in agreements.items() if taken.any() else ():
                    found = agrees_QT[ids[places], picked_SNR[:, :, rank]][taken]
                    yield SelectionRow(group, kind, rank + 1, what, float(found.mean()), found.size)
