"""Rows that differ in more than what their table compares: marked with a footnote that names it, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_letters
from typing import Literal

from lever_pipe.base.errors import ComparisonError
from lever_pipe.report.tables.lineage import REMARK, Fields, Lineages, read_lineage, read_published_lineage
from lever_pipe.report.tables.policies import label_of
from lever_pipe.report.tables.published_notes import remarks_of, shared_by
from lever_pipe.report.tables.table import Table
from lever_pipe.report.tables.text import listing, sentences

Mode = Literal["footnote", "strict"]
PUBLISHED = "published/"
APART = "Published rows come from another model and other data than ours, so each is compared with its own kind only."

TRAINING = frozenset(
    (
        "reward",
        "learning_rate",
        "trained",
        "dropout",
        "kl_control",
        "max_gradient_norm",
        "training_code",
        "selection_code",
    )
)
"""Fields of how a policy was trained, beside those of the sections below; a preset may differ in all of them."""
TRAINING_SECTIONS = ("rce.", "grpo.", "on_policy.", "distil.", "continued.", "selector.", "reward.", "selection.")
IDENTITY = frozenset(("kl_beta", "epoch", "base_rce_epoch", "base_checkpoint", "draws"))
"""Fields that only policies of one method share, as those of training."""

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
"""What a table may compare, and the fields that its rows may then differ in."""

LABELS = {
    "method": "Method",
    "preset": "Preset",
    "base_rce_epoch": "Base RCE epoch",
    "base_checkpoint": "Base checkpoint",
    "kl_beta": "KL_BETA",
    "kl_beta_applied": "KL_BETA as applied",
    "kl_control": "KL control",
    "epoch": "Epoch",
    "seeds": "Seeds",
    "draws": "Draws",
    "rl_data": "RL data",
    "rewarded_groups": "Rewarded RL data",
    "reward": "Reward",
    "learning_rate": "Learning rate",
    "trained": "Trained tensors",
    "dropout": "Dropout in the ratio",
    "training_embeddings": "Embeddings in training",
    "training_examples": "Examples in training",
    "training_code": "Training code",
    "judge.lvlm": "LVLM that rewards draws",
    "judge.precision": "Precision of rewards",
    "judge.decode": "Decode settings of rewards",
    "judge.prompt": "Prompt of rewards",
    "judge.batching": "Batching of rewards",
    "evaluated": "Evaluated tensors",
    "pool": "Test pool",
    "embeddings": "Embeddings at the test",
    "questions": "Questions",
    "demonstrations": "Demonstrations",
    "lvlm": "LVLM",
    "scale": "Scale",
    "precision": "Precision",
    "decode": "Decode settings",
    "prompt": "Prompt",
    "batching": "Batching",
    "selection_code": "Selection code",
    "answering_code": "Answering code",
    "scoring_code": "Scoring code",
    "device": "Device",
}


@dataclass(frozen=True, slots=True)
class Deviation:
    """One value of one field that its holders do not share with the other policies of a table."""

    field: str
    value: str
    norm: str  # the majority's value; empty where none has a majority
    others: str  # what the other policies have
    holders: frozenset[str]  # groups
    text: str  # the footnote without its letter


def read_lineages(ours: Path, published: Path) -> Lineages:
    """Return the lineage of every group of ours (`lineage.csv`) and of every published one (`lineage.yaml`).

    Remarks on published fields stand among them, as `guard` prints them.

    Raises:
        RecordError: a missing or malformed file.
    """
    return {**read_lineage(ours), **read_published_lineage(published, remarks=True)}


def guard(tables: Sequence[Table], lineages: Lineages, mode: Mode) -> list[Table]:
    """Return the tables with a footnote at each row that differs in more than its table's factor.

    Rows of ours are compared with each other, and published rows with each other; the two always differ in model and
    data, which one note says. A row names its groups separated by blanks, and none where it is not compared. A field
    that does not apply to a group is not compared, and fields of training only within one method.

    Notes tell what the published rows of a table have in common; remarks on their fields follow the footnote about that
    field, or are notes. A table without factor whose rows name groups is not compared, but has these notes.

    Raises:
        ComparisonError: `strict` and a row of ours differs; or a table names an unknown factor or group.
    """
    guarded = [_guarded(table, lineages) for table in tables]
    if mode == "strict":
        _refuse([fault for _, faults in guarded for fault in faults])
    return [table for table, _ in guarded]


def allowed_fields(table: Table) -> frozenset[str]:
    """Return the fields in which the rows of a table may differ.

    Raises:
        ComparisonError: a factor that is none.
    """
    names = table.factor.split()
    unknown = [name for name in names if name not in FACTORS]
    if unknown:
        raise ComparisonError(
            f"table {table.id}: expected a factor out of {', '.join(FACTORS)}",
            found=" ".join(unknown),
            do="Name one of them, or several with blanks between.",
        )
    return frozenset().union(*(FACTORS[name] for name in names))


def deviations(lineages: Lineages, allowed: frozenset[str], *, one_a_row: bool = True) -> list[Deviation]:
    """Return what the given groups differ in beyond the allowed fields, in the order of fields and groups.

    The value of more than half of the groups is the norm, and each other value a deviation. Where no value has a
    majority, every group deviates, and one footnote names all.
    """
    found: list[Deviation] = []
    for field in dict.fromkeys(field for fields in lineages.values() for field in fields):
        section = f"{field.partition('.')[0]}."
        if field not in allowed and section not in allowed:
            for cohort in _cohorts(lineages, field):
                found += _deviations_of(field, cohort, one_a_row=one_a_row)
    return found


def _guarded(table: Table, lineages: Lineages) -> tuple[Table, list[str]]:
    """Return the table with its marks, and what is wrong with rows of ours."""
    if not any(table.groups):
        return table, []
    allowed, rows = allowed_fields(table), _groups_by_row(table)
    found: list[Deviation] = []
    faults: list[str] = []
    notes: tuple[str, ...] = ()
    for is_published in (False, True):
        block = [[group for group in row if group.startswith(PUBLISHED) == is_published] for row in rows]
        names = dict.fromkeys(group for row in block for group in row)
        if not table.factor and not is_published:
            continue
        with_remarks = {name: _fields(name, table, lineages) for name in names}
        of_block = {name: _without_remarks(fields) for name, fields in with_remarks.items()}
        compared = of_block if table.factor else {}
        differing = deviations(compared, allowed, one_a_row=all(len(row) < 2 for row in block))
        remarks = remarks_of(with_remarks)
        found += [replace(d, text=sentences(d.text, remarks.get(d.field, ""))) for d in differing]
        told = {deviation.field for deviation in differing}
        notes += shared_by(of_block, LABELS) if is_published else ()
        notes += tuple(text for field, text in remarks.items() if field not in told)
        if not is_published:
            faults = [fault for deviation in differing for fault in _faults(table, rows, deviation)]
    both = len({group.startswith(PUBLISHED) for row in rows for group in row}) == 2
    if both and table.factor:
        notes = (APART, *notes)
    table = replace(table, notes=(*table.notes, *notes))
    return (_marked(table, rows, found) if table.factor else table), faults


def _without_remarks(fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if not name.startswith(REMARK)}


def _groups_by_row(table: Table) -> list[list[str]]:
    if len(table.groups) != len(table.frame):
        raise ComparisonError(
            f"table {table.id}: expected groups for each of its {len(table.frame)} rows",
            found=str(len(table.groups)),
            do="Name the groups of each row, and nothing where it is not compared.",
        )
    return [groups.split() for groups in table.groups]


def _fields(group: str, table: Table, lineages: Lineages) -> Fields:
    """Return the fields of a group; of a published row, those of the files that the table's document quotes."""
    found = lineages.get(f"{group}/document~{table.document}", lineages.get(group))
    if found is None:
        raise ComparisonError(
            f"table {table.id}: expected a lineage of each row",
            found=f"none of {group}",
            do="Rerun collect_lineage, or add the published run to resources/reference/lineage.yaml.",
        )
    return found


