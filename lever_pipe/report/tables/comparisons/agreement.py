"""Do the compared policies choose the same demonstrations? Tables of the section `agreement`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lever_pipe.base.policy_names import PolicyName, beta_text, group_of
from lever_pipe.metrics.agreement import clusters
from lever_pipe.report.tables.comparisons.agreement_rows import (
    AgreementRows,
    PairRow,
    ParameterRow,
    PromptRow,
    shown_groups,
    trained_groups,
)
from lever_pipe.report.tables.policies import label_of
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import listing, number, sentences

SAME = 0.99
"""Share of queries from which on policies are named as one cluster."""
SECTION = "agreement"
IN_SEQUENCE, IN_ANY_ORDER = "in the same order", "in any order"
SHORT_LABELS = {
    "random": "Random",
    "similar_image": "Similar image",
    "similar_question": "Similar question",
    "similar_both": "Similar both",
    "oracle": "Oracle",
}


class Share(NamedTuple):
    """Mean shares of queries over the runs of two groups at one number of shots."""

    as_sequence: float
    as_set: float
    at_position: float


Shares = Mapping[tuple[str, str, int], Share]
"""By left group, right group and shots; of a group with itself: between its seeds or draws."""


def tables(measured: AgreementRows, main_preset: str) -> list[Table]:
    """Return the tables of the documents' policies, and the parameters of every preset; none without a row."""
    present = dict.fromkeys(group_of(name) for row in measured.pairs for name in (row.left, row.right))
    shown = shown_groups(present, main_preset)
    shares = mean_shares(measured.pairs)
    prompted = dict.fromkeys(group_of(row.policy) for row in measured.prompts)
    found = [
        *_matrices(shares, shown, measured.pairs),
        _positions(shares, shown, measured.pairs),
        *_parameters(measured.parameters),
        _prompts(measured.prompts, shown_groups(prompted, main_preset)),
    ]
    return [table for table in found if not table.frame.empty]


def mean_shares(pairs: Sequence[PairRow]) -> dict[tuple[str, str, int], Share]:
    """Return the means over the runs of every two groups, in both directions."""
    found: dict[tuple[str, str, int], list[tuple[float, float, float]]] = {}
    for row in pairs:
        left, right = group_of(row.left), group_of(row.right)
        for key in {(left, right, row.shots), (right, left, row.shots)}:
            found.setdefault(key, []).append((row.as_sequence, row.as_set, row.at_position))
    return {key: Share(*(_mean(column) for column in zip(*rows, strict=True))) for key, rows in found.items()}


def consequence(shares_PP: NDArray[np.float64], groups: Sequence[str], order: str, shots: int) -> str:
    """Return what follows from a matrix: which policies choose alike, or that no two of them do.

    Equal prompts have equal answers, so accuracies can differ by no more than the share of the other prompts.
    """
    found = [cluster for cluster in clusters(shares_PP, SAME) if len(cluster) > 1]
    if found:
        return sentences(*(_alike(shares_PP, groups, cluster, order, shots) for cluster in found))
    pairs = [float(shares_PP[i, j]) for i, j in combinations(range(len(groups)), 2)]
    known = [share for share in pairs if not math.isnan(share)]
    if not known:
        return ""
    most = number(100 * max(known), 1)  # rounded as its cell, which stands above and may be quoted again below
    return f"The largest share of queries for which two policies choose the same demonstrations {order}: {most} %."


def _alike(
    shares_PP: NDArray[np.float64], groups: Sequence[str], cluster: Sequence[int], order: str, shots: int
) -> str:
    least = min(float(shares_PP[i, j]) for i, j in combinations(cluster, 2))
    percent = math.floor(1000 * least + 1e-9) / 10  # rounded down, for it is a lower bound
    agree = ", so their rows must agree" if order == IN_SEQUENCE else ""
    bound = f"Their accuracies at {shots} shots cannot differ by more than {number(100 - percent, 1)} points."
    return sentences(
        f"These {len(cluster)} policies choose the same demonstrations {order} for at least {number(percent, 1)} % of "
        f"queries{agree}: {listing(_short_label(groups[i]) for i in cluster)}.",
        bound if agree else "",
    )


