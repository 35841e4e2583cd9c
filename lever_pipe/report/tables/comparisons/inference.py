"""Tables of what can be told apart: the highest KL_BETA, and every family of comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lever_pipe.report.tables.comparisons.estimates import UNADJUSTED, ComparisonRow, IntervalRow, method_of
from lever_pipe.report.tables.comparisons.families import (
    AGAINST_RCE,
    BETAS,
    DRAWN_AGAINST_OFFLINE,
    DRAWN_AGAINST_RCE,
    DRAWN_BETAS,
    DRAWN_OVER_BETAS,
    HIGHEST,
    LEARNING,
    MARKS,
    ON_POLICY,
    OTHERS,
    OVER_BETAS,
    Arm,
    ComparisonFamily,
    highest_beta,
)
from lever_pipe.report.tables.documents.grpo_tables import ONE_SEED
from lever_pipe.report.tables.evidence import ALPHA, BY_SHOTS, MEAN, OF_ONE_RUN, Interval, kind_of, p_text
from lever_pipe.report.tables.policies import label_of
from lever_pipe.report.tables.table import Table, frame_of
from lever_pipe.report.tables.text import beta_text, listing, number, sentences, signed

HIGHEST_TABLE = "highest-kl-beta"
SECTION = "statistics"
PAIRED = "A difference is paired over the same questions; low and high are the ends of its 95 % interval."
DETECTABLE = "Detectable: the smallest difference that the comparison finds at 80 % power, without adjustment."
SEVERAL_SEEDS = "Intervals and p values hold for further seeds and questions."
ONE_RUN = "Intervals and p values hold for further questions, for these very checkpoints."
TITLES = {
    HIGHEST: "Each KL_BETA against the highest one, by shots",
    OVER_BETAS: "GRPO, mean over all KL_BETA, against its RCE base",
    AGAINST_RCE: "GRPO against its RCE base",
    BETAS: "Each KL_BETA of GRPO against the smallest",
    LEARNING: "RCE against the baselines",
    DRAWN_OVER_BETAS: "On-policy GRPO, mean over all KL_BETA, against its RCE base",
    DRAWN_AGAINST_RCE: "On-policy GRPO against its RCE base",
    DRAWN_AGAINST_OFFLINE: "On-policy GRPO against offline GRPO",
    DRAWN_BETAS: "Each KL_BETA of on-policy GRPO against the smallest",
    MARKS: "REINFORCE and oracle distillation",
}
COMMON_SEEDS = "Compared are the runs of the seeds that both policies have."
NUMBERS = ["Difference", "Low", "High", "p", "Holm p", "Detectable"]


def highest_table(
    arm: Arm,
    intervals: Iterable[IntervalRow],
    families: Sequence[ComparisonFamily],
    comparisons: Sequence[ComparisonRow],
    *,
    is_main: bool,
) -> Table:
    """Return every beta of a preset after the last common epoch, against the highest one, at the mean over shots.

    Args:
        arm: the preset's groups.
        intervals: of all groups.
        families: of the preset.
        comparisons: their rows.
        is_main: another preset stands in the table's name and title.
    """
    pairs = {family.name for family in families if family.name.endswith((HIGHEST, OTHERS))}
    rows = [row for row in comparisons if kind_of(row.family) in pairs]
    at = _means(intervals, arm.last_grpo.values())
    highest = highest_beta(arm, lambda group: at[group].accuracy)
    against = {row.left: row for row in rows if row.shots == MEAN and row.right == arm.last_grpo.get(highest or 0.0)}
    lines = [
        {
            "KL_BETA": beta_text(beta),
            "Accuracy": _interval(at[group]).text(),
            **(_numbers(against[group]) if group in against else {"Difference": "highest"}),
        }
        for beta, group in arm.last_grpo.items()
    ]
    samples = next((row.samples for row in at.values()), 0)
    named = "" if is_main else f", preset {arm.preset}"
    return Table(
        HIGHEST_TABLE if is_main else f"{HIGHEST_TABLE}-{arm.preset}",
        SECTION,
        f"Highest KL_BETA after GRPO epoch {arm.last}{named}",
        sentences(
            verdict(arm, at, rows),
            f"VQA accuracy in percent, mean over shots, {samples} samples.",
            "Difference: to the highest one, in points.",
            PAIRED,
            f"Holm p: adjusted for all {len(rows)} comparisons of two betas, shots included." if rows else "",
            UNADJUSTED if len(rows) > 1 else "",
            DETECTABLE if rows else "",
            method_of(row.test for row in rows),
            _runs(rows),
        ),
        frame_of(lines, ["KL_BETA", "Accuracy", *NUMBERS]),
        factor="kl_beta",
        groups=tuple(arm.last_grpo.values()),
    )


def verdict(arm: Arm, at: Mapping[str, IntervalRow], rows: Iterable[ComparisonRow]) -> str:
    """Return which beta is highest at the mean over shots, and whether any other is separated from it."""
    highest = highest_beta(arm, lambda group: at[group].accuracy)
    if highest is None:
        return ""
    betas = {group: beta for beta, group in arm.last_grpo.items()}
    against = [row for row in rows if row.shots == MEAN and row.right == arm.last_grpo[highest]]
    first = f"Highest KL_BETA: {beta_text(highest)}, {_interval(at[arm.last_grpo[highest]]).text()}."
    if not against:
        return first
    apart = [beta_text(betas[row.left]) for row in against if row.p_holm < ALPHA]
    if apart:
        return f"{first} Separated from the highest one: KL_BETA {listing(apart)}."
    least = p_text(min(row.p_holm for row in against))
    return f"{first} No KL_BETA is separated from the highest one: the smallest Holm p is {least}."


def family_tables(families: Sequence[ComparisonFamily], rows: Sequence[ComparisonRow]) -> list[Table]:
    """Return one table a family, those of one run apart, a row a comparison and shot count."""
    found = []
    for family in families:
        for name in (family.name, f"{family.name}{OF_ONE_RUN}"):
            of_family = [row for row in rows if row.family == name]
            if of_family and not family.name.endswith(OTHERS):
                found.append(_family_table(family, of_family, _adjusted_with(family, families, rows, name)))
    return found


def _adjusted_with(
    family: ComparisonFamily, families: Sequence[ComparisonFamily], rows: Iterable[ComparisonRow], name: str
) -> int:
    """Return how many comparisons are adjusted together with those of a family, or of its part of one run."""
    suffix = name.removeprefix(family.name)
    together = {other.name + suffix for other in families if other.adjusted_with == family.adjusted_with}
    return sum(row.family in together for row in rows)


def _family_table(family: ComparisonFamily, rows: Sequence[ComparisonRow], adjusted: int) -> Table:
    preset, name = _split(rows[0].family)
    lines = [
        {
            "Policy": label_of(row.left),
            "Against": label_of(row.right),
            "Shots": row.shots,
            **_numbers(row),
        }
        for row in rows
    ]
    return Table(
        f"family-{name.replace('/', '-')}" + (f"-{preset}" if preset else ""),
        SECTION,
        _title(name) + (f", preset {preset}" if preset else "") + f", {family.samples} samples",
        sentences(
            _separated(rows),
            "Difference: policy minus the other, in points.",
            PAIRED,
            f"Holm p: adjusted for {adjusted} comparisons.",
            UNADJUSTED if adjusted > 1 else "",
            DETECTABLE,
            method_of(row.test for row in rows),
            COMMON_SEEDS if kind_of(name) in ON_POLICY else "",
            _runs(rows),
        ),
        frame_of(lines, ["Policy", "Against", "Shots", *NUMBERS]),
        factor=_factor(name),
        groups=tuple("" if "/beta~all/" in row.left else f"{row.left} {row.right}" for row in rows),
    )


def _split(family: str) -> tuple[str, str]:
    """Return the preset in a family's name, empty for the main one, and the name without it."""
    if not family.startswith("preset~"):
        return "", family
    preset, _, name = family.removeprefix("preset~").partition("/")
    return preset, name


