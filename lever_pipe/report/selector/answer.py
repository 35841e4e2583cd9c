"""The two summaries of study `lever`, on the choice of KL_BETA and on the gain of GRPO, and the ladder of policies.

All use the primary endpoint: the mean over shots, at the largest sample count and the last common epoch, for every mode
of GRPO.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.report.cells import (
    Cell,
    Estimate,
    Message,
    average,
    derived,
    gap,
    holm,
    level,
    message,
    part,
)
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import ALPHA, EvidenceRow
from lever_pipe.report.inference.families import ORACLE
from lever_pipe.report.labels import label, reading_order
from lever_pipe.report.summaries import MarkKind, Summary, SummaryRow
from lever_pipe.report.table import SUBJECTS, Row, Table, framed

RANDOM = "baseline/random"
SIMILAR = ("baseline/similar_both", "baseline/similar_question", "baseline/similar_image")
COMPARISONS = ("comparisons", message("All comparisons"))
RUN = ("#run", message("both recipes"))
MODE_NAMES = {
    "grpo": "offline",
    "on_policy": "on-policy",
}
POLICIES = {
    "random": "random",
    "similar": "most similar",
    "rce": "RCE",
    "grpo": "GRPO offline",
    "on_policy": "GRPO on-policy",
    "oracle": "oracle",
}


@dataclass(frozen=True, slots=True)
class Mode:
    """GRPO on stored selections (`grpo`) or on the policy's own samples (`on_policy`), after its last common epoch.

    Attributes:
        name: `grpo` or `on_policy`.
        groups: by beta, in ascending order.
        over: group of the mean over all betas.
        base: RCE group from which it started.
        candidates: groups that may represent the mode, best first: over all betas, the documents' reference, each beta.
    """

    name: str
    groups: dict[float, str]
    over: str
    base: str
    candidates: list[str]

    @property
    def called(self) -> Message:
        """Return its name within a sentence."""
        return message(MODE_NAMES[self.name])

    @property
    def kind(self) -> MarkKind:
        """Return its mark in a plot."""
        return "b" if self.name == "on_policy" else "a"


def modes_of(context: ReportContext) -> list[Mode]:
    """Return the modes of GRPO that the main preset ran, offline first."""
    main, modes = context.main, []
    offline = ("grpo", main.last_grpo, main.base, main.last)
    for name, groups, base, epoch in (
        offline,
        ("on_policy", main.on_policy_groups, main.on_policy_base, main.last_on_policy),
    ):
        if groups and base is not None and epoch is not None:
            over = f"preset~{main.preset}/{name}/base~{base}/beta~all/epoch~{epoch}"
            reference = [group for beta, group in groups.items() if beta == main.reference_beta]
            candidates = [over, *reference, *groups.values()]
            modes.append(Mode(name, groups, over, main.rce.get(base, ""), candidates))
    return modes


def answers(context: ReportContext) -> Iterator[Summary]:
    """Yield both summaries, or none without the study."""
    if context.has("lever"):
        modes = modes_of(context)
        yield which_beta(context, modes)
        yield does_grpo_help(context, modes)


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the ladder: each policy's accuracy and its difference from the RCE base."""
    if not context.has("lever") or not context.samples:
        return
    main, modes = context.main, modes_of(context)
    base = (modes[-1].base if modes else "") or main.last_rce or ""
    groups = reading_order([name for name in context.baselines if name != ORACLE])
    groups += [main.last_rce or "", *(name for mode in modes for name in (mode.over, *mode.groups.values()))]
    rows: list[Row] = []
    for group in (*groups, *main.extra_groups, ORACLE):
        row, difference = context.accuracy(group), context.primary(group, base)
        if row is not None or difference is not None:
            rows.append(
                {
                    "Policy": label(group, with_epoch=False),
                    "Accuracy (%)": level(row, 1),
                    "Gain over RCE": gap(difference, 2),
                    "Holm p": holm(difference),
                    "Runs": part(row or difference, "runs", 0),
                    SUBJECTS: (group,),
                }
            )
        if group == base:
            rows += _of_fewer_seeds(context, base, (*groups, *main.extra_groups))
    title = message("Every policy at the primary endpoint, {n} questions", n=max(context.samples))
    yield Table("ladder", "selector", title, framed(rows))


