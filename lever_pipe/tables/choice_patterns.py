"""Published patterns of accuracies and choices: rows that agree, prompts that repeat, a beta that stands apart."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import perm
from statistics import fmean

from lever_pipe.tables.emulated import Row
from lever_pipe.tables.pattern_study import NONE, Pattern, Study, distinct, percent
from lever_pipe.tables.text import beta_text, listing, number


def identical_rows(study: Study) -> list[Pattern]:
    """Return whether the betas of one base agree in every cell, for each fault that may be the cause."""
    if len(study.others) < 2:
        return []
    control, n_published = study.rows(NONE, study.others, study.epochs), study.quoted.rows_of_one_base()
    found = []
    for arm in ("head", "pool", "all"):
        rows = study.rows(arm, study.others, study.epochs)
        least = min(study.emulated.least_agreement(arm, study.others, k) for k in study.shots)
        found.append(
            Pattern(
                id=f"identical-rows-{arm}",
                statement=f"KL_BETA {listing(map(beta_text, study.others))} have one row of accuracies.",
                published=distinct(n_published),
                arm=arm,
                with_fault=distinct(list(rows.values())),
                without=distinct(list(control.values())),
                criterion="one row with the fault, several without",
                reproduced=len(set(rows.values())) == 1 < len(set(control.values())),
                remark=f"Smallest share of equal choices between two of them: {percent(least)}.",
            )
        )
    return found


def identical_choices(study: Study) -> list[Pattern]:
    """Return whether checkpoints with different weights choose alike."""
    shots, betas = min(study.shots), study.emulate.kl_betas
    quoted = study.quoted.identical_choices()
    ours, control = (study.emulated.least_agreement(arm, betas, shots) for arm in ("head", NONE))
    return [
        Pattern(
            id="identical-choices",
            statement="Two checkpoints with different weights choose the same first demonstration for every query.",
            published="" if quoted is None else percent(quoted),
            arm="head",
            with_fault=percent(ours),
            without=percent(control),
            criterion="100 % for every two checkpoints with the fault, less without",
            reproduced=ours == 1 > control,
        )
    ]


def repeats(study: Study) -> list[Pattern]:
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
                reproduced=min(shares["pool"]) == 1 and max(shares[NONE]) == 0,
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
            reproduced=prompts <= most < control,
        )
    )
    return found


def reused_rows(study: Study) -> list[Pattern]:
    """Return whether two epochs of one beta can differ at few shots and agree at many."""
    short, long = [[k for k in study.shots if (k > 2) == more] for more in (False, True)]
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

    control, published = differing(NONE), study.quoted.differing_cells(beta)
    found = []
    for arm in ("pool", "all"):
        counted, looks_copied = differing(arm)
        reproduced = looks_copied and not control[1]
        remark = "" if reproduced else "No emulated fault repeats a row at some shot counts only; a copied row would."
        found.append(
            Pattern(
                id=f"reused-rows-{arm}",
                statement=f"KL_BETA={beta_text(beta)} differs between epochs 1 and 2 at 1 and 2 shots, not at more.",
                published=published,
                arm=arm,
                with_fault=counted,
                without=control[0],
                criterion="some cells differ at 1 and 2 shots and none at more, with the fault and not without",
                reproduced=reproduced,
                remark=remark,
            )
        )
    return found


def one_beta_apart(study: Study) -> list[Pattern]:
    """Return whether the beta with another base stands apart from those that share one."""
    if len(study.others) < 2:
        return []
    alone, betas = study.emulate.other_kl_beta, study.emulate.kl_betas
    rows = {arm: {run[0]: row for run, row in study.rows(arm, betas, [1]).items()} for arm in ("bases", "all", NONE)}
    published = study.quoted.rows_by_beta(betas, 1)
    name = beta_text(alone)
    return [
        Pattern(
            id="one-beta-apart",
            statement=f"KL_BETA={name} stands apart from the other betas after epoch 1.",
            published=_gaps_text(published, alone) if alone in published and len(published) > 2 else "",
            arm="bases",
            with_fault=_gaps_text(rows["bases"], alone),
            without=_gaps_text(rows[NONE], alone),
            criterion=f"{name} differs more from its nearest beta than any two others differ, only with the fault",
            reproduced=_is_apart(rows["bases"], alone) and not _is_apart(rows[NONE], alone),
        ),
        Pattern(
            id="one-beta-alone",
            statement=f"After epoch 1 the other betas have one row and KL_BETA={name} has another.",
            published=distinct(list(published.values())) if published else "",
            arm="all",
            with_fault=distinct(list(rows["all"].values())),
            without=distinct(list(rows[NONE].values())),
            criterion=f"two rows with all faults, that of {name} alone; not so without",
            reproduced=_is_alone(rows["all"], alone) and not _is_alone(rows[NONE], alone),
        ),
    ]


def _differences(one: Row, other: Row) -> float:
    return fmean(abs(a - b) for a, b in zip(one, other, strict=True))


def _gaps(rows: Mapping[float, Row], alone: float) -> tuple[float, float]:
    """Return the smallest difference of one beta from another, and the largest between any two others."""
    others = [row for beta, row in rows.items() if beta != alone]
    nearest = min(_differences(rows[alone], row) for row in others)
    return nearest, max(_differences(one, other) for one, other in combinations(others, 2))


def _gaps_text(rows: Mapping[float, Row], alone: float) -> str:
    nearest, widest = _gaps(rows, alone)
    return f"{number(nearest, 2)} points against {number(widest, 2)}"


def _is_apart(rows: Mapping[float, Row], alone: float) -> bool:
    nearest, widest = _gaps(rows, alone)
    return nearest > widest


def _is_alone(rows: Mapping[float, Row], alone: float) -> bool:
    others = {row for beta, row in rows.items() if beta != alone}
    return len(others) == 1 and rows[alone] not in others
