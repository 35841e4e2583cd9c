"""What is told apart in study `lever`: every comparison, both modes and other presets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from lever_pipe.report.cells import Cell, Code, gap, holm, level, part, say
from lever_pipe.report.evidence import BY_SHOTS, MEAN, OF_ONE_RUN, TOGETHER, EvidenceRow
from lever_pipe.report.inference.families import SWEEP
from lever_pipe.report.labels import label
from lever_pipe.report.material import Material
from lever_pipe.report.table import Column, Table, TableLine, heads

FIRST = (
    *("grpo-over-betas", "on-policy-over-betas", "grpo-against-rce", "on-policy-against-rce"),
    *("on-policy-against-offline", "grpo-betas", "on-policy-betas"),
)
"""Families in reading order; others follow as they stand in the file."""
FAMILIES = {
    "grpo-over-betas": "Offline GRPO, mean over KL_BETA",
    "on-policy-over-betas": "On-policy GRPO, mean over KL_BETA",
    "grpo-against-rce": "Offline GRPO against RCE",
    "on-policy-against-rce": "On-policy GRPO against RCE",
    "on-policy-against-offline": "On-policy against offline GRPO",
    "grpo-betas": "Offline KL_BETA against the smallest",
    "on-policy-betas": "On-policy KL_BETA against the smallest",
    "learning": "RCE against baselines",
    "supervised": "SFT against baselines, and RCE against SFT",
    "marks": "Marks beside on-policy GRPO",
    "document-001": "Document 001, epoch {epoch}",
    "document-002": "Document 002, epoch {epoch}",
}


def tables(material: Material) -> Iterator[Table]:
    """Yield the tables of the section `comparisons`; one without a line is left out."""
    found = (
        on_policy(material),
        *comparisons(material),
        other_presets(material),
    )
    yield from (table.without_empty_columns() for table in found if table.lines)


def on_policy(material: Material) -> Table:
    """Return RCE, both modes of GRPO and the marks beside them: accuracy, gain, divergence and cost."""
    main = material.main
    groups = [main.last_rce, *main.drawn.values(), *main.last_grpo.values(), *main.beside] if main.drawn else []
    lines = [TableLine(_run_cells(material, group), "ours", (group,)) for group in groups if group]
    columns = heads(
        "Policy",
        "Runs",
        "Accuracy (%)",
        "Gain over RCE",
        "Holm p",
        "KL to RCE",
        "Entropy",
        "Groups with a gradient (%)",
        "Own prompts",
        "Prompts, base included",
    )
    title = say(
        "On-policy and offline GRPO at {samples} samples, mean over shots", samples=max(material.samples, default=0)
    )
    notes = (
        say(
            "The two modes are two recipes: reward, learning rate and groups differ too. KL_BETA "
            "weighs k3 over stored selections offline, and the exact divergence on-policy."
        ),
        say(
            "Own prompts: those of its own epochs. The last column adds what its base learned from, "
            "so that both modes are charged alike. Prompts of validation queries train nothing and "
            "are not counted."
        ),
    )
    return Table("modes", "comparisons", title, columns, tuple(lines), notes=notes, factor="policy kl_beta base seed")


def comparisons(material: Material) -> Iterator[Table]:
    """Yield every comparison of every preset: a line a pair, its differences by shots, and the test of their mean."""
    rows = material.evidence.where(metric="accuracy", study="lever")
    families: dict[str, list[EvidenceRow]] = {}
    for row in rows:
        if row.against and row.family and not row.family.startswith(SWEEP):
            name = row.family.removesuffix(OF_ONE_RUN).removesuffix(BY_SHOTS).removesuffix(TOGETHER)
            families.setdefault(name, []).append(row)
    names = sorted(families, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    for role, chosen in groupby(names, key=lambda name: "primary" if name in FIRST else "secondary"):
        lines = [line for name in chosen for line in _family_lines(material, name, families[name])]
        columns = [Column(say(head), "name") for head in ("Comparison", "Policy", "Against")]
        columns += [Column(say("Shot {shots}", shots=k)) for k in material.shots]
        columns += [Column(say(head)) for head in ("Mean", "Holm p", "Detectable", "Runs")]
        title, notes = (
            say("Primary comparisons" if role == "primary" else "Secondary comparisons"),
            (
                say(
                    "Points, paired by question and by the seeds that both sides have, with 95 % intervals. "
                    "Holm p and the smallest detectable difference (80 % power) belong to the mean over "
                    "shots."
                ),
            )
            if role == "primary"
            else (),
        )
        yield Table(f"comparisons-{role}", "comparisons", title, tuple(columns), tuple(lines), notes=notes)


def other_presets(material: Material) -> Table:
    """Return accuracies of SFT, RCE and the last GRPO epoch of every preset but the main one."""
    lines, places = [], [*map(str, material.shots), MEAN]
    for arm in material.presets[1:]:
        for group in [*arm.sft.values(), *arm.rce.values(), *arm.last_grpo.values(), *arm.drawn.values()]:
            cells = [level(material.accuracy(group, at)) for at in places]
            base = arm.rce.get(arm.base or 0)
            gain = gap(material.compared(group, base)) if base else None
            lines.append(TableLine((Code(arm.preset), label(group), *cells, gain), "ours", (group,)))
    columns = [*_policies(), *(Column(say("Shot {shots}", shots=k)) for k in material.shots)]
    columns += [Column(say("Mean")), Column(say("Gain over RCE"))]
    title = say("Other presets at {samples} samples", samples=max(material.samples, default=0))
    return Table("preset-accuracies", "comparisons", title, tuple(columns), tuple(lines), factor="policy preset")


def _policies() -> tuple[Column, Column]:
    return Column(say("Preset"), "name"), Column(say("Policy"), "name")


def _run_cells(material: Material, group: str) -> tuple[Cell, ...]:
    row, against = material.accuracy(group), material.compared(group, material.main.last_rce or "")
    kl = material.evidence.find(group, "kl_to_base", at="from base")
    entropy, share, own, every = (
        material.evidence.find(group, name) for name in ("entropy", "gradient_share", "prompts.own", "prompts.all")
    )
    accuracy = (part(row, "runs", 0), level(row), gap(against), holm(against))
    training = (level(kl, 3), level(entropy, 2), level(share, 0, scale=100.0), level(own, 0), level(every, 0))
    return (label(group, with_epoch=False), *accuracy, *training)


def _family_lines(material: Material, name: str, rows: Sequence[EvidenceRow]) -> Iterator[TableLine]:
    pairs: dict[tuple[str, str], dict[str, EvidenceRow]] = {}
    for row in rows:
        pairs.setdefault((row.subject, row.against), {})[row.shots] = row
    preset, _, of = name.removeprefix("preset~").partition("/") if name.startswith("preset~") else ("", "", name)
    kind, _, epoch = of.partition("/epoch~")
    words = say(FAMILIES[kind], epoch=epoch)
    family = say("{family}, preset {preset}", family=words, preset=Code(preset)) if preset else words
    if any(TOGETHER in row.family for row in rows):
        family = say("{family}, adjusted with other presets", family=family)
    for (left, right), by_shots in pairs.items():
        mean = by_shots.get(MEAN)
        gaps = (gap(by_shots.get(str(k)), 1) for k in material.shots)
        runs = part(mean or next(iter(by_shots.values())), "runs", 0)
        names = (family, label(left, with_epoch=False), label(right, with_epoch=False))
        cells = (*names, *gaps, gap(mean), holm(mean), part(mean, "detectable"), runs)
        yield TableLine(cells, "ours", (left, right))