def _cohorts(lineages: Lineages, field: str) -> Iterator[dict[str, str]]:
    """Yield value by group for the groups that compare in a field: of one method where it belongs to training."""
    values = {group: fields[field] for group, fields in lineages.items() if field in fields}
    if not (field in TRAINING | IDENTITY or field.startswith(TRAINING_SECTIONS)):
        yield values
        return
    for method in dict.fromkeys(lineages[group].get("method", "") for group in values):
        yield {group: value for group, value in values.items() if lineages[group].get("method", "") == method}


def _deviations_of(field: str, values: Mapping[str, str], *, one_a_row: bool) -> Iterator[Deviation]:
    counts = Counter(values.values())
    if len(counts) < 2:
        return
    label = LABELS.get(field, field)
    holders = {value: frozenset(group for group in values if values[group] == value) for value in counts}
    norm, most = counts.most_common(1)[0]
    if 2 * most <= len(values):
        each = "; ".join(f"{value} ({_names(values, holders[value])})" for value in counts)
        text = f"{label} by row: {each}." if one_a_row else f"{label} by policy: {each}."
        for value in counts:
            rest = listing(other for other in counts if other != value)
            yield Deviation(field, value, "", rest, holders[value], text)
        return
    others = "the other" if len(counts) == 2 else "most other"
    for value in counts:
        if value != norm:
            who = "" if one_a_row else f" of {_names(values, holders[value])}"
            kind = "rows" if one_a_row else "policies"
            text = f"{label}{who}: {value}, {others} {kind}: {norm}."
            yield Deviation(field, value, norm, norm, holders[value], text)


