"""What is told apart in study `lever`: every comparison, both modes, other presets, equal choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from lever_pipe.report.cells import Cell, Code, Message, gap, holm, level, part, say
from lever_pipe.report.evidence import MEAN, EvidenceRow
from lever_pipe.report.labels import label, short
from lever_pipe.report.material import Material
from lever_pipe.report.table import Column, Table, TableLine

ALPHA = 0.05
"""A comparison whose Holm-adjusted p lies below counts as separated."""
BY_SHOTS, ONE_RUN = "-by-shots", "-one-run"
"""Ends of the names of families that hold the other shot counts of one, and its comparisons of single runs."""
FIRST = (
    *("grpo-over-betas", "on-policy-over-betas", "grpo-against-rce", "on-policy-against-rce"),
    *("on-policy-against-offline", "grpo-betas", "on-policy-betas"),
)
"""Families in reading order; others follow as they stand in the file."""
SAME = 0.99
"""Share of queries from which on two policies are said to choose alike."""


def tables(material: Material) -> Iterator[Table]:
    """Yield the tables of the sections `comparisons` and `agreement`; one without a line is left out."""
    found = (
        on_policy(material),
        *comparisons(material),
        *other_presets(material),
        agreement(material),
        parameters(material),
    )
    yield from (table.without_empty_columns() for table in found if table.lines)


def on_policy(material: Material) -> Table:
    """Return RCE, both modes of GRPO and the marks beside them: accuracy, gain, divergence and cost."""
    main = material.main
    groups = [main.last_rce, *main.drawn.values(), *main.last_grpo.values(), *main.beside] if main.drawn else []
    lines = [TableLine(_run_cells(material, group), "ours", (group,)) for group in groups if group]
    words = (
        "policy",
        "runs",
        "accuracy",
        "gain",
        "holm_p",
        "kl_exact",
        "entropy",
        "gradient_share",
        "own_prompts",
        "all_prompts",
    )
    heads = [Column(say(f"head.{word}"), "name" if word == "policy" else "number") for word in words]
    notes = (say("note.recipes_differ"), say("note.prompts"))
    title = say("comparisons.modes", samples=max(material.samples, default=0))
    return Table(
        "modes", "comparisons", title, tuple(heads), tuple(lines), notes=notes, factor="policy kl_beta base seed"
    )


def comparisons(material: Material) -> Iterator[Table]:
    """Yield every comparison of every preset: a line a pair, its differences by shots, and the test of their mean."""
    rows = material.evidence.where(metric="accuracy", study="lever")
    compared = [row for row in rows if row.against and row.family]
    names = list(dict.fromkeys(_family(row) for row in compared))
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    for i, (role, chosen) in enumerate(groupby(names, key=lambda name: "primary" if name in FIRST else "secondary")):
        lines = [line for name in chosen for line in _family_lines(material, name, compared)]
        heads = [
            Column(say("head.family"), "name"),
            Column(say("head.policy"), "name"),
            Column(say("head.against_policy"), "name"),
        ]
        heads += [Column(say("head.shot", shots=k)) for k in material.shots]
        heads += [Column(say(f"head.{word}")) for word in ("mean", "holm_p", "detectable", "runs")]
        title, notes = say(f"comparisons.{role}"), () if i else (say("note.differences"),)
        yield Table(f"comparisons-{role}", "comparisons", title, tuple(heads), tuple(lines), notes=notes)


def other_presets(material: Material) -> Iterator[Table]:
    """Yield accuracies of RCE and of the last GRPO epoch of every preset but the main one, in one table."""
    lines = []
    for arm in material.presets[1:]:
        for group in [*arm.rce.values(), *arm.last_grpo.values(), *arm.drawn.values()]:
            cells = [*(level(material.accuracy(group, k)) for k in material.shots), level(material.accuracy(group))]
            gain = gap(material.compared(group, arm.rce.get(arm.base or 0, "")))
            lines.append(TableLine((Code(arm.preset), label(group), *cells, gain), "ours", (group,)))
    heads = [Column(say("head.preset"), "name"), Column(say("head.policy"), "name")]
    heads += [Column(say("head.shot", shots=k)) for k in material.shots]
    heads += [Column(say("head.mean")), Column(say("head.gain"))]
    title = say("comparisons.presets", samples=max(material.samples, default=0))
    yield Table("preset-accuracies", "comparisons", title, tuple(heads), tuple(lines), factor="policy preset")


def agreement(material: Material) -> Table:
    """Return for how many queries two policies choose the same demonstrations in the same order."""
    groups = _agreeing(material)
    shots = max(material.shots, default=0)
    lines = [
        TableLine(
            (label(left, with_epoch=False), *(_share(material, left, right, shots) for right in groups)),
            "ours",
            (left,),
        )
        for left in groups
    ]
    heads = [Column(say("head.policy"), "name"), *(Column(short(group)) for group in groups)]
    notes = (say("note.agreement", shots=shots),)
    title = say("agreement.sequences")
    return Table("agreement", "agreement", title, tuple(heads), tuple(lines), _alike(material, groups, shots), notes)


def parameters(material: Material) -> Table:
    """Return how far training moved the parameters of every preset's policies from where it began."""
    lines = []
    for arm in material.presets:
        for group in [*list(arm.rce.values())[-1:], *arm.last_grpo.values(), *arm.drawn.values()]:
            rows = {name: material.evidence.find(group, name, at="from base") for name in _PARAMETERS}
            cells = [
                level(row, digits, scale=scale)
                for (digits, scale), row in zip(_PARAMETERS.values(), rows.values(), strict=True)
            ]
            if any(cells):
                lines.append(TableLine((Code(arm.preset), label(group), *cells), "ours", (group,)))
    heads = [Column(say("head.preset"), "name"), Column(say("head.policy"), "name")]
    heads += [Column(say(f"head.{name}")) for name in _PARAMETERS]
    return Table("parameters", "agreement", say("agreement.parameters"), tuple(heads), tuple(lines))


