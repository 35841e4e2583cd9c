"""Published patterns of training metrics: a KL without a cause, a ratio off 1, advantages that count queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import nan, sqrt
from statistics import fmean

from lever_pipe.report.tables.explanations.pattern_study import DROPOUT, NONE, EmulatedStudy, Pattern, extent
from lever_pipe.report.tables.explanations.published_patterns import CURVE_BETAS
from lever_pipe.report.tables.text import number

LEVEL_TOLERANCE = 0.25
"""How far a KL may lie from the published mean and still be called near it, as a share of it."""
FALLS = "KL falls from epoch to epoch."
ADV_STD, SHARE = "std_advantage", "gradient_share"
RATIO_BOUND = 0.95
"""A mean ratio below it is off 1."""
SHARE_TOLERANCE = 0.01
"""The floor under the spread of rewards shrinks the advantages of a few queries, so Adv Std may miss the share."""
NO_GRADIENT = "In epoch 1 no query has selections of different rewards, so no advantage differs from 0."
ONE_OF_THREE = 2 / sqrt(3)
"""Largest size over spread of three advantages of which one differs: (2, -1, -1) over its unbiased deviation."""


def kl_without_update(study: EmulatedStudy) -> list[Pattern]:
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
            published=extent(published, 5),
            arm=DROPOUT,
            with_fault=number(ours, 5),
            without=number(control, 5),
            criterion="at least the smallest published KL with the fault, less without",
            holds=ours >= min(published),
            holds_without=control >= min(published),
        ),
        Pattern(
            id="kl-level",
            statement=f"The KL of epoch 1 lies near {number(mean, 2)}.",
            published=number(mean, 5),
            arm=DROPOUT,
            with_fault=number(level, 5),
            without=number(right, 5),
            criterion=f"within {share} % of the published mean with the fault, not without",
            holds=near(level),
            holds_without=near(right),
            remark="How large the noise of dropout is depends on the selector and its embeddings.",
        ),
    ]


def kl_falls(study: EmulatedStudy) -> list[Pattern]:
    """Return whether the logged KL falls from epoch to epoch, without updates and with them."""
    untouched = {arm: [study.untouched(arm, "kl", epoch) for epoch in (1, 2)] for arm in (DROPOUT, NONE)}
    found = [
        Pattern(
            id="kl-falls-without-update",
            statement=FALLS,
            published=study.quoted.course("kl", (1, 2), study.emulate.kl_betas),
            arm=DROPOUT,
            with_fault=_course(untouched[DROPOUT]),
            without=_course(untouched[NONE]),
            criterion="falls after epoch 1 with the fault and without a single update, not without the fault",
            holds=_falls(untouched[DROPOUT]),
            holds_without=_falls(untouched[NONE]),
            remark="Later epochs keep more selections of a query.",
        )
    ]
    if len(study.epochs) > 1:
        courses = {arm: [study.metrics(arm, "kl", epoch) for epoch in study.epochs] for arm in (DROPOUT, NONE)}
        fall = {arm: [_falls(course) for course in zip(*values, strict=True)] for arm, values in courses.items()}
        found.append(
            Pattern(
                id="kl-falls",
                statement=FALLS,
                published=study.quoted.course("kl", study.epochs, study.emulate.kl_betas),
                arm=DROPOUT,
                with_fault=_course([fmean(values) for values in courses[DROPOUT]]),
                without=_course([fmean(values) for values in courses[NONE]]),
                criterion="falls for every beta with the fault, for none without",
                holds=all(fall[DROPOUT]),
                holds_without=any(fall[NONE]),
            )
        )
    return found


def ratio(study: EmulatedStudy) -> list[Pattern]:
    """Return whether the mean ratio of a trained epoch is off 1, as the published ones are means of such an epoch."""
    published = study.quoted.first_ratios()
    betas = [beta for beta in study.emulate.kl_betas if beta in CURVE_BETAS]
    trained = {arm: study.metrics(arm, "mean_ratio", 1, betas) for arm in (DROPOUT, NONE)}
    still = {arm: study.untouched(arm, "mean_ratio", 1) for arm in trained}
    text = {arm: f"{extent(trained[arm], 5)} (no update: {number(still[arm], 5)})" for arm in trained}
    off = {arm: max(values) < RATIO_BOUND for arm, values in trained.items()}
    moved = off[NONE] and still[NONE] == 1 and still[DROPOUT] < RATIO_BOUND
    return [
        Pattern(
            id="ratio-off-one",
            statement="The mean ratio of policy and reference lies below 1 in epoch 1.",
            published=extent(published, 5),
            arm=DROPOUT,
            with_fault=text[DROPOUT],
            without=text[NONE],
            criterion=f"below {RATIO_BOUND} in a trained epoch with the fault, not without",
            holds=off[DROPOUT],
            holds_without=off[NONE],
            remark="Training alone moves the ratio; without an update only the fault does." if moved else "",
        )
    ]


def advantages(study: EmulatedStudy) -> list[Pattern]:
    """Return what Adv Std and Adv Max are: facts of the data, with and without faults."""
    found = [_spread(study), _largest(study)]
    if 2 in study.epochs:
        courses = {arm: [study.metrics(arm, ADV_STD, epoch)[0] for epoch in (1, 2)] for arm in (DROPOUT, NONE)}
        rises = {arm: first < second for arm, (first, second) in courses.items()}
        found.append(
            Pattern(
                id="adv-std-rises",
                statement="Adv Std rises after epoch 1, when more selections of a query are kept.",
                published=study.quoted.course("adv_std", (1, 2), study.emulate.kl_betas, digits=4),
                arm="any",
                with_fault=_course(courses[DROPOUT], 4),
                without=_course(courses[NONE], 4),
                criterion="rises",
                holds=rises[DROPOUT],
                holds_without=rises[NONE],
            )
        )
    without = [arm for arm in (DROPOUT, NONE) if not all(study.metrics(arm, ADV_STD, 1))]
    return [replace(each, is_defined=False, remark=NO_GRADIENT) for each in found] if without else found


def _spread(study: EmulatedStudy) -> Pattern:
    text, holds = {}, {}
    for arm in (DROPOUT, NONE):
        of = {name: [study.metrics(arm, name, epoch) for epoch in study.epochs] for name in (ADV_STD, SHARE)}
        close = all(
            abs(a - b) <= SHARE_TOLERANCE
            for spreads, shares in zip(of[ADV_STD], of[SHARE], strict=True)
            for a, b in zip(spreads, shares, strict=True)
        )
        holds[arm] = close and all(len({number(value, 4) for value in spreads}) == 1 for spreads in of[ADV_STD])
        text[arm] = f"{number(of[ADV_STD][0][0], 4)} (share {number(of[SHARE][0][0], 4)})"
    return Pattern(
        id="adv-std",
        statement="Adv Std equals the share of queries with a gradient, because within a query the spread is 0 or 1; "
        "it is equal for every beta.",
        published=study.quoted.course("adv_std", (1,), study.emulate.kl_betas, digits=4),
        arm="any",
        with_fault=text[DROPOUT],
        without=text[NONE],
        criterion=f"within {SHARE_TOLERANCE} of the share and equal for every beta",
        holds=holds[DROPOUT],
        holds_without=holds[NONE],
        remark="Adv Std is a mean over queries; a floor under the spread of rewards shrinks a few of its terms.",
    )


def _largest(study: EmulatedStudy) -> Pattern:
    sizes = {
        arm: (study.metrics(arm, "max_advantage", 1)[0], study.metrics(arm, ADV_STD, 1)[0]) for arm in (DROPOUT, NONE)
    }
    over = {arm: largest / spread if spread else nan for arm, (largest, spread) in sizes.items()}
    holds = {arm: abs(value - ONE_OF_THREE) <= SHARE_TOLERANCE for arm, value in over.items()}
    return Pattern(
        id="adv-max",
        statement="Adv Max is 1.155 times Adv Std in epoch 1: one of three kept selections differs.",
        published=study.quoted.ratio_of("adv_max", "adv_std", 1, study.emulate.kl_betas),
        arm="any",
        with_fault=number(over[DROPOUT], 3),
        without=number(over[NONE], 3),
        criterion=f"within {SHARE_TOLERANCE} of 2 / sqrt(3)",
        holds=holds[DROPOUT],
        holds_without=holds[NONE],
    )


def _course(values: Sequence[float], digits: int = 5) -> str:
    return ", ".join(number(value, digits) for value in values)


def _falls(values: Sequence[float]) -> bool:
    return all(later < earlier for earlier, later in pairwise(values))
