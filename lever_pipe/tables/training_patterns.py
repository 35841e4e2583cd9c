"""Published patterns of training metrics: a KL without a cause, a ratio off 1, advantages that count queries."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean

from lever_pipe.tables.pattern_study import DROPOUT, NONE, Pattern, Study
from lever_pipe.tables.text import number

LEVEL_TOLERANCE = 0.25
"""How far a KL may lie from the published mean and still be called near it, as a share of it."""
RATIO_BOUND = 0.95
"""A mean ratio below it is off 1."""
SHARE_TOLERANCE = 0.01
"""The floor under the spread of rewards shrinks the advantages of a few queries, so Adv Std may miss the share."""
ONE_OF_THREE = 2 / sqrt(3)
"""Largest size over spread of three advantages of which one differs: (2, -1, -1) over its unbiased deviation."""


def kl_without_update(study: Study) -> list[Pattern]:
    """Return whether the logged KL needs an update, and whether its level is the published one."""
    published = study.quoted.metrics("kl", 1, study.emulate.kl_betas)
    if not published:
        return []
    ours, control = (study.untouched(arm, "kl", 1) for arm in (DROPOUT, NONE))
    level, right = (fmean(study.metrics(arm, "kl", 1)) for arm in (DROPOUT, NONE))
    mean, share = fmean(published), int(100 * LEVEL_TOLERANCE)

    def near(value: float) -> bool:
        return abs(value - mean) <= LEVEL_TOLERANCE * mean

    return [
        Pattern(
            id="kl-without-update",
            statement="A KL as large as the logged one appears without a single update.",
            published=f"{number(min(published), 5)} to {number(max(published), 5)}",
            arm=DROPOUT,
            with_fault=number(ours, 5),
            without=number(control, 5),
            criterion="at least the smallest published KL with the fault, exactly 0 without",
            reproduced=ours >= min(published) and control == 0,
        ),
        Pattern(
            id="kl-level",
            statement=f"The KL of epoch 1 lies near {number(mean, 2)}.",
            published=number(mean, 5),
            arm=DROPOUT,
            with_fault=number(level, 5),
            without=number(right, 5),
            criterion=f"within {share} % of the published mean with the fault, not without",
            reproduced=near(level) and not near(right),
            remark="How large the noise of dropout is depends on the selector and its embeddings.",
        ),
    ]


def kl_falls(study: Study) -> list[Pattern]:
    """Return whether the logged KL falls from epoch to epoch, without updates and with them."""
    untouched = {arm: [study.untouched(arm, "kl", epoch) for epoch in (1, 2)] for arm in (DROPOUT, NONE)}
    found = [
        Pattern(
            id="kl-falls-without-update",
            statement="KL falls after epoch 1, when more selections of a query are kept.",
            published=study.quoted.course("kl", (1, 2), study.emulate.kl_betas),
            arm=DROPOUT,
            with_fault=_course(untouched[DROPOUT]),
            without=_course(untouched[NONE]),
            criterion="falls with the fault and without a single update, stays without the fault",
            reproduced=_falls(untouched[DROPOUT]) and not _falls(untouched[NONE]),
        )
    ]
    if len(study.epochs) > 1:
        courses = {arm: [study.metrics(arm, "kl", epoch) for epoch in study.epochs] for arm in (DROPOUT, NONE)}
        fall = {arm: [_falls(course) for course in zip(*values, strict=True)] for arm, values in courses.items()}
        found.append(
            Pattern(
                id="kl-falls",
                statement="KL falls from epoch to epoch of training.",
                published=study.quoted.course("kl", study.epochs, study.emulate.kl_betas),
                arm=DROPOUT,
                with_fault=_course([fmean(values) for values in courses[DROPOUT]]),
                without=_course([fmean(values) for values in courses[NONE]]),
                criterion="falls for every beta with the fault, for none without",
                reproduced=all(fall[DROPOUT]) and not any(fall[NONE]),
            )
        )
    return found


def ratio(study: Study) -> list[Pattern]:
    """Return whether the mean ratio of policy and reference starts off 1."""
    ours, control = (study.untouched(arm, "mean_ratio", 1) for arm in (DROPOUT, NONE))
    return [
        Pattern(
            id="ratio-off-one",
            statement="The mean ratio of policy and reference starts below 1.",
            published=study.quoted.first_ratios(),
            arm=DROPOUT,
            with_fault=number(ours, 5),
            without=number(control, 5),
            criterion=f"below {RATIO_BOUND} with the fault and without a single update, exactly 1 without the fault",
            reproduced=ours < RATIO_BOUND and control == 1,
        )
    ]


def advantages(study: Study) -> list[Pattern]:
    """Return what Adv Std and Adv Max are: facts of the data, with and without faults."""
    arms = (DROPOUT, NONE)
    spread = {(arm, epoch): study.metrics(arm, "std_advantage", epoch) for arm in arms for epoch in study.epochs}
    shares = {key: study.metrics(key[0], "gradient_share", key[1]) for key in spread}
    largest = {arm: study.metrics(arm, "max_advantage", 1)[0] / spread[arm, 1][0] for arm in arms}
    quoted = study.quoted
    same = len({number(value, 4) for arm in arms for value in spread[arm, 1]}) == 1
    close = all(abs(spread[key][0] - shares[key][0]) <= SHARE_TOLERANCE for key in spread)
    text = [f"{number(spread[arm, 1][0], 4)} (share {number(shares[arm, 1][0], 4)})" for arm in arms]
    found = [
        Pattern(
            id="adv-std",
            statement="Adv Std is the share of queries with a gradient: equal for every beta, a fact of the data.",
            published=quoted.course("adv_std", (1,), study.emulate.kl_betas, digits=4),
            arm="any",
            with_fault=text[0],
            without=text[1],
            criterion=f"within {SHARE_TOLERANCE} of the share and equal for every beta, with and without the fault",
            reproduced=same and close,
        ),
        Pattern(
            id="adv-max",
            statement="Adv Max is 1.155 times Adv Std in epoch 1: one of three kept selections differs.",
            published=quoted.ratio_of("adv_max", "adv_std", 1, study.emulate.kl_betas),
            arm="any",
            with_fault=number(largest[DROPOUT], 3),
            without=number(largest[NONE], 3),
            criterion=f"within {SHARE_TOLERANCE} of 2 / sqrt(3), with and without the fault",
            reproduced=all(abs(value - ONE_OF_THREE) <= SHARE_TOLERANCE for value in largest.values()),
        ),
    ]
    if 2 in study.epochs:
        courses = {arm: [spread[arm, epoch][0] for epoch in (1, 2)] for arm in arms}
        found.append(
            Pattern(
                id="adv-std-rises",
                statement="Adv Std rises after epoch 1, when more selections of a query are kept.",
                published=quoted.course("adv_std", (1, 2), study.emulate.kl_betas, digits=4),
                arm="any",
                with_fault=_course(courses[DROPOUT], 4),
                without=_course(courses[NONE], 4),
                criterion="rises with and without the fault",
                reproduced=all(first < second for first, second in courses.values()),
            )
        )
    return found


def _course(values: Sequence[float], digits: int = 5) -> str:
    return ", ".join(number(value, digits) for value in values)


def _falls(values: Sequence[float]) -> bool:
    return all(later < earlier for earlier, later in pairwise(values))
