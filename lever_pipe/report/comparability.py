"""Lines that differ in more than what their table compares: marked with a footnote that names it, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_letters
from typing import Literal

from lever_pipe.base.errors import ComparisonError
from lever_pipe.base.policy_names import PolicyName, beta_text
from lever_pipe.report.cells import Cell, Code, Message, Series, say
from lever_pipe.report.labels import label
from lever_pipe.report.lineage import EXCHANGED, REMARK, Fields, Lineages, read_lineage, read_published_lineage
from lever_pipe.report.table import Table, TableLine

Guarding = Literal["footnote", "strict"]
PUBLISHED = "published/"

TRAINING = frozenset(
    (
        *("reward", "learning_rate", "trained", "dropout", "kl_control", "max_gradient_norm"),
        *("rce_from_sft_epoch", "training_code", "selection_code"),
    )
)
"""Fields of how a policy was trained, beside those of the sections below; a preset may differ in all of them."""
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
"""What a table may compare, and the fields that its lines may then differ in."""

FIELDS = {
    "method": "Method",
    "preset": "Preset",
    "start_checkpoint": "Checkpoint that the selector starts from",
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
    "judge.lvlm": "LVLM that rewards draws",
    "judge.precision": "Precision of rewards",
    "judge.decode": "Decode settings of rewards",
    "judge.prompt": "Prompt of rewards",
    "judge.batching": "Batching of rewards",
}
"""What fields are called; others as the configuration calls them."""


@dataclass(frozen=True, slots=True)
class LineageGap:
    """One value of one field that its holders do not share with the other policies of a table."""

    field: str
    value: str
    norm: str  # the majority's value; empty where none has a majority
    others: str  # what the other policies have
    holders: frozenset[str]  # groups
    text: Message


def read_lineages(ours: Path, published: Path) -> Lineages:
    """Return the lineage of every group of ours (`lineage.csv`) and of every published one (`lineage.yaml`).

    Ids of remarks on published fields stand among them, as `remark.FIELD`.

    Raises:
        RecordError: a missing or malformed file.
    """
    return {**read_lineage(ours), **read_published_lineage(published, remarks=True)}


def guard(tables: Sequence[Table], lineages: Lineages, mode: Guarding) -> list[Table]:
    """Return the tables with a footnote at each line that differs in more than its table's factor.

    Lines of ours are compared with each other, and published lines with each other. A line without groups, and a table
    without a factor, is not compared; nor are a field that does not apply to a group, and fields of training over
    methods.

    Raises:
        ComparisonError: `strict` and a line of ours differs; or a table names an unknown factor or group.
    """
    guarded = [_guarded(table, lineages) for table in tables]
    if mode == "strict":
        _refuse([fault for _, faults in guarded for fault in faults])
    return [table for table, _ in guarded]


def allowed_fields(table: Table) -> frozenset[str]:
    """Return the fields in which the lines of a table may differ.

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


def deviations(lineages: Lineages, allowed: frozenset[str], *, one_a_line: bool = True) -> list[LineageGap]:
    """Return what the given groups differ in beyond the allowed fields, in the order of fields and groups.

    The value of more than half of the groups is the norm, and each other value deviates. Where no value has a majority,
    every group deviates, and one footnote names all.
    """
    found: list[LineageGap] = []
    for field in dict.fromkeys(field for fields in lineages.values() for field in fields):
        section = f"{field.partition('.')[0]}."
        if field not in allowed and section not in allowed:
            for cohort in _cohorts(lineages, field):
                found += _deviations_of(field, cohort, one_a_line=one_a_line)
    return found


def _guarded(table: Table, lineages: Lineages) -> tuple[Table, list[str]]:
    """Return the table with its marks, and what is wrong with lines of ours."""
    ours, theirs = _exchanged(table, lineages), list[LineageGap]()
    if table.factor and any(line.groups for line in table.lines):
        allowed = allowed_fields(table)
        ours += _compared(table, lineages, allowed, is_published=False)
        theirs = _compared(table, lineages, allowed, is_published=True)
    return _marked(table, [*ours, *_condensed(theirs)]), [fault for each in ours for fault in _faults(table, each)]


def _exchanged(table: Table, lineages: Lineages) -> list[LineageGap]:
    """Return what follows from files that somebody exchanged, one footnote for those of the same files."""
    holders: dict[str, set[str]] = {}
    for group in (group for line in table.lines for group in line.groups):
        if files := lineages.get(group, {}).get(EXCHANGED):
            holders.setdefault(files, set()).add(group)
    return [
        LineageGap(
            EXCHANGED,
            files,
            "",
            "none",
            frozenset(of),
            say("Follows from a file that somebody exchanged: {files} was not what its rule made.", files=Code(files)),
        )
        for files, of in holders.items()
    ]


def _compared(table: Table, lineages: Lineages, allowed: frozenset[str], *, is_published: bool) -> list[LineageGap]:
    rows = [[name for name in line.groups if name.startswith(PUBLISHED) == is_published] for line in table.lines]
    known = {name: _fields(name, table, lineages) for row in rows for name in row}
    return deviations(known, allowed, one_a_line=all(len(row) < 2 for row in rows))


