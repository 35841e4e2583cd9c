"""Comparisons in study `lever`: both modes, every comparison, and other presets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lever_pipe.report.cells import code, gap, holm, level, message, part
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import BY_SHOTS, MEAN, OF_ONE_RUN, TOGETHER, EvidenceRow
from lever_pipe.report.inference.families import FAMILIES, SWEEP
from lever_pipe.report.labels import label
from lever_pipe.report.table import SUBJECTS, Row, Table, framed

NAMES = {
    "grpo-over-betas": "Offline GRPO, mean over KL_BETA",
    "on-policy-over-betas": "On-policy GRPO, mean over KL_BETA",
    "grpo-against-rce": "Offline GRPO against RCE",
    "on-policy-against-rce": "On-policy GRPO against RCE",
    "on-policy-against-offline": "On-policy against offline GRPO",
    "grpo-betas": "Offline KL_BETA against the smallest",
    "on-policy-betas": "On-policy KL_BETA against the smallest",
    "learning": "RCE against baselines",
    "supervised": "SFT against baselines, and RCE against SFT",
    "extra_objectives": "Extra objectives next to on-policy GRPO",
    "document-001": "Document 001, epoch {epoch}",
    "document-002": "Document 002, epoch {epoch}",
}
PRIMARY = [name for name in NAMES if name in {family.name for family in FAMILIES if family.cells == "primary"}]
"""Families in reading order; others follow in the order of the file."""


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the tables of the section `comparisons`."""
    samples = max(context.samples, default=0)
    title = message("On-policy and offline GRPO at {samples} samples, mean over shots", samples=samples)
    yield Table("modes", "comparisons", title, framed(_on_policy(context)), factor="policy kl_beta base seed")
    yield from _comparisons(context)
    title = message("Other presets at {samples} samples", samples=samples)
    yield Table("preset-accuracies", "comparisons", title, framed(_other_presets(context)), factor="policy preset")


def _on_policy(context: ReportContext) -> Iterator[Row]:
    """Yield RCE, both modes of GRPO and the extra objectives: accuracy, gain, divergence and cost."""
    main, find = context.main, context.evidence.find
    groups = (
        [main.last_rce, *main.on_policy_groups.values(), *main.last_grpo.values(), *main.extra_groups]
        if main.on_policy_groups
        else []
    )
    for group in filter(None, groups):
        row, against = context.accuracy(group), context.compared(group, main.last_rce or "")
        yield {
            "Policy": label(group, with_epoch=False),
            "Runs": part(row, "runs", 0),
            "Accuracy (%)": level(row),
            "Gain over RCE": gap(against),
            "Holm p": holm(against),
            "KL to RCE": level(find(group, "kl_to_base", at="from base"), 3),
            "Entropy": level(find(group, "entropy"), 2),
            "Groups with a gradient (%)": level(find(group, "gradient_share"), 0, scale=100.0),
            "Own prompts": level(find(group, "prompts.own"), 0),
            "Prompts, base included": level(find(group, "prompts.all"), 0),
            SUBJECTS: (group,),
        }


def _comparisons(context: ReportContext) -> Iterator[Table]:
    """Yield the comparisons of every preset: a row per pair, its differences by shots, and the test of their mean."""
    families: dict[str, list[EvidenceRow]] = {}
    for row in context.evidence.where(metric="accuracy", study="lever"):
        if row.against and row.family and not row.family.startswith(SWEEP):
            name = row.family.removesuffix(OF_ONE_RUN).removesuffix(BY_SHOTS).removesuffix(TOGETHER)
            families.setdefault(name, []).append(row)
    first = [name for name in PRIMARY if name in families]
    rest = [name for name in families if name not in PRIMARY]
    for role, title, names in (
        ("primary", "Primary comparisons", first),
        ("secondary", "Secondary comparisons", rest),
    ):
        rows = [row for name in names for row in _of_family(context, name, families[name])]
        yield Table(f"comparisons-{role}", "comparisons", title, framed(rows))


def _other_presets(context: ReportContext) -> Iterator[Row]:
    """Yield accuracies of SFT, RCE and the last GRPO epoch of every preset except the main one."""
    for arm in context.presets[1:]:
        for group in [*arm.sft.values(), *arm.rce.values(), *arm.last_grpo.values(), *arm.on_policy_groups.values()]:
            base = arm.rce.get(arm.base or 0)
            yield {
                "Preset": code(arm.preset),
                "Policy": label(group),
                **{message("Shot {shots}", shots=k): level(context.accuracy(group, k)) for k in context.shots},
                "Mean": level(context.accuracy(group)),
                "Gain over RCE": gap(context.compared(group, base)) if base else None,
                SUBJECTS: (group,),
            }


def _of_family(context: ReportContext, name: str, rows: Sequence[EvidenceRow]) -> Iterator[Row]:
    pairs: dict[tuple[str, str], dict[str, EvidenceRow]] = {}
    for row in rows:
        pairs.setdefault((row.subject, row.against), {})[row.shots] = row
    preset, _, rest = name.removeprefix("preset~").partition("/") if name.startswith("preset~") else ("", "", name)
    kind, _, epoch = rest.partition("/epoch~")
    words = message(NAMES[kind], epoch=epoch)
    family = message("{family}, preset {preset}", family=words, preset=code(preset)) if preset else words
    if any(TOGETHER in row.family for row in rows):
        family = message("{family}, adjusted with other presets", family=family)
    for (left, right), by_shots in pairs.items():
        mean = by_shots.get(MEAN)
        yield {
            "Comparison": family,
            "Policy": label(left, with_epoch=False),
            "Against": label(right, with_epoch=False),
            **{message("Shot {shots}", shots=k): gap(by_shots.get(str(k)), 1) for k in context.shots},
            "Mean": gap(mean),
            "Holm p": holm(mean),
            "Detectable": part(mean, "detectable"),
            "Runs": part(mean or next(iter(by_shots.values())), "runs", 0),
            SUBJECTS: (left, right),
        }