def _of_fewer_seeds(context: ReportContext, base: str, groups: Iterable[str]) -> Iterator[Row]:
    """Yield the base's levels over fewer seeds, the reference of differences of policies with fewer seeds."""
    whole = context.accuracy(base)
    levels: dict[float, tuple[list[Cell], EvidenceRow, EvidenceRow]] = {}
    for group in groups:
        row, difference = context.accuracy(group), context.primary(group, base)
        if whole is not None and row is not None and difference is not None and 0 < difference.runs < whole.runs:
            # Rounding merges policies with the same level of the base.
            entry = levels.setdefault(round(row.value - difference.value, 6), ([], row, difference))
            entry[0].append(label(group, with_epoch=False))
    for paired, (names, row, difference) in levels.items():
        level_of = derived(paired, 1, (row, difference), "accuracy minus its difference to the base")
        policy = message("{base}, same seeds as {policies}", base=label(base, with_epoch=False), policies=names)
        yield {"Policy": policy, "Accuracy (%)": level_of, "Runs": part(difference, "runs", 0)}


def separated(context: ReportContext) -> list[dict[str, Any]]:
    """Return for each mode the number of betas that are separated from RCE, and the range of their gains."""
    gains = []
    for mode in modes_of(context) if context.has("lever") else ():
        if rows := _tested(context, mode):
            low, high = (pick(rows, key=lambda row: row.value) for pick in (min, max))
            ends = {"low": gap(low), "high": gap(high)}
            gains.append({"mode": mode.name, **_apart(rows), **{name: end and end.plain for name, end in ends.items()}})
    return gains


def is_separated(row: EvidenceRow) -> bool:
    """Return whether a comparison's Holm p is below 0.05."""
    return row.p_holm < ALPHA


def _apart(rows: Collection[EvidenceRow]) -> dict[str, Any]:
    """Return the number of separated comparisons, and the number of all."""
    n = sum(map(is_separated, rows))
    return {"apart": derived(n, 0, rows, "comparisons with Holm p below 0.05"), "tested": len(rows)}


def which_beta(context: ReportContext, modes: Sequence[Mode]) -> Summary:
    """Return the summary on KL_BETA: each beta against the smallest, in every mode with two betas or more."""
    compared = [(mode, rows) for mode in modes if (rows := _against_smallest(context, mode))]
    smallest = min(compared[0][0].groups) if compared else 0.0
    plotted = [(mode, rows) for mode, rows in compared if min(mode.groups) == smallest]
    gaps = [(mode.kind, rows) for mode, rows in plotted]
    return Summary(
        id="beta",
        title=message("Which KL_BETA?"),
        facts={
            "betas": [f"{beta:g}" for beta in sorted({beta for mode in modes for beta in mode.groups})],
            "modes": [_spread(context, *pair) for pair in compared],
            "basis": _basis(next(iter(rows.values())) for _, rows in compared),
        },
        rows=tuple(
            SummaryRow(f"{beta:g}", tuple((kind, number) for kind, of in gaps if (number := gap(of.get(beta), 2))))
            for beta in sorted({beta for _, of in gaps for beta in of})
        ),
        axis=message("points against KL_BETA {beta}, paired, 95 %", beta=smallest) if compared else None,
        links=(COMPARISONS, ("#why", message("why the published rows are equal"))) if compared else (RUN,),
        keys=tuple((mode.kind, mode.called) for mode, _ in plotted),
    )


def does_grpo_help(context: ReportContext, modes: Sequence[Mode]) -> Summary:
    """Return the summary on GRPO: every mode against its RCE base, separated ones first, and all policies."""
    gains = [(mode, row) for mode in modes if (row := _gain(context, mode)) is not None]
    gains.sort(key=lambda pair: not is_separated(pair[1]))
    base = context.main.last_rce
    return Summary(
        id="grpo",
        title=message("Does GRPO help?"),
        facts={
            "has_run": bool(modes),
            "modes": [_gained(context, mode, row) for mode, row in gains],
            "learned": gap(context.compared(base, RANDOM), 1) if base else None,
            "basis": _basis(row for _, row in gains),
            **_recipes(context, modes),
        },
        rows=tuple(_ladder(context, modes)),
        axis=message("VQA accuracy in %, mean over shots, 95 %"),
        links=(("#selector", message("KL against accuracy")), RUN),
    )


def _tested(context: ReportContext, mode: Mode) -> list[EvidenceRow]:
    """Return the differences of a mode's betas from its RCE base."""
    rows = (context.primary(name, mode.base) for name in mode.groups.values())
    return [row for row in rows if row is not None]


def _against_smallest(context: ReportContext, mode: Mode) -> dict[float, EvidenceRow]:
    """Return the difference of each beta from the smallest one."""
    smallest = min(mode.groups)
    rows = ((beta, context.primary(name, mode.groups[smallest])) for beta, name in mode.groups.items())
    return {beta: row for beta, row in rows if row is not None and beta != smallest}


