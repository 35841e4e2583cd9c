"""Find table rows that differ in more than the compared factor; add footnotes, or fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from string import ascii_letters
from typing import Literal

from lever_pipe.base.errors import DataError
from lever_pipe.base.policy_names import PolicyName, beta_text
from lever_pipe.report.cells import Cell, code, message
from lever_pipe.report.labels import label
from lever_pipe.report.lineage import EXCHANGED, Fields, Lineages
from lever_pipe.report.table import Table

Guarding = Literal["footnote", "strict"]
Differences = Mapping[str, Mapping[str, tuple[str, str]]]
"""By differing group: field -> (its value, the most frequent value of the others)."""
PUBLISHED = "published/"

TRAINING = frozenset(
    (
        *("reward", "learning_rate", "trained", "dropout", "kl_control", "max_gradient_norm"),
        *("rce_from_sft_epoch", "training_code", "selection_code"),
    )
)
"""Fields of a policy's training, in addition to the sections below; a preset may differ in all of them."""
TRAINING_SECTIONS = (
    "sft.",
    "rce.",
    "grpo.",
    "on_policy.",
    "distil.",
    "continued.",
    "selector.",
    "reward.",
    "selection.",
)
SHARED_WITHIN_METHOD = frozenset(("kl_beta", "epoch", "base_rce_epoch", "base_checkpoint", "draws"))
"""Fields that are compared only within a method, as fields of training are."""
FACTORS: Mapping[str, frozenset[str]] = {
    "kl_beta": frozenset(("kl_beta",)),
    "epoch": frozenset(("epoch",)),
    "base": frozenset(("base_rce_epoch", "base_checkpoint")),
    "policy": frozenset(("method", "kl_beta", "epoch", "draws")),
    "preset": frozenset(("preset", "base_checkpoint", "rewarded_groups", "train_share", *TRAINING, *TRAINING_SECTIONS)),
    "seed": frozenset(("seeds", "draws", "base_checkpoint")),
    "samples": frozenset(),
    "shots": frozenset(),
    "statistic": frozenset(),
}
"""Factors that a table may compare, each with the fields in which its rows may then differ."""


def guard(tables: Sequence[Table], lineages: Lineages, mode: Guarding) -> list[Table]:
    """Return the tables with a footnote at each row that differs in more than its table's factor.

    Our rows are compared with each other, and so are published rows. Rows without groups and tables without a factor
    are not compared.

    Raises:
        DataError: one of our rows differs and the mode is `strict`; or a table names an unknown factor or group.
    """
    checked = [(table, _of_table(table, lineages)) for table in tables]
    # Published rows cannot be made again, so they only get footnotes.
    problems = [
        f"table {table.id}, {group}: {field} is {value}, of others {others}"
        for table, groups in checked
        for group, fields in groups.items()
        for field, (value, others) in fields.items()
        if not group.startswith(PUBLISHED)
    ]
    if mode == "strict" and problems:
        raise DataError(
            "report.guard is strict: expected lines that differ in their table's factor only",
            found="; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else ""),
            do="Make these policies again as the others were made, or set report.guard to footnote.",
        )
    return [_marked(table, groups) for table, groups in checked]


def differences(lineages: Lineages, allowed: frozenset[str]) -> Differences:
    """Return the fields in which groups deviate from the most frequent value, except allowed fields and sections.

    Of equally frequent values the first one counts. A field that does not apply to a group is not compared. Fields of
    training are compared only within a method.
    """
    names = dict.fromkeys(name for fields in lineages.values() for name in fields)
    differing: dict[str, dict[str, tuple[str, str]]] = {}
    for field in (name for name in names if not {name, f"{name.partition('.')[0]}."} & allowed):
        of_method = field in TRAINING | SHARED_WITHIN_METHOD or field.startswith(TRAINING_SECTIONS)
        compared: dict[str, dict[str, str]] = {}
        for group, fields in lineages.items():
            if field in fields:
                compared.setdefault(fields.get("method", "") if of_method else "", {})[group] = fields[field]
        for _, values in sorted(compared.items()):
            ((norm, _),) = Counter(values.values()).most_common(1)
            for group, value in values.items():
                if value != norm:
                    differing.setdefault(group, {})[field] = (value, norm)
    return differing