def _title(name: str) -> str:
    kind, _, epoch = kind_of(name).partition("/epoch~")
    match kind:
        case "document-001":
            title = f"Each KL_BETA against the reference, GRPO epoch {epoch}"
        case "document-002":
            title = f"KL_BETA 0.18, 0.15 and 0.12 in pairs, GRPO epoch {epoch}"
        case _:
            title = TITLES[kind]
    return title + (", by shots" if BY_SHOTS in name else "") + (", one run each" if name.endswith(OF_ONE_RUN) else "")


def _factor(name: str) -> str:
    """Return what the rows of a family may differ in; on-policy runs may have fewer seeds than what they meet."""
    kind = kind_of(name)
    if kind == DRAWN_BETAS:
        return "kl_beta"
    if kind in ON_POLICY:
        return "policy base seed"
    return "policy base" if kind in (AGAINST_RCE, OVER_BETAS, LEARNING) else "kl_beta"


def _separated(rows: Sequence[ComparisonRow]) -> str:
    apart = sum(row.p_holm < ALPHA for row in rows)
    if apart:
        return f"Separated (Holm p below 0.05): {apart} of {len(rows)} comparisons."
    return f"Nothing is separated: the smallest Holm p is {p_text(min(row.p_holm for row in rows))}."


def _numbers(row: ComparisonRow) -> dict[str, str]:
    values = (signed(row.difference, 2), number(row.low, 2), number(row.high, 2), p_text(row.p), p_text(row.p_holm))
    return dict(zip(NUMBERS, (*values, number(row.detectable, 2)), strict=True))


def _means(intervals: Iterable[IntervalRow], groups: Iterable[str]) -> dict[str, IntervalRow]:
    """Return the rows of the mean over shots at the largest sample count, by group."""
    wanted, found = set(groups), {}
    for row in sorted(intervals, key=lambda row: row.samples):
        if row.group in wanted and row.shots == MEAN:
            found[row.group] = row
    return found


def _interval(row: IntervalRow) -> Interval:
    return Interval(row.accuracy, row.low, row.high, row.n_runs)


def _runs(rows: Sequence[ComparisonRow]) -> str:
    counts = {row.n_runs for row in rows}
    if not counts:
        return ""
    return sentences(ONE_RUN, ONE_SEED) if counts == {1} else SEVERAL_SEEDS
