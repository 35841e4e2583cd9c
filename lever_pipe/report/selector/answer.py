"""The two answers of study `lever`, which KL_BETA and whether GRPO helps, and the ladder of policies behind them.

All are read at the primary endpoint: the mean over shots, the largest sample count and the last common epoch, over
every mode of GRPO.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.report.cards import Card, CardRow, MarkKind
from lever_pipe.report.cells import (
    Cell,
    Code,
    Estimate,
    Message,
    average,
    derived,
    gap,
    holm,
    level,
    part,
    say,
    sentences,
)
from lever_pipe.report.evidence import ALPHA, EvidenceRow
from lever_pipe.report.labels import label, reading_order
from lever_pipe.report.material import Material
from lever_pipe.report.table import Table, TableLine, heads

RANDOM, ORACLE = "baseline/random", "baseline/oracle"
SIMILAR = ("baseline/similar_both", "baseline/similar_question", "baseline/similar_image")
COMPARISONS = ("comparisons", say("All comparisons"))
RUN = ("#run", say("both recipes"))
SPREAD_TOLD = {
    "none": (
        "{mode}: {n} values lie within {spread} points, KL_BETA {highest} highest; the largest "
        "difference is {gap} ({beta} against {smallest})."
    ),
    "some": "{mode}: KL_BETA {beta} against {smallest} is {gap}; {highest} is highest of {n}.",
}
MODE_STARTS = {
    "grpo": "Offline",
    "on_policy": "On-policy",
}
MODE_NAMES = {
    "grpo": "offline",
    "on_policy": "on-policy",
}
ALL_MODES = {
    "up": "Yes.",
    "down": "No. It costs accuracy.",
    "open": "Not shown.",
}
ONE_MODE = {
    "up": "{mode} yes",
    "down": "{mode} a loss",
    "open": "{mode} not shown",
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
    """GRPO on stored selections (`grpo`) or on what the policy draws (`on_policy`), after its last common epoch.

    Attributes:
        name: `grpo` or `on_policy`.
        groups: by beta, rising.
        over: the group that is the mean over all betas.
        base: the RCE group that it started from.
        wanted: all of these groups, those first that stand for the mode: over all betas, then the documents' reference.
    """

    name: str
    groups: dict[float, str]
    over: str
    base: str
    wanted: list[str]

    @property
    def called(self) -> Message:
        """Return its name within a sentence."""
        return say(MODE_NAMES[self.name])

    @property
    def start(self) -> Message:
        """Return its name as a sentence begins with it."""
        return say(MODE_STARTS[self.name])

    @property
    def kind(self) -> MarkKind:
        """Return its mark in a plot."""
        return "b" if self.name == "on_policy" else "a"


def modes(material: Material) -> list[Mode]:
    """Return the modes of GRPO that the main preset ran, offline first."""
    main, found = material.main, []
    offline = ("grpo", main.last_grpo, main.base, main.last)
    for name, groups, base, epoch in (offline, ("on_policy", main.drawn, main.drawn_base, main.last_on_policy)):
        if groups and base is not None and epoch is not None:
            over = f"preset~{main.preset}/{name}/base~{base}/beta~all/epoch~{epoch}"
            reference = [group for beta, group in groups.items() if beta == main.reference_beta]
            wanted = [over, *reference, *groups.values()]
            found.append(Mode(name, groups, over, main.rce.get(base, ""), wanted))
    return found


def answers(material: Material) -> Iterator[Card]:
    """Yield both cards; none without the study."""
    if material.has("lever"):
        found = modes(material)
        yield which_beta(material, found)
        yield does_grpo_help(material, found)


def tables(material: Material) -> Iterator[Table]:
    """Yield the ladder: each policy's accuracy and its difference to the RCE base."""
    if not material.has("lever") or not material.samples:
        return
    main, found = material.main, modes(material)
    base = (found[-1].base if found else "") or main.last_rce or ""
    groups = reading_order([name for name in material.baselines if name != ORACLE])
    groups += [main.last_rce or "", *(name for mode in found for name in (mode.over, *mode.groups.values()))]
    lines = []
    for group in (*groups, *main.beside, ORACLE):
        row, difference = material.accuracy(group), material.primary(group, base)
        if row is not None or difference is not None:
            numbers = (level(row, 1), gap(difference, 2), holm(difference), part(row or difference, "runs", 0))
            lines.append(TableLine((label(group, with_epoch=False), *numbers), groups=(group,)))
        if group == base:
            lines += _of_fewer_seeds(material, base, (*groups, *main.beside))
    columns = heads("Policy", "Accuracy (%)", "Gain over RCE", "Holm p", "Runs")
    title, note = (
        say("Every policy at the primary endpoint, {n} questions", n=max(material.samples)),
        say(
            "Mean over shots after the last epoch; differences are paired. The highest of several "
            "KL_BETA is chosen on the questions that it is shown on."
        ),
    )
    yield Table("ladder", "selector", title, columns, tuple(lines), notes=(note,)).without_empty_columns()


