"""The two answers of study `lever`, at its primary endpoint: which KL_BETA, and whether GRPO helps.

Both are read at the mean over shots, the largest sample count and the last common epoch, over every mode of GRPO.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lever_pipe.base.policy_names import PolicyName
from lever_pipe.report.cards import Card, CardRow, MarkKind
from lever_pipe.report.cells import Cell, Code, Message, Name, Number, derived, gap, level, part, say, sentences
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.material import Material

SEPARATED = 0.05
"""Holm p below which two settings count as separated."""
RANDOM, ORACLE = "baseline/random", "baseline/oracle"
SIMILAR = ("baseline/similar_both", "baseline/similar_question", "baseline/similar_image")
COMPARISONS = ("comparisons", say("card.link.comparisons"))
RUN = ("#run", say("card.link.run"))


@dataclass(frozen=True, slots=True)
class Mode:
    """GRPO on stored selections (`grpo`) or on what the policy draws (`on_policy`), after its last common epoch.

    Attributes:
        name: `grpo` or `on_policy`.
        groups: by beta, rising.
        epoch: that epoch.
        over: the group that is the mean over all betas.
        base: the RCE group that it started from.
    """

    name: str
    groups: dict[float, str]
    epoch: int
    over: str
    base: str


def modes(material: Material) -> list[Mode]:
    """Return the modes of GRPO that the main preset ran, offline first."""
    main = material.main
    found = (
        ("grpo", main.last_grpo, main.base, main.last),
        ("on_policy", main.drawn, main.drawn_base, main.last_on_policy),
    )
    return [
        Mode(name, groups, epoch, _over(name, main.preset, base, epoch), main.rce.get(base, ""))
        for name, groups, base, epoch in found
        if groups and base is not None and epoch is not None
    ]


def answers(material: Material) -> Iterator[Card]:
    """Yield both cards; none without the study."""
    if material.has("lever"):
        found = modes(material)
        yield which_beta(material, found)
        yield does_grpo_help(material, found)


def is_separated(row: EvidenceRow) -> bool:
    """Return whether a comparison's Holm p lies below 0.05."""
    return row.p_holm < SEPARATED


def count_separated(rows: Collection[EvidenceRow]) -> Number | None:
    """Return how many of some comparisons are separated."""
    return derived(sum(map(is_separated, rows)), 0, rows, "comparisons with Holm p below 0.05")


def which_beta(material: Material, found: Sequence[Mode]) -> Card:
    """Return the card on KL_BETA: each beta against the smallest, in every mode with two betas or more."""
    compared = [(mode, _against_smallest(material, mode)) for mode in found]
    compared = [(mode, rows) for mode, rows in compared if rows]
    title = say("card.beta.title")
    if not compared:
        betas = sorted({beta for mode in found for beta in mode.groups})
        why = (
            say("card.beta.one", beta=betas[0])
            if len(betas) == 1
            else say("card.no_grpo" if not betas else "card.beta.untested")
        )
        return Card(title, why, None, (), None, None, (RUN,))
    told = [_beta_sentence(material, mode, rows) for mode, rows in compared]
    smallest = min(compared[0][0].groups)
    shown = [(mode, rows) for mode, rows in compared if min(mode.groups) == smallest]
    return Card(
        title=title,
        headline=_beta_headline(compared),
        detail=sentences(*told),
        rows=tuple(_beta_rows(shown)),
        axis=say("card.beta.axis", beta=smallest),
        notes=_basis(next(iter(rows.values())) for _, rows in compared),
        links=(COMPARISONS, ("#why", say("card.link.equal_rows"))),
        keys=_keys([mode for mode, _ in shown]),
    )


