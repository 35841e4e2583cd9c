"""Which file printed the published numbers of a document, and what is known of the runs behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lever_pipe.base.policy_names import beta_text
from lever_pipe.report.cells import Cell, Code, Name, Series, numbers_in, say
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.lineage import REMARK, Fields
from lever_pipe.report.material import Material
from lever_pipe.report.table import Column, Table, TableLine

STATISTICS = ("mean", "first", "last", "minimum")
"""Notes that name a statistic over a run, which its line names already."""
FIELDS = ("base_checkpoint", "rl_data", "kl_beta_applied", "kl_control", "learning_rate", "trained")
"""What differs between the published runs, and no file name tells."""
WORDS = {"unknown": "published.unknown", "as labelled": "published.as_labelled"}
"""Values in the file of published lineage that the page says in its language."""


def printed(material: Material, tables: Sequence[Table], told: set[str]) -> Iterator[Table]:
    """Yield one table of the files that the published numbers of a section come from; none without such a number.

    `told` are the notes that stand on the page already; those of this table are added.
    """
    rows = [row for table in tables for line in table.lines for cell in line.cells for row in _behind(material, cell)]
    section = tables[0].section if tables else ""
    found: dict[tuple[str, ...], list[EvidenceRow]] = {}
    remarks = ["published.note"]
    for row in dict.fromkeys(rows):
        fields = _fields(material, row, section)
        remarks += [text for name, text in fields.items() if name.startswith(REMARK)]
        found.setdefault((row.quoted, *(fields.get(name, "") for name in FIELDS)), []).append(row)
    if not found:
        return
    lines = [TableLine((Name(file), *_what(of), _known(values), _noted(of))) for (file, *values), of in found.items()]
    names = ("published.file", "head.kl_beta", "head.epoch", "published.known", "published.noted")
    columns = tuple(Column(say(name), "name" if i < 1 else "words") for i, name in enumerate(names))
    notes = tuple(say(message) for message in dict.fromkeys(remarks) if message not in told)
    table = Table(f"{section}-published", section, say("published.title"), columns, tuple(lines), notes=notes)
    yield table.without_empty_columns()
    told.update(remarks)


def _behind(material: Material, cell: Cell) -> Iterator[EvidenceRow]:
    """Yield the published rows that the numbers of a cell are made of."""
    for number in numbers_in(cell):
        rows = (material.evidence.at(key) for key in getattr(number, "of", ()) or (number.ref,) if key)
        yield from (row for row in rows if row.quoted and row.subject.startswith("published/grpo"))


def _fields(material: Material, row: EvidenceRow, section: str) -> Fields:
    """Return what is known of a published run; a statistic over all epochs is of the run of its first one."""
    subject = row.subject if "/epoch~" in row.subject else f"{row.subject}/epoch~1"
    return material.lineages.get(f"{subject}/document~{section}", material.lineages.get(subject, {}))


def _what(rows: Sequence[EvidenceRow]) -> tuple[Cell, Cell]:
    """Return the betas and epochs of rows."""
    parts = [dict(part.split("~") for part in row.subject.split("/") if "~" in part) for row in rows]
    betas = sorted({float(part["beta"]) for part in parts if "beta" in part})
    epochs = sorted({int(part["epoch"]) for part in parts if "epoch" in part})
    return Series(tuple(Name(beta_text(beta)) for beta in betas)), Series(tuple(epochs))


def _known(values: Sequence[str]) -> Cell:
    """Return the stated fields of a run, each with its name, common words in the page's language."""
    known = {name: text for name, text in zip(FIELDS, values, strict=True) if text}
    cells = {name: say(WORDS[text]) if text in WORDS else Code(text) for name, text in known.items()}
    told = [say("published.field", field=say(f"guard.field.{name}"), value=cell) for name, cell in cells.items()]
    return Series(tuple(told), "parts") if told else None


def _noted(rows: Sequence[EvidenceRow]) -> Cell:
    """Return what the reference notes of these numbers, as it stands there, with the betas and epochs it is about."""
    notes: dict[str, list[EvidenceRow]] = {}
    for row in rows:
        if row.how and row.how not in STATISTICS:
            notes.setdefault(row.how, []).append(row)
    told = [
        say("published.about", betas=_what(of)[0], epochs=_what(of)[1], note=Code(how)) for how, of in notes.items()
    ]
    return Series(tuple(told), "parts") if told else None
