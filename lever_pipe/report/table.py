"""A table: a frame of cells with its texts and notes, and its forms as CSV, LaTeX and Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pandas as pd

from lever_pipe.report.catalogue import Translator
from lever_pipe.report.cells import Cell, Estimate, EvidenceLedger
from lever_pipe.report.format import ABSENT, ends_of
from lever_pipe.report.long_format import csv_text

SUBJECTS = "subjects"
"""Hidden column of a frame: the policies of a row, which `comparability` compares."""
SOURCE = "Source"
"""Column with the origin of a row's numbers: `ours` or `published`."""
NAME = 30
"""Maximum characters of a cell in a column of names; columns with longer texts are words."""
LATEX = str.maketrans(
    {
        **{char: f"\\{char}" for char in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "\N{MINUS SIGN}": "$-$",
        "\N{MULTIPLICATION SIGN}": r"$\times$",
        "\N{GREEK SMALL LETTER BETA}": r"$\beta$",
    }
)
"""LaTeX text of each character that LaTeX interprets or that its usual fonts lack."""
MARKDOWN = re.compile(r"[\\`*|<>]|(?<!\w)_|_(?!\w)")
"""Characters that Markdown interprets as markup."""
Row = Mapping[Any, Cell]
"""Cells by head: English text, or a message with arguments."""


@dataclass(frozen=True, slots=True)
class Table:
    """A titled frame. Its texts and heads are English and are translated at output.

    Attributes:
        id: unique; the stem of its CSV file, and its anchor on a page.
        section: section of the page, as in `contents.PAGES`.
        title: heading of the table.
        frame: one column for each head, one row for each line.
        facts: arguments of its sentences, macros `intro_ID` and `notes_ID` of `sentences.html.j2`.
        macro_id: replaces its id in the macros' names.
        factor: intended differences of its rows (`comparability.FACTORS`); empty if they are not compared.
        folded: heads of the columns that a page shows below the first cell of a row.
        marks: letters of each row's footnotes.
        footnotes: each mark with its sentences.
    """

    id: str
    section: str
    title: Cell
    frame: pd.DataFrame
    facts: Mapping[str, Any] | None = None
    macro_id: str = ""
    factor: str = ""
    folded: Collection[str] = ()
    marks: Sequence[str] = ()
    footnotes: Sequence[tuple[str, Sequence[Cell]]] = ()

    @property
    def macro(self) -> str:
        """Return the suffix of its macros' names."""
        return (self.macro_id or self.id).replace("-", "_")

    @property
    def heads(self) -> list[Any]:
        """Return the heads of its displayed columns."""
        return [head for head in self.frame if head != SUBJECTS]

    @property
    def rows(self) -> list[dict[Any, Cell]]:
        """Return the cells of each row by head."""
        # Heads may be messages, which cannot name a tuple's fields.
        cells = self.frame[self.heads].itertuples(index=False, name=None)
        return [dict(zip(self.heads, row, strict=True)) for row in cells]

    @property
    def policies(self) -> list[tuple[str, ...]]:
        """Return the policies of each row; a row without policies is not compared."""
        return [policies or () for policies in self.frame.get(SUBJECTS, [()] * len(self.frame))]

    @property
    def column_classes(self) -> dict[Any, str]:
        """Return the CSS classes of each column: `number`, `name` or `words` by its cells, and `published`."""
        classes = {}
        for head in self.heads:
            cells = [cell for cell in self.frame[head] if cell is not None]
            is_long = max(len(str(getattr(cell, "text", cell))) for cell in cells) > NAME
            n_numbers = sum(isinstance(cell, Estimate | int) for cell in cells)
            classes[head] = "number" if 2 * n_numbers > len(cells) else "words" if is_long else "name"
            if str(getattr(head, "text", head)).startswith(("published", "Document")):
                classes[head] += " published"
        return classes

    def noted(self, ledger: EvidenceLedger) -> Table:
        """Return the table after adding every derived number to the evidence, under `table/ID`.

        Raises:
            RecordError: a cell refers to a missing row.
        """
        subject = f"table/{self.id}"
        rows = [
            {head: ledger.note(cell, subject, f"{i}.{j}") for j, (head, cell) in enumerate(row.items())}
            | {SUBJECTS: names}
            for i, (row, names) in enumerate(zip(self.rows, self.policies, strict=True), start=1)
        ]
        texts = {
            "title": ledger.note(self.title, subject, "title"),
            "facts": ledger.note(self.facts, subject, "facts"),
        }
        return replace(self, frame=framed(rows), **texts)


def framed(rows: Iterable[Row]) -> pd.DataFrame:
    """Return rows as a frame without empty columns; absent cells are None."""
    # With dtype object, counts stay ints next to absent cells.
    frame = pd.DataFrame(list(rows), dtype=object)
    return frame.where(frame.notna(), None).dropna(axis="columns", how="all")


def paired_rows(names: Row, ours: Row, published: Row, policies: Sequence[Sequence[str]] = ((), ())) -> Iterator[Row]:
    """Yield our row and below it the published one, each only if it has a cell.

    Args:
        names: cells of both rows.
        ours: our further cells; both rows have the same heads.
        published: the published cells.
        policies: policies of each row.
    """
    for source, cells, groups in zip(("ours", "published"), (ours, published), policies, strict=True):
        if any(cell is not None for cell in cells.values()):
            yield {**names, SOURCE: source, **dict.fromkeys(ours), **cells, SUBJECTS: tuple(groups)}


def as_csv(table: Table, translator: Translator) -> str:
    """Return a table as CSV; the ends of an interval have their own columns, and an absent cell is an empty field."""
    with_ends = {head for head in table.heads if any(map(_has_ends, table.frame[head]))}
    texts = ((translator.text(head), head in with_ends) for head in table.heads)
    columns = ([head, f"{head} low", f"{head} high"] if ends else [head] for head, ends in texts)
    lines = (
        [text for head, cell in row.items() for text in _fields(cell, translator, with_ends=head in with_ends)]
        for row in table.rows
    )
    return csv_text([*chain.from_iterable(columns)], lines)


def _has_ends(cell: Cell) -> bool:
    # NaN differs from itself.
    return isinstance(cell, Estimate) and cell.low == cell.low


def _fields(cell: Cell, translator: Translator, *, with_ends: bool) -> Sequence[str]:
    if not with_ends:
        return (translator.text(cell),)
    if not isinstance(cell, Estimate) or not _has_ends(cell):
        return (translator.text(cell), "", "")
    return (translator.text(cell.plain), *ends_of(cell.low, cell.high, cell.interval_digits))


def as_latex(table: Table, translator: Translator) -> str:
    """Return a table as LaTeX with the rules of package `booktabs`; cells are as on the page."""
    columns = "".join("r" if classes.startswith("number") else "l" for classes in table.column_classes.values())
    caption, label = _latex(translator.text(table.title)), f"tab:{table.id}"
    # `_texts` has already escaped the cells.
    body = _texts(table, translator, _latex, r"\textsuperscript{{{}}}").to_latex(
        index=False, escape=False, column_format=columns, caption=caption, label=label
    )
    notes = [rf"\textsuperscript{{{mark}}} {_latex(text)}" for mark, text in _notes(table, translator)]
    # a note follows the table within its float
    end = r"\end{table}"
    return body.replace(end, "\n".join([*(f"\\par\\footnotesize {note}" for note in notes), end]))


def as_markdown(table: Table, translator: Translator) -> str:
    """Return a table as Markdown; cells are as on the page."""
    align = ["right" if classes.startswith("number") else "left" for classes in table.column_classes.values()]
    frame = _texts(table, translator, _markdown, "<sup>{}</sup>")
    # Without `disable_numparse`, tabulate would reformat numbers.
    body = frame.to_markdown(index=False, disable_numparse=True, colalign=align)
    notes = [f"<sup>{mark}</sup> {_markdown(text)}" for mark, text in _notes(table, translator)]
    return "\n\n".join([f"**{_markdown(translator.text(table.title))}**", body, *notes]) + "\n"


def _texts(table: Table, translator: Translator, escape: Callable[[str], str], superscript: str) -> pd.DataFrame:
    """Return a table's escaped texts; the first cell of a row includes the marks of its footnotes."""
    lines = [[escape(translator.text(cell)) or ABSENT for cell in row.values()] for row in table.rows]
    # Not strict: a table without footnotes has no marks.
    for line, mark in zip(lines, table.marks, strict=False):
        line[0] += superscript.format(mark) if mark else ""
    return pd.DataFrame(lines, columns=[escape(translator.text(head)) for head in table.heads])


def _notes(table: Table, translator: Translator) -> list[tuple[str, str]]:
    return [(mark, " ".join(map(translator.text, sentences))) for mark, sentences in table.footnotes]


def _latex(text: str) -> str:
    escaped = " ".join(text.split()).translate(LATEX)
    # after the end of a row LaTeX reads a bracket or an asterisk as its argument
    return f"{{}}{escaped}" if escaped.startswith(("[", "*")) else escaped


def _markdown(text: str) -> str:
    return MARKDOWN.sub(r"\\\g<0>", " ".join(text.split()))


TABLE_FORMS: Mapping[str, Callable[[Table, Translator], str]] = {"csv": as_csv, "tex": as_latex, "md": as_markdown}
"""By file extension."""