def _names(values: Mapping[str, str], holders: frozenset[str]) -> str:
    labels = {group: label_of(group).replace(", ", " ") for group in values}
    told_apart = len(set(labels.values())) == len(labels)
    return listing(labels[group] if told_apart else group for group in values if group in holders)


def _marked(table: Table, rows: Sequence[Sequence[str]], found: Sequence[Deviation]) -> Table:
    """Return the table with one letter for each footnote; those beyond the alphabet share its last letter."""
    texts: dict[str, str] = {}
    for row in rows:
        for text in _texts(row, found):
            texts.setdefault(text, ascii_letters[min(len(texts), len(ascii_letters) - 1)])
    letters = dict.fromkeys(texts.values())
    notes = tuple(f"{letter}: {' '.join(t for t, of in texts.items() if of == letter)}" for letter in letters)
    marks = tuple("".join(dict.fromkeys(texts[text] for text in _texts(row, found))) for row in rows)
    return replace(table, marks=marks, footnotes=notes)


def _texts(row: Sequence[str], found: Sequence[Deviation]) -> list[str]:
    return list(dict.fromkeys(deviation.text for deviation in found if not deviation.holders.isdisjoint(row)))


def _faults(table: Table, rows: Sequence[Sequence[str]], deviation: Deviation) -> Iterator[str]:
    """Yield one sentence a row of ours that deviates: table, row, field and both values."""
    label = LABELS.get(deviation.field, deviation.field)
    against = f"in {'most' if deviation.norm else 'other'} rows {deviation.others}"
    for cells, row in zip(table.frame.itertuples(index=False), rows, strict=True):
        for group in row:
            if group in deviation.holders:
                yield f"table {table.id}, row {cells[0]!r} ({group}): {label} is {deviation.value}, {against}"


def _refuse(faults: Sequence[str]) -> None:
    if not faults:
        return
    shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
    raise ComparisonError(
        "report.guard is strict: expected rows that differ in their table's factor only",
        found=shown,
        do="Make these policies again as the others were made, or set report.guard to footnote.",
    )