def _of_fewer_seeds(material: Material, base: str, groups: Iterable[str]) -> Iterator[TableLine]:
    """Yield the base's level over the seeds of those that have fewer: what their differences are taken from."""
    whole = material.accuracy(base)
    found: dict[float, tuple[list[Cell], EvidenceRow, EvidenceRow]] = {}
    for group in groups:
        row, difference = material.accuracy(group), material.primary(group, base)
        if whole is not None and row is not None and difference is not None and 0 < difference.runs < whole.runs:
            at = found.setdefault(round(row.value - difference.value, 6), ([], row, difference))
            at[0].append(label(group, with_epoch=False))
    for paired, (names, row, difference) in found.items():
        level_of = derived(paired, 1, (row, difference), "accuracy minus its difference to the base")
        told = say("{base}, same seeds as {policies}", base=label(base, with_epoch=False), policies=names)
        yield TableLine((told, level_of, None, None, part(difference, "runs", 0)))


def texts(material: Material) -> Iterator[tuple[str, Cell]]:
    """Yield how many settings of each mode are separated from RCE."""
    for mode in modes(material) if material.has("lever") else ():
        if rows := _tested(material, mode):
            ends = (pick(rows, key=lambda row: row.value) for pick in (min, max))
            low, high = (Estimate(row.value, 2, row.key, sign=True) for row in ends)
            counts = {"apart": count_separated(rows), "tested": len(rows)}
            yield (
                "selector",
                say(
                    (
                        "GRPO {mode}: {apart} of {tested} KL_BETA are separated from their RCE base; differences "
                        "reach from {low} to {high}."
                    ),
                    mode=mode.called,
                    **counts,
                    low=low,
                    high=high,
                ),
            )


def is_separated(row: EvidenceRow) -> bool:
    """Return whether a comparison's Holm p lies below 0.05."""
    return row.p_holm < ALPHA


def count_separated(rows: Collection[EvidenceRow]) -> Estimate | None:
    """Return how many of some comparisons are separated."""
    return derived(sum(map(is_separated, rows)), 0, rows, "comparisons with Holm p below 0.05")


def which_beta(material: Material, found: Sequence[Mode]) -> Card:
    """Return the card on KL_BETA: each beta against the smallest, in every mode with two betas or more."""
    compared = [(mode, _against_smallest(material, mode)) for mode in found]
    compared = [(mode, rows) for mode, rows in compared if rows]
    title = say("Which KL_BETA?")
    if not compared:
        betas = sorted({beta for mode in found for beta in mode.groups})
        why = (
            say("The KL_BETA that ran were not compared.")
            if betas
            else say("No GRPO run is part of this configuration.")
        )
        return Card(
            "beta",
            title,
            say("Only KL_BETA {beta} ran; a comparison needs two.", beta=betas[0]) if len(betas) == 1 else why,
            None,
            (),
            None,
            None,
            (RUN,),
        )
    told = [_beta_sentence(material, mode, rows) for mode, rows in compared]
    smallest = min(compared[0][0].groups)
    shown = [(mode, rows) for mode, rows in compared if min(mode.groups) == smallest]
    return Card(
        id="beta",
        title=title,
        headline=_beta_headline(compared),
        detail=sentences(*told),
        rows=tuple(_beta_rows(shown)),
        axis=say("points against KL_BETA {beta}, paired, 95 %", beta=smallest),
        notes=_basis(next(iter(rows.values())) for _, rows in compared),
        links=(COMPARISONS, ("#why", say("why the published rows are equal"))),
        keys=tuple((mode.kind, mode.called) for mode, _ in shown),
    )