def _matrices(shares: Shares, shown: Sequence[str], pairs: Sequence[PairRow]) -> list[Table]:
    shots = max((row.shots for row in pairs), default=0)
    return [
        _grid("agreement-sequences", "Agreement in sequence", IN_SEQUENCE, shares, (shown, shots, pairs)),
        _grid("agreement-sets", "Agreement as sets", IN_ANY_ORDER, shares, (shown, shots, pairs)),
    ]


def _grid(name: str, title: str, order: str, shares: Shares, of: tuple[Sequence[str], int, Sequence[PairRow]]) -> Table:
    shown, shots, pairs = of
    absent = Share(math.nan, math.nan, math.nan)
    cells = [[shares.get((a, b, shots), absent) for b in shown] for a in shown]
    chosen = [[c.as_sequence if order == IN_SEQUENCE else c.as_set for c in row] for row in cells]
    shares_PP = np.array(chosen, dtype=np.float64).reshape(len(shown), len(shown))
    columns = [_short_label(group) for group in shown]
    rows = [
        {"Policy": label_of(group), **{c: number(100 * float(v), 1) for c, v in zip(columns, values, strict=True)}}
        for group, values in zip(shown, shares_PP, strict=True)
    ]
    caption = sentences(
        f"Queries in percent for which two policies choose the same {shots} demonstrations {order}.",
        _runs(shown, pairs),
        "Diagonal: two seeds or draws of the same policy." if not np.isnan(shares_PP.diagonal()).all() else "",
        consequence(shares_PP, shown, order, shots),
        _betas_and_seeds(shares_PP, shown),
    )
    frame = frame_of(rows, ["Policy", *columns])
    return Table(name, SECTION, title, caption, frame, factor="policy", groups=tuple(shown))


def _betas_and_seeds(shares_PP: NDArray[np.float64], shown: Sequence[str]) -> str:
    """Return how far two betas agree against two seeds of one beta, where there are several of both."""
    grpo = [i for i, group in enumerate(shown) if PolicyName.parse(group).beta is not None]
    betas = [float(shares_PP[i, j]) for i, j in combinations(grpo, 2)]
    seeds = [float(shares_PP[i, i]) for i in grpo if not math.isnan(shares_PP[i, i])]
    if not betas or not seeds:
        return ""
    return f"Two betas of one seed agree for {_span(betas)} % of queries, two seeds of one beta for {_span(seeds)} %."