def separated(row: EvidenceRow | None) -> bool:
    """Return whether a comparison is separated: Holm p below 0.05 within its family."""
    return row is not None and row.p_holm < ALPHA


_PARAMETERS = {"n_parameters": (0, 1.0), "share_differing": (1, 100.0), "norm": (3, 1.0), "relative_norm": (2, 100.0)}
"""Metrics of `parameters.csv` with digits and scale."""


def _run_cells(material: Material, group: str) -> tuple[Cell, ...]:
    row, base = material.accuracy(group), material.main.last_rce or ""
    against = material.compared(group, base)
    metrics = {name: material.evidence.find(group, name) for name in ("kl_exact", "entropy", "gradient_share")}
    prompts = [level(material.evidence.find(group, f"prompts.{of}"), 0) for of in ("own", "all")]
    return (
        label(group, with_epoch=False),
        part(row, "runs", 0),
        level(row),
        gap(against),
        holm(against),
        level(metrics["kl_exact"], 3),
        level(metrics["entropy"], 2),
        level(metrics["gradient_share"], 0, scale=100.0),
        *prompts,
    )


def _family(row: EvidenceRow) -> str:
    """Return the name of a family without the ends that part it."""
    return row.family.replace(BY_SHOTS, "").replace(ONE_RUN, "")


def _family_lines(material: Material, name: str, rows: Sequence[EvidenceRow]) -> Iterator[TableLine]:
    of_family = [row for row in rows if _family(row) == name]
    for left, right in dict.fromkeys((row.subject, row.against) for row in of_family):
        pair = {row.shots: row for row in of_family if (row.subject, row.against) == (left, right)}
        mean = pair.get(MEAN)
        by_shots = [gap(pair.get(str(k)), 1) for k in material.shots]
        tests = (gap(mean), holm(mean), part(mean, "detectable"), part(mean or next(iter(pair.values())), "runs", 0))
        names = (_family_label(name), label(left, with_epoch=False), label(right, with_epoch=False))
        yield TableLine((*names, *by_shots, *tests), "ours", (left, right))


def _family_label(name: str) -> Message:
    preset, _, of = name.removeprefix("preset~").partition("/") if name.startswith("preset~") else ("", "", name)
    kind, _, epoch = of.partition("/epoch~")
    words = say(f"family.{kind}", epoch=epoch)
    return say("family.of_preset", family=words, preset=Code(preset)) if preset else words


def _agreeing(material: Material) -> list[str]:
    main = material.main
    groups = [*material.baselines, main.last_rce or "", *main.last_grpo.values(), *main.drawn.values()]
    rows = material.evidence.where(metric="as_sequence", study="lever")
    known = {name for row in rows for name in (row.subject, row.against)}
    return [group for group in groups if group in known]


def _pair(material: Material, left: str, right: str, shots: int) -> EvidenceRow | None:
    found = (
        material.evidence.find(a, "as_sequence", against=b, shots=shots) for a, b in ((left, right), (right, left))
    )
    return next((row for row in found if row is not None), None)


def _share(material: Material, left: str, right: str, shots: int) -> Cell:
    return level(_pair(material, left, right, shots), 1, scale=100.0)


def _alike(material: Material, groups: Sequence[str], shots: int) -> Cell:
    """Return which two different policies agree most, and that their accuracies must then be close."""
    pairs = [
        (row, left, right)
        for i, left in enumerate(groups)
        for right in groups[:i]
        if (row := _pair(material, left, right, shots))
    ]
    if not pairs:
        return None
    row, left, right = max(pairs, key=lambda found: found[0].value)
    kind = "alike" if row.value >= SAME else "most_alike"
    return say(f"agreement.{kind}", share=level(row, 1, scale=100.0), left=label(left), right=label(right))