def _spread(context: ReportContext, mode: Mode, rows: dict[float, EvidenceRow]) -> dict[str, Any]:
    """Return the range of a mode's levels, and the beta farthest from the smallest one, preferably a separated one."""
    levels = {beta: context.accuracy(name) for beta, name in mode.groups.items()}
    present = {beta: row for beta, row in levels.items() if row is not None}
    values = [row.value for row in present.values()]
    apart = [beta for beta, row in rows.items() if is_separated(row)]
    farthest = max(apart or rows, key=lambda beta: abs(rows[beta].value))
    # Levels that print equal share the highest place.
    highest = [beta for beta, row in present.items() if not round(max(values) - row.value, 2)] or [min(mode.groups)]
    return {
        "mode": mode.name,
        "n": len(mode.groups),
        "spread": derived(max(values) - min(values), 2, present.values(), "highest minus lowest") if present else None,
        "highest": [f"{beta:g}" for beta in sorted(highest)],
        "is_apart": bool(apart),
        "beta": f"{farthest:g}",
        "smallest": f"{min(mode.groups):g}",
        "gap": gap(rows[farthest], 2),
    }


def _gain(context: ReportContext, mode: Mode) -> EvidenceRow | None:
    """Return a mode's difference from its RCE base: over all betas, or at the documents' reference, or at any beta."""
    rows = (context.primary(name, mode.base) for name in mode.candidates)
    return next((row for row in rows if row is not None), None)


def _gained(context: ReportContext, mode: Mode, row: EvidenceRow) -> dict[str, Any]:
    sign = "open" if not is_separated(row) else "up" if row.value > 0 else "down"
    beta = None if row.subject == mode.over else f"{PolicyName.parse(row.subject).beta or 0.0:g}"
    return {"mode": mode.name, "sign": sign, "gap": gap(row, 1), "beta": beta, **_apart(_tested(context, mode))}


def _ladder(context: ReportContext, modes: Sequence[Mode]) -> Iterator[SummaryRow]:
    similar = [number for group in SIMILAR if (number := level(context.accuracy(group), 1)) is not None]
    marks: list[tuple[MarkKind, Message, Estimate | None]] = [
        ("muted", message(POLICIES["random"]), level(context.accuracy(RANDOM), 1)),
        ("muted", message(POLICIES["similar"]), max(similar, key=lambda number: number.value, default=None)),
        ("muted", message(POLICIES["rce"]), level(context.accuracy(context.main.last_rce or ""), 1)),
        *((mode.kind, *_of_mode(context, mode)) for mode in modes),
        ("muted", message(POLICIES["oracle"]), level(context.accuracy(ORACLE), 1)),
    ]
    yield from (SummaryRow(name, ((kind, number),)) for kind, name, number in marks if number is not None)


def _of_mode(context: ReportContext, mode: Mode) -> tuple[Message, Estimate | None]:
    """Return the level of the group in the mode's gain: the mean over its betas, or one named beta."""
    row, name = _gain(context, mode), message(POLICIES[mode.name])
    subject = row.subject if row is not None else mode.candidates[1]
    if subject == mode.over:
        return name, average([level(context.accuracy(group), 1) for group in mode.groups.values()])
    beta = PolicyName.parse(subject).beta or 0.0
    return message("{policy}, β {beta}", policy=name, beta=beta), level(context.accuracy(subject), 1)


def _basis(rows: Iterable[EvidenceRow]) -> dict[str, Any] | None:
    """Return the numbers of seeds and questions in comparisons, and the mode with fewer seeds."""
    compared = list(rows)
    if not compared:
        return None
    first, few = (pick(compared, key=lambda row: row.runs) for pick in (max, min))
    basis: dict[str, Any] = {
        "seeds": first.runs,
        "runs": part(first, "runs", 0),
        "n": part(first, "n", 0),
        "fewer": None,
    }
    if few.runs < first.runs:
        basis["fewer"] = {"mode": few.subject.split("/")[1], "seeds": few.runs, "runs": part(few, "runs", 0)}
    return basis


def _recipes(context: ReportContext, modes: Sequence[Mode]) -> dict[str, Any]:
    """Return learning rates and rewards, on-policy and offline, if both modes ran and they differ."""
    preset = context.config.presets.get(context.main.preset)
    if preset is None or len(modes) < 2:
        return {"rates": None, "rewards": None}
    rates = f"{preset.on_policy.learning_rate:g}", f"{preset.grpo.learning_rate:g}"
    rewards = preset.on_policy.reward.mode, preset.reward.mode
    is_same = preset.reward == preset.on_policy.reward
    return {"rates": None if rates[0] == rates[1] else rates, "rewards": None if is_same else rewards}