def _span(shares: Sequence[float]) -> str:
    low, high = (number(100 * end(shares), 1) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _positions(shares: Shares, shown: Sequence[str], pairs: Sequence[PairRow]) -> Table:
    trained = [group for group in shown if not group.startswith("baseline/")]
    shots = sorted({row.shots for row in pairs})
    rows = []
    for left, right in combinations(trained, 2):
        known = {k: shares[left, right, k] for k in shots if (left, right, k) in shares}
        cells = {f"Position {k}": number(100 * share.at_position, 1) for k, share in known.items()}
        rows.append({"Policy": label_of(left), "Other policy": label_of(right), **cells})
    caption = sentences("Queries in percent with the same demonstration at a position.", _runs(trained, pairs))
    frame = frame_of(rows, ["Policy", "Other policy", *(f"Position {k}" for k in shots)])
    groups = tuple(f"{left} {right}" for left, right in combinations(trained, 2))
    title = "Agreement by position"
    return Table("agreement-positions", SECTION, title, caption, frame, factor="policy", groups=groups)


def _parameters(parameters: Sequence[ParameterRow]) -> list[Table]:
    """Return one table a preset, for presets differ in more than a policy does."""
    by_group: dict[str, list[ParameterRow]] = {}
    for row in parameters:
        by_group.setdefault(group_of(row.policy), []).append(row)
    presets = dict.fromkeys(PolicyName.parse(group).preset for group in by_group)
    return [_of_preset(preset, {g: by_group[g] for g in trained_groups(by_group, preset)}) for preset in presets]


def _of_preset(preset: str, by_group: Mapping[str, Sequence[ParameterRow]]) -> Table:
    lines = [{"Preset": preset, **_parameter_cells(group, rows)} for group, rows in by_group.items()]
    moves = [
        _mean(row.difference.relative_norm for row in rows)
        for group, rows in by_group.items()
        if PolicyName.parse(group).beta is not None
    ]
    seeds = sorted({PolicyName.parse(row.policy).seed or 0 for rows in by_group.values() for row in rows})
    caption = sentences(
        "A parameter differs when its value is not exactly the base's.",
        _seeds(seeds),
        f"GRPO moves the parameters by at most {number(100 * max(moves), 2)} % of the base's norm." if moves else "",
    )
    columns = ["Preset", "Policy", "Base", "Parameters", "Different (%)", "Norm of difference", "Relative norm (%)"]
    return Table(
        id=f"agreement-parameters-{preset}",
        document=SECTION,
        title=f"Parameters that differ from the base, preset {preset}",
        caption=caption,
        frame=frame_of(lines, columns),
        factor="policy",
        groups=tuple(by_group),
    )


def _parameter_cells(group: str, rows: Sequence[ParameterRow]) -> dict[str, str]:
    base = group_of(rows[0].base)
    found = [row.difference for row in rows]
    return {
        "Policy": label_of(group),
        "Base": "Initialisation" if base.endswith("/init") else label_of(base),
        "Parameters": str(found[0].n_parameters),
        "Different (%)": number(100 * _mean(of.share_differing for of in found), 2),
        "Norm of difference": number(_mean(of.norm for of in found), 4),
        "Relative norm (%)": number(100 * _mean(of.relative_norm for of in found), 2),
    }


def _prompts(prompts: Sequence[PromptRow], shown: Sequence[str]) -> Table:
    counts: dict[tuple[str, int], list[int]] = {}
    for row in prompts:
        counts.setdefault((group_of(row.policy), row.shots), []).append(row.n_distinct_prompts)
    shots = sorted({row.shots for row in prompts})
    means = {key: _mean(values) for key, values in counts.items()}
    lines = [
        {"Policy": label_of(group), **{f"Shot {k}": _count(means[group, k]) for k in shots if (group, k) in means}}
        for group in shown
    ]
    most, queries = max(shots, default=0), max((row.n_queries for row in prompts), default=0)
    fewest = min((means[group, most] for group in shown if (group, most) in means), default=math.nan)
    caption = sentences(
        f"Distinct prompts of {queries} queries: equal image, question and demonstrations in order count once.",
        "Mean over the seeds or draws of a row.",
        f"Fewest at {most} shots: {_count(fewest)}.",
    )
    frame = frame_of(lines, ["Policy", *(f"Shot {k}" for k in shots)])
    title = "Distinct prompts"
    return Table("agreement-prompts", SECTION, title, caption, frame, factor="policy", groups=tuple(shown))


def _runs(shown: Sequence[str], pairs: Sequence[PairRow]) -> str:
    names = {name for row in pairs for name in (row.left, row.right) if group_of(name) in shown}
    return _seeds(sorted({seed for name in names if (seed := PolicyName.parse(name).seed) is not None}))


def _seeds(seeds: Sequence[int]) -> str:
    """Return which seeds stand behind the numbers."""
    if len(seeds) > 1:
        return f"Mean over {len(seeds)} seeds ({listing(seeds)}), each compared within its seed."
    return f"One seed ({seeds[0]})." if seeds else ""


def _short_label(group: str) -> str:
    name = PolicyName.parse(group)
    if name.beta is not None:
        return f"KL_BETA={beta_text(name.beta)}"
    return f"RCE epoch {name.epoch}" if name.preset else SHORT_LABELS.get(name.member, name.member.replace("_", " "))


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return math.fsum(known) / len(known)


def _count(value: float) -> str:
    return number(value, 0 if float(value).is_integer() else 1)