def _condensed(found: Sequence[LineageGap]) -> list[LineageGap]:
    """Return one footnote for all fields in which the same published policies differ.

    The values stand in the table of the files that a section's published numbers come from.
    """
    fields: dict[frozenset[str], list[str]] = {}
    for each in found:
        fields.setdefault(each.holders, []).append(each.field)
    first = {each.holders: each for each in reversed(found)}
    condensed = []
    for holders, names in fields.items():
        betas = sorted({name.beta for name in map(PolicyName.parse, holders) if name.beta is not None})
        told = {"who": [beta_text(beta) for beta in betas], "fields": list(map(named, dict.fromkeys(names)))}
        condensed.append(replace(first[holders], text=say("Published {who} differs: {fields}.", **told)))
    return condensed


def _fields(group: str, table: Table, lineages: Lineages) -> Fields:
    """Return the fields of a group; of a published one, those of the files that the table's document quotes."""
    found = lineages.get(f"{group}/document~{table.section}", lineages.get(group))
    if found is None:
        raise ComparisonError(
            f"table {table.id}: expected a lineage of each line",
            found=f"none of {group}",
            do="Rerun collect_lineage, or add the published run to resources/reference/lineage.yaml.",
        )
    return {name: value for name, value in found.items() if name != EXCHANGED and not name.startswith(REMARK)}


def _cohorts(lineages: Lineages, field: str) -> Iterator[dict[str, str]]:
    """Yield value by group for the groups that compare in a field: of one method where it belongs to training."""
    values = {group: fields[field] for group, fields in lineages.items() if field in fields}
    if not (field in TRAINING | SHARED_WITHIN_METHOD or field.startswith(TRAINING_SECTIONS)):
        yield values
        return
    for method in dict.fromkeys(lineages[group].get("method", "") for group in values):
        yield {group: value for group, value in values.items() if lineages[group].get("method", "") == method}


def _deviations_of(field: str, values: Mapping[str, str], *, one_a_line: bool) -> Iterator[LineageGap]:
    counts = Counter(values.values())
    if len(counts) < 2:
        return
    name = named(field)
    holders = {value: frozenset(group for group in values if values[group] == value) for value in counts}
    norm, most = counts.most_common(1)[0]
    if 2 * most <= len(values):
        each = tuple(say("{value} ({who})", value=Code(value), who=_names(values, holders[value])) for value in counts)
        text = say("{field}: {each}.", field=name, each=Series(each, "parts"))
        for value in counts:
            rest = " or ".join(other for other in counts if other != value)
            yield LineageGap(field, value, "", rest, holders[value], text)
        return
    for value in (other for other in counts if other != norm):
        both = {"field": name, "value": Code(value), "norm": Code(norm)}
        who = {} if one_a_line else {"who": _names(values, holders[value])}
        text = say(
            "{field}: {value}; other lines: {norm}." if one_a_line else "{field} of {who}: {value}; others: {norm}.",
            **both,
            **who,
        )
        yield LineageGap(field, value, norm, norm, holders[value], text)


def named(field: str) -> Cell:
    """Return what a field is called."""
    return say(FIELDS[field]) if field in FIELDS else Code(field)


def _names(values: Mapping[str, str], holders: frozenset[str]) -> Series:
    called = {group: label(group) for group in values}
    told_apart = len(set(called.values())) == len(called)
    return Series(tuple(called[group] if told_apart else Code(group) for group in values if group in holders))


def _marked(table: Table, found: Sequence[LineageGap]) -> Table:
    """Return the table with one letter for each footnote; those beyond the alphabet share its last letter."""
    letters: dict[Message, str] = {}
    lines: list[TableLine] = []
    for line in table.lines:
        texts = [deviation.text for deviation in found if not deviation.holders.isdisjoint(line.groups)]
        for text in texts:
            letters.setdefault(text, ascii_letters[min(len(letters), len(ascii_letters) - 1)])
        lines.append(replace(line, marks="".join(dict.fromkeys(letters[text] for text in texts))))
    shared: dict[str, list[Cell]] = {}
    for text, letter in letters.items():
        shared.setdefault(letter, []).append(text)
    feet = tuple(of[0] if len(of) == 1 else Series(tuple(of), "sentences") for of in shared.values())
    return replace(table, lines=tuple(lines), footnotes=feet)


def _faults(table: Table, deviation: LineageGap) -> Iterator[str]:
    """Yield one sentence a line of ours that deviates: table, line, field and both values."""
    against = f"in {'most' if deviation.norm else 'other'} lines {deviation.others}"
    for number, line in enumerate(table.lines, start=1):
        for group in line.groups:
            if group in deviation.holders:
                yield f"table {table.id}, line {number} ({group}): {deviation.field} is {deviation.value}, {against}"


def _refuse(faults: Sequence[str]) -> None:
    if not faults:
        return
    shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
    raise ComparisonError(
        "report.guard is strict: expected lines that differ in their table's factor only",
        found=shown,
        do="Make these policies again as the others were made, or set report.guard to footnote.",
    )