def does_grpo_help(material: Material, found: Sequence[Mode]) -> Card:
    """Return the card on GRPO: every mode against its RCE base, separated ones first, and all policies."""
    judged = [(mode, _gain(material, mode)) for mode in found]
    known = sorted(((mode, row) for mode, row in judged if row is not None), key=lambda of: not is_separated(of[1]))
    told: list[Cell] = [_gain_sentence(material, mode, row) for mode, row in known]
    base = material.main.last_rce
    learned = material.compared(base, RANDOM) if base else None
    rce = say("RCE itself gains {gap} over random.", gap=gap(learned, 1)) if learned else None
    return Card(
        id="grpo",
        title=say("Does GRPO help?"),
        headline=_gain_headline(found, known),
        detail=sentences(*told, rce),
        rows=tuple(_ladder(material, found)),
        axis=say("VQA accuracy in %, mean over shots, 95 %"),
        notes=sentences(_basis(row for _, row in known), _recipes(material, found)),
        links=(("#selector", say("KL against accuracy")), RUN),
    )


def _tested(material: Material, mode: Mode) -> list[EvidenceRow]:
    """Return the differences of a mode's betas to its RCE base."""
    found = (material.primary(name, mode.base) for name in mode.groups.values())
    return [row for row in found if row is not None]


def _against_smallest(material: Material, mode: Mode) -> dict[float, EvidenceRow]:
    """Return by beta its difference to the smallest one."""
    smallest = min(mode.groups)
    rows = ((beta, material.primary(name, mode.groups[smallest])) for beta, name in mode.groups.items())
    return {beta: row for beta, row in rows if row is not None and beta != smallest}


def _beta_headline(compared: Sequence[tuple[Mode, dict[float, EvidenceRow]]]) -> Message:
    """Return in which modes any beta is separated from the smallest one, and of the first of these which and how."""
    apart = [(mode, rows) for mode, rows in compared if any(map(is_separated, rows.values()))]
    if not apart:
        return say("None stands out.")
    mode, rows = apart[0]
    beta = _farthest(rows)
    sign = say("higher" if rows[beta].value > 0 else "lower")
    found = {"beta": beta, "smallest": min(mode.groups), "mode": mode.called, "sign": sign}
    others = [each.called for each, _ in compared if each not in [of for of, _ in apart]]
    return (
        say("None stands out {other}; {mode}, KL_BETA {beta} scores {sign} than {smallest}.", other=others[0], **found)
        if others
        else say("It matters: {mode}, KL_BETA {beta} scores {sign} than {smallest}.", **found)
    )


def _farthest(rows: dict[float, EvidenceRow]) -> float:
    """Return the beta that is farthest from the smallest one, of the separated ones where there are any."""
    apart = [beta for beta, row in rows.items() if is_separated(row)]
    return max(apart or rows, key=lambda beta: abs(rows[beta].value))


def _beta_sentence(material: Material, mode: Mode, rows: dict[float, EvidenceRow]) -> Message:
    """Return whether any beta is separated from the smallest one, and by how much the farthest differs."""
    levels = {beta: material.accuracy(name) for beta, name in mode.groups.items()}
    known = {beta: row for beta, row in levels.items() if row is not None}
    values = [row.value for row in known.values()]
    spread = derived(max(values) - min(values), 2, known.values(), "highest minus lowest") if known else None
    highest = max(known, key=lambda beta: (known[beta].value, -beta), default=min(mode.groups))
    farthest = _farthest(rows)
    kind = "some" if is_separated(rows[farthest]) else "none"
    levels_of = {"n": len(mode.groups), "spread": spread, "highest": highest}
    against = {"beta": farthest, "smallest": min(mode.groups), "gap": gap(rows[farthest], 2)}
    return say(SPREAD_TOLD[kind], mode=mode.start, **levels_of, **against)


def _beta_rows(shown: Sequence[tuple[Mode, dict[float, EvidenceRow]]]) -> Iterator[CardRow]:
    for beta in sorted({beta for _, rows in shown for beta in rows}):
        marks = [(mode.kind, gap(rows[beta], 2)) for mode, rows in shown if beta in rows]
        yield CardRow(f"{beta:g}", tuple((kind, number) for kind, number in marks if number is not None))


def _gain(material: Material, mode: Mode) -> EvidenceRow | None:
    """Return a mode's difference to its RCE base: over all betas, else at the documents' reference, else any."""
    rows = (material.primary(name, mode.base) for name in mode.wanted)
    return next((row for row in rows if row is not None), None)