def does_grpo_help(material: Material, found: Sequence[Mode]) -> Card:
    """Return the card on GRPO: every mode against its RCE base, separated ones first, and all policies."""
    judged = [(mode, _gain(material, mode)) for mode in found]
    known = sorted(((mode, row) for mode, row in judged if row is not None), key=lambda of: not is_separated(of[1]))
    told: list[Cell] = [_gain_sentence(material, mode, row) for mode, row in known]
    base = material.main.last_rce
    learned = material.compared(base, RANDOM) if base else None
    rce = say("card.grpo.rce", gap=gap(learned, 1)) if learned else None
    return Card(
        title=say("card.grpo.title"),
        headline=_gain_headline(found, known),
        detail=sentences(*told, rce),
        rows=tuple(_ladder(material, found)),
        axis=say("card.grpo.axis"),
        notes=sentences(_basis(row for _, row in known), _recipes(material, found)),
        links=(("#selector", say("card.link.frontier")), RUN),
    )


def _over(name: str, preset: str, base: int, epoch: int) -> str:
    return f"preset~{preset}/{name}/base~{base}/beta~all/epoch~{epoch}"


def _primary(material: Material, left: str, right: str) -> EvidenceRow | None:
    return material.compared(left, right, samples=max(material.samples, default=0))


def _against_smallest(material: Material, mode: Mode) -> dict[float, EvidenceRow]:
    """Return by beta its difference to the smallest one."""
    smallest = min(mode.groups)
    rows = ((beta, _primary(material, name, mode.groups[smallest])) for beta, name in mode.groups.items())
    return {beta: row for beta, row in rows if row is not None and beta != smallest}