def _of_table(table: Table, lineages: Lineages) -> Differences:
    groups = dict.fromkeys(group for policies in table.policies for group in policies)
    exchanged = {group: lineages.get(group, {}).get(EXCHANGED) for group in groups}
    differing = {group: {EXCHANGED: (files, "none")} for group, files in exchanged.items() if files}
    if not table.factor:
        return differing
    allowed = allowed_fields(table)
    for is_published in (False, True):
        side = {name: _fields(name, table, lineages) for name in groups if name.startswith(PUBLISHED) == is_published}
        for group, fields in differences(side, allowed).items():
            differing[group] = {**differing.get(group, {}), **fields}
    return differing


def allowed_fields(table: Table) -> frozenset[str]:
    """Return the fields in which the rows of a table may differ.

    Raises:
        DataError: an unknown factor.
    """
    names = table.factor.split()
    if unknown := [name for name in names if name not in FACTORS]:
        raise DataError(
            f"table {table.id}: expected a factor out of {', '.join(FACTORS)}",
            found=" ".join(unknown),
            do="Name one of them, or several with blanks between.",
        )
    return frozenset().union(*(FACTORS[name] for name in names))


def _fields(group: str, table: Table, lineages: Lineages) -> Fields:
    """Return the fields of a group; of a published group, those of the files that the table's document quotes."""
    fields = lineages.get(f"{group}/document~{table.section}", lineages.get(group))
    if fields is None:
        raise DataError(
            f"table {table.id}: expected a lineage of each line",
            found=f"none of {group}",
            do="Rerun collect_lineage, or add the published run to resources/reference/lineage.yaml.",
        )
    return {name: value for name, value in fields.items() if name != EXCHANGED}


def _marked(table: Table, groups: Differences) -> Table:
    """Return the table with a letter for each footnote; policies with the same differences share one."""
    holders: dict[tuple[bool, tuple[str, ...], tuple[tuple[str, str], ...]], list[str]] = {}
    for group, fields in groups.items():
        is_published = group.startswith(PUBLISHED)
        values = () if is_published else tuple(fields.values())  # the table of the configuration has their values
        holders.setdefault((is_published, tuple(fields), values), []).append(group)
    # The 53rd footnote is `aa`.
    letters = [ascii_letters[i % len(ascii_letters)] * (1 + i // len(ascii_letters)) for i in range(len(holders))]
    marked = list(zip(letters, holders.values(), strict=True))
    marks = ["".join(mark for mark, who in marked if {*policies} & {*who}) for policies in table.policies]
    return replace(table, marks=marks, footnotes=[(mark, list(_notes(who, groups[who[0]]))) for mark, who in marked])


def _notes(groups: Sequence[str], fields: Mapping[str, tuple[str, str]]) -> Iterator[Cell]:
    if EXCHANGED in fields:
        text = "Follows from a file that somebody exchanged: {files} was not what its rule made."
        yield message(text, files=code(fields[EXCHANGED][0]))
    names = [field for field in fields if field != EXCHANGED]
    if not names:
        return
    if groups[0].startswith(PUBLISHED):
        betas = [beta_text(PolicyName.parse(group).beta or 0.0) for group in groups]
        yield message(
            "Published {who} differs: {fields}.", who=list(dict.fromkeys(betas)), fields=list(map(code, names))
        )
        return
    values = [
        message("{field} {value}, of others {norm}", field=code(name), value=code(value), norm=code(norm))
        for name, (value, norm) in fields.items()
        if name in names
    ]
    yield message("{who} differs: {fields}.", who=list(map(label, groups)), fields=tuple(values))