def _gain_headline(found: Sequence[Mode], known: Sequence[tuple[Mode, EvidenceRow]]) -> Message:
    """Return in which modes GRPO is separated from RCE, and whether upwards."""
    if not known:
        return say(
            "GRPO was not compared with its RCE base." if found else "No GRPO run is part of this configuration."
        )
    signs = ["open" if not is_separated(row) else "up" if row.value > 0 else "down" for _, row in known]
    if len(set(signs)) == 1:
        return say(ALL_MODES[signs[0]])
    (first, _), (other, _) = known
    parts = say(ONE_MODE[signs[0]], mode=first.start), say(ONE_MODE[signs[1]], mode=other.called)
    return say("{first}, {then}.", first=parts[0], then=parts[1])


def _gain_sentence(material: Material, mode: Mode, row: EvidenceRow) -> Message:
    tested = _tested(material, mode)
    is_over = row.subject == mode.over
    beta = 0.0 if is_over else PolicyName.parse(row.subject).beta or 0.0
    which = say("over all KL_BETA") if is_over else say("at KL_BETA {beta}", beta=beta)
    counts = {"apart": count_separated(tested), "tested": len(tested)}
    return say(
        "{mode} {gap} over RCE {which}; {apart} of {tested} KL_BETA separated.",
        mode=mode.start,
        gap=gap(row, 1),
        which=which,
        **counts,
    )


def _ladder(material: Material, found: Sequence[Mode]) -> Iterator[CardRow]:
    def levels(*groups: str) -> list[Estimate]:
        return [number for group in groups if (number := level(material.accuracy(group), 1)) is not None]

    similar = sorted(levels(*SIMILAR), key=lambda number: number.value, reverse=True)
    yield from _marked("muted", "random", levels(RANDOM))
    yield from _marked("muted", "similar", similar)
    yield from _marked("muted", "rce", levels(material.main.last_rce or ""))
    for mode in found:
        yield from _of_mode(material, mode)
    yield from _marked("muted", "oracle", levels(ORACLE))


def _of_mode(material: Material, mode: Mode) -> Iterator[CardRow]:
    """Yield the level of what the mode's gain is of: the mean over its betas, or one of them, which is named."""
    row, name = _gain(material, mode), say(POLICIES[mode.name])
    subject = row.subject if row is not None else mode.wanted[1]
    if subject == mode.over:
        number = average([level(material.accuracy(group), 1) for group in mode.groups.values()])
    else:
        number = level(material.accuracy(subject), 1)
        name = say("{policy}, β {beta}", policy=name, beta=PolicyName.parse(subject).beta or 0.0)
    yield from [CardRow(name, ((mode.kind, number),))] if number is not None else []


def _marked(kind: MarkKind, policy: str, numbers: Sequence[Estimate]) -> Iterator[CardRow]:
    """Yield a row of the first of some numbers, none without any."""
    yield from (CardRow(say(POLICIES[policy]), ((kind, number),)) for number in numbers[:1])


def _basis(rows: Iterable[EvidenceRow]) -> Cell:
    """Return how many seeds and questions stand behind comparisons, and a warning where one seed stands for all."""
    known = list(rows)
    if not known:
        return None
    first, few = (pick(known, key=lambda row: row.runs) for pick in (max, min))
    basis = say("{runs:seed|seeds} × {n} questions.", runs=part(first, "runs", 0), n=part(first, "n", 0))
    if first.runs == 1:
        return sentences(basis, say("One seed says nothing about other seeds."))
    mode = say(MODE_STARTS[few.subject.split("/")[1]])
    fewer = say("{mode}: {runs:seed|seeds}.", mode=mode, runs=part(few, "runs", 0)) if few.runs < first.runs else None
    return sentences(basis, fewer)


def _recipes(material: Material, found: Sequence[Mode]) -> Cell:
    """Return in what the recipes of the modes differ besides the mode; nothing of one mode."""
    preset = material.config.presets.get(material.main.preset)
    if preset is None or len(found) < 2:
        return None
    offline, drawn = preset.grpo, preset.on_policy
    differ: list[Cell] = []
    if offline.learning_rate != drawn.learning_rate:
        differ.append(
            say("learning rate {drawn} against {offline}", drawn=drawn.learning_rate, offline=offline.learning_rate)
        )
    if preset.reward != drawn.reward:
        differ.append(
            say("reward {drawn} against {offline}", drawn=Code(drawn.reward.mode), offline=Code(preset.reward.mode))
        )
    return say("The recipes differ too: {differ}.", differ=differ) if differ else None
