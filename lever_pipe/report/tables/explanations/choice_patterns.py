"""Published patterns of accuracies and choices: rows that agree, prompts that repeat, a beta that stands apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import perm
from statistics import fmean

from lever_pipe.report.tables.explanations.emulated import Row, Run
from lever_pipe.report.tables.explanations.pattern_study import NONE, EmulatedStudy, Pattern, distinct, percent
from lever_pipe.report.tables.text import ABSENT, beta_text, listing, number

COPIED = "No emulated fault repeats a row at some shot counts only; a copied row would."


def identical_rows(study: EmulatedStudy) -> list[Pattern]:
    """Return whether the betas of one base agree in every published cell, for each fault that may be the cause."""
    if len(study.others) < 2:
        return []
    published = study.published_rows(study.others)
    runs = list(published) or [(beta, epoch) for beta in study.others for epoch in study.epochs]
    control = list(study.rows(NONE, runs).values())
    found = []
    for arm in ("head", "pool", "all"):
        rows = list(study.rows(arm, runs).values())
        least = min(share for k in study.row_shots for share in study.emulated.agreements(arm, runs, k))
        found.append(
            Pattern(
                id=f"identical-rows-{arm}",
                statement=f"KL_BETA {listing(map(beta_text, study.others))} have one row of accuracies.",
                published=distinct(list(published.values())),
                arm=arm,
                with_fault=distinct(rows),
                without=distinct(control),
                criterion="one distinct row with the fault, several without",
                holds=len(set(rows)) == 1,
                holds_without=len(set(control)) == 1,
                remark=f"Smallest share of equal choices between two of them, over every query: {percent(least)}.",
            )
        )
    return found


def coincidences(study: EmulatedStudy) -> str:
    """Return how far the training alone, without any fault, makes all betas one row."""
    betas = study.emulate.kl_betas
    one = [e for e in study.epochs if len(set(study.rows(NONE, [(beta, e) for beta in betas]).values())) == 1]
    if not one:
        return ABSENT
    where = f"epoch{'s' * (len(one) > 1)} {listing(one)} and {study.row_samples} samples"
    return (
        f"Without any fault, at {where}, all {len(betas)} betas have one row too: "
        f"the learning rate of preset `{study.emulate.preset}` alone makes rows coincide."
    )


def identical_choices(study: EmulatedStudy) -> list[Pattern]:
    """Return whether checkpoints with different weights choose alike."""
    shots, runs = min(study.shots), [(beta, epoch) for beta in study.emulate.kl_betas for epoch in study.epochs]
    quoted = study.quoted.identical_choices()
    ours, control = (study.emulated.agreements(arm, runs, shots) for arm in ("head", NONE))
    if not ours:
        return []
    return [
        Pattern(
            id="identical-choices",
            statement="Two checkpoints with different weights choose the same first demonstration for every query.",
            published="" if quoted is None else percent(quoted),
            arm="head",
            with_fault=_alike(ours),
            without=_alike(control),
            criterion="every two checkpoints with the fault, no two without",
            holds=min(ours) == 1,
            holds_without=max(control) == 1,
            remark="Published: one pair over 50 queries; emulated: every pair over every query.",
        )
    ]


def _alike(shares: Sequence[float]) -> str:
    return f"{sum(share == 1 for share in shares)} of {len(shares)} pairs, smallest share {percent(min(shares))}"


def repeats(study: EmulatedStudy) -> list[Pattern]:
    """Return whether long prompts repeat demonstrations, and how few prompts there are."""
    items = study.emulate.pool_items
    long = [k for k in study.shots if k > items]
    most = sum(perm(items, min(k, items)) for k in study.shots)
    prompts, control = study.emulated.most_prompts("pool"), study.emulated.most_prompts(NONE)
    found = []
    if long:
        shares = {arm: [study.emulated.repeated_share(arm, k) for k in long] for arm in ("pool", NONE)}
        found.append(
            Pattern(
                id="repeated-demonstrations",
                statement=f"Every prompt of {listing(long)} shots shows a demonstration twice.",
                published="",
                arm="pool",
                with_fault=percent(fmean(shares["pool"])),
                without=percent(fmean(shares[NONE])),
                criterion="all prompts with the fault, none without",
                holds=min(shares["pool"]) == 1,
                holds_without=max(shares[NONE]) > 0,
            )
        )
    found.append(
        Pattern(
            id="few-prompts",
            statement=f"All checkpoints together make at most {most} prompts of a query.",
            published="",
            arm="pool",
            with_fault=str(prompts),
            without=str(control),
            criterion=f"at most {most} with the fault, more without",
            holds=prompts <= most,
            holds_without=control <= most,
        )
    )
    return found


def reused_rows(study: EmulatedStudy) -> list[Pattern]:
    """Return whether two epochs of one beta can differ at few shots and agree at many."""
    short, long = (tuple(k for k in study.shots if (k > 2) == more) for more in (False, True))
    beta = study.emulate.other_kl_beta
    if not (short and long and 2 in study.epochs):
        return []

    def differing(arm: str) -> tuple[str, bool]:
        counts = []
        for shots in (short, long):
            one, other = (study.emulated.cells(arm, (beta, epoch), study.samples, shots) for epoch in (1, 2))
            counts.append((sum(a != b for a, b in zip(one, other, strict=True)), len(one)))
        text = " and ".join(f"{n} of {cells}" for n, cells in counts)
        return text, counts[0][0] > 0 == counts[1][0]

    control, published = differing(NONE), study.quoted.differing_cells(beta, study.samples, (short, long))
    found = []
    for arm in ("pool", "all"):
        counted, looks_copied = differing(arm)
        found.append(
            Pattern(
                id=f"reused-rows-{arm}",
                statement=f"KL_BETA={beta_text(beta)} differs between epochs 1 and 2 at 1 and 2 shots, not at more.",
                published=published,
                arm=arm,
                with_fault=counted,
                without=control[0],
                criterion="some cells differ at 1 and 2 shots and none at more, with the fault and not without",
                holds=looks_copied,
                holds_without=control[1],
                remark="" if looks_copied else COPIED,
            )
        )
    return found


def one_beta_apart(study: EmulatedStudy) -> list[Pattern]:
    """Return whether the beta with another base stands apart from those that share one, in the published cells."""
    if len(study.others) < 2:
        return []
    alone, betas = study.emulate.other_kl_beta, study.emulate.kl_betas
    published = _by_beta(study.published_rows(betas))
    if not (alone in published and len(published) > 2):
        published = {}
    judged = [beta for beta in betas if beta in published] or betas
    rows = {arm: _by_beta(study.rows(arm, [(beta, 1) for beta in judged])) for arm in ("bases", "all", NONE)}
    name = beta_text(alone)
    return [
        Pattern(
            id="one-beta-apart",
            statement=f"KL_BETA={name} stands apart from the other betas after epoch 1.",
            published=_gaps_text(published, alone),
            arm="bases",
            with_fault=_gaps_text(rows["bases"], alone),
            without=_gaps_text(rows[NONE], alone),
            criterion=f"{name} differs more from its nearest beta than any two others differ, only with the fault",
            holds=_is_apart(rows["bases"], alone),
            holds_without=_is_apart(rows[NONE], alone),
        ),
        Pattern(
            id="one-beta-alone",
            statement=f"After epoch 1 the other betas have one row and KL_BETA={name} has another.",
            published=_distance_text(published, alone),
            arm="all",
            with_fault=_distance_text(rows["all"], alone),
            without=_distance_text(rows[NONE], alone),
            criterion=f"two rows with all faults, that of {name} alone; not so without",
            holds=_is_alone(rows["all"], alone),
            holds_without=_is_alone(rows[NONE], alone),
            remark=f"Points: mean difference of {name} from its nearest beta.",
        ),
    ]


def _by_beta(rows: Mapping[Run, Row]) -> dict[float, Row]:
    """Return the rows of epoch 1."""
    return {beta: row for (beta, epoch), row in rows.items() if epoch == 1}


def _differences(one: Row, other: Row) -> float:
    return fmean(abs(a - b) for a, b in zip(one, other, strict=True))


def _gaps(rows: Mapping[float, Row], alone: float) -> tuple[float, float]:
    """Return the smallest difference of one beta from another, and the largest between any two others."""
    others = [row for beta, row in rows.items() if beta != alone]
    nearest = min(_differences(rows[alone], row) for row in others)
    return nearest, max(_differences(one, other) for one, other in combinations(others, 2))


def _gaps_text(rows: Mapping[float, Row], alone: float) -> str:
    if not rows:
        return ABSENT
    nearest, widest = _gaps(rows, alone)
    return f"{number(nearest, 2)} points against {number(widest, 2)}"


def _distance_text(rows: Mapping[float, Row], alone: float) -> str:
    return f"{distinct(list(rows.values()))}, {number(_gaps(rows, alone)[0], 2)} points apart" if rows else ABSENT


def _is_apart(rows: Mapping[float, Row], alone: float) -> bool:
    nearest, widest = _gaps(rows, alone)
    return nearest > widest


def _is_alone(rows: Mapping[float, Row], alone: float) -> bool:
    others = {row for beta, row in rows.items() if beta != alone}
    return len(others) == 1 and rows[alone] not in others