def _beta_headline(compared: Sequence[tuple[Mode, dict[float, EvidenceRow]]]) -> Message:
    """Return in which modes any beta is separated from the smallest one, and of the first of these which and how."""
    apart = [(mode, rows) for mode, rows in compared if any(map(is_separated, rows.values()))]
    if not apart:
        return say("card.beta.never")
    mode, rows = apart[0]
    beta = _farthest(rows)
    found = {"beta": beta, "smallest": min(mode.groups), "mode": say(f"mode.{mode.name}")}
    found["sign"] = say(f"card.beta.{'higher' if rows[beta].value > 0 else 'lower'}")
    others = [each.name for each, _ in compared if each.name not in [of.name for of, _ in apart]]
    return (
        say("card.beta.depends", other=say(f"mode.{others[0]}"), **found)
        if others
        else say("card.beta.matters", **found)
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
    args = {
        "mode": _start(mode.name),
        "n": len(mode.groups),
        "spread": spread,
        "highest": highest,
        "beta": farthest,
        "smallest": min(mode.groups),
        "gap": gap(rows[farthest], 2),
    }
    return say(f"card.beta.{'some' if is_separated(rows[farthest]) else 'none'}", **args)


def _beta_rows(shown: Sequence[tuple[Mode, dict[float, EvidenceRow]]]) -> Iterator[CardRow]:
    kinds = _kinds([mode for mode, _ in shown])
    for beta in sorted({beta for _, rows in shown for beta in rows}):
        marks = [(kinds[mode.name], gap(rows[beta], 2)) for mode, rows in shown if beta in rows]
        yield CardRow(Name(f"{beta:g}"), tuple((kind, number) for kind, number in marks if number is not None))


def _kinds(found: Sequence[Mode]) -> dict[str, MarkKind]:
    return {mode.name: "b" if mode.name == "on_policy" else "a" for mode in found}


def _keys(found: Sequence[Mode]) -> tuple[tuple[MarkKind, Message], ...]:
    kinds = _kinds(found)
    return tuple((kinds[mode.name], say(f"mode.{mode.name}")) for mode in found)


def _gain(material: Material, mode: Mode) -> EvidenceRow | None:
    """Return a mode's difference to its RCE base: over all betas, else at the documents' reference, else any."""
    reference = material.main.reference_beta
    wanted = [mode.over, mode.groups.get(reference if reference is not None else math.nan, ""), *mode.groups.values()]
    rows = (_primary(material, name, mode.base) for name in wanted if name)
    return next((row for row in rows if row is not None), None)


def _gain_headline(found: Sequence[Mode], known: Sequence[tuple[Mode, EvidenceRow]]) -> Message:
    """Return in which modes GRPO is separated from RCE, and whether upwards."""
    if not known:
        return say("card.grpo.untested" if found else "card.no_grpo")
    signs = {mode.name: _verdict(row) for mode, row in known}
    if len(set(signs.values())) == 1:
        return say(f"card.grpo.all.{next(iter(signs.values()))}")
    (first, verdict), (other, then) = signs.items()
    parts = say(f"card.grpo.{verdict}", mode=_start(first)), say(f"card.grpo.{then}", mode=say(f"mode.{other}"))
    return say("card.grpo.depends", first=parts[0], then=parts[1])


def _start(mode: str) -> Message:
    """Return a mode's name as a sentence begins with it."""
    return say(f"mode.start.{mode}")


def _verdict(row: EvidenceRow) -> str:
    return "open" if not is_separated(row) else "up" if row.value > 0 else "down"


def _gain_sentence(material: Material, mode: Mode, row: EvidenceRow) -> Message:
    each = [_primary(material, name, mode.base) for name in mode.groups.values()]
    tested = [found for found in each if found is not None]
    is_over = row.subject == mode.over
    beta = 0.0 if is_over else PolicyName.parse(row.subject).beta or 0.0
    which = say("card.grpo.over_betas") if is_over else say("card.grpo.at_beta", beta=beta)
    return say(
        "card.grpo.gain",
        mode=_start(mode.name),
        gap=gap(row, 1),
        which=which,
        apart=count_separated(tested),
        tested=len(tested),
    )


def _ladder(material: Material, found: Sequence[Mode]) -> Iterator[CardRow]:
    similar = [(row.value, name) for name in SIMILAR if (row := material.accuracy(name)) is not None]
    rows: list[tuple[MarkKind, Cell, Number | None]] = [("muted", say("card.policy.random"), _level(material, RANDOM))]
    if similar:
        rows.append(("muted", say("card.policy.similar"), _level(material, max(similar)[1])))
    rows.append(("muted", say("card.policy.rce"), _level(material, material.main.last_rce or "")))
    rows += [(_kinds([mode])[mode.name], say(f"card.policy.{mode.name}"), _level_of(material, mode)) for mode in found]
    rows.append(("muted", say("card.policy.oracle"), _level(material, ORACLE)))
    return (CardRow(label, ((kind, number),)) for kind, label, number in rows if number is not None)


def _level(material: Material, group: str) -> Number | None:
    return level(material.accuracy(group), 1)


def _level_of(material: Material, mode: Mode) -> Number | None:
    """Return a mode's accuracy over its betas; where only single ones have an interval that of the reference."""
    reference = material.main.reference_beta
    wanted = [mode.over, *(name for beta, name in mode.groups.items() if beta == reference), *mode.groups.values()]
    return next((number for name in wanted if (number := _level(material, name)) is not None), None)


def _basis(rows: Iterable[EvidenceRow]) -> Cell:
    """Return how many seeds and questions stand behind comparisons, and a warning where one seed stands for all."""
    known = list(rows)
    if not known:
        return None
    counts = sorted({row.runs for row in known})
    first = max(known, key=lambda row: row.runs)
    few = min(known, key=lambda row: row.runs)
    basis = say("card.basis", runs=part(first, "runs", 0), n=part(first, "n", 0))
    kind = few.subject.split("/")[1]
    if counts[-1] == 1:
        return sentences(basis, say("card.one_seed"))
    return sentences(
        basis, say("card.fewer_seeds", mode=_start(kind), runs=part(few, "runs", 0)) if len(counts) > 1 else None
    )


def _recipes(material: Material, found: Sequence[Mode]) -> Cell:
    """Return in what the recipes of the modes differ besides the mode; nothing of one mode."""
    preset = material.config.presets.get(material.main.preset)
    if preset is None or len(found) < 2:
        return None
    offline, drawn = preset.grpo, preset.on_policy
    differ: list[Cell] = []
    if offline.learning_rate != drawn.learning_rate:
        differ.append(say("recipe.learning_rate", drawn=drawn.learning_rate, offline=offline.learning_rate))
    if preset.reward != drawn.reward:
        differ.append(say("recipe.reward", drawn=Code(drawn.reward.mode), offline=Code(preset.reward.mode)))
    return say("card.grpo.recipes", differ=differ) if differ else None
