"""Tables as HTML: sort keys of cells, owners of numbers, folded parts and escaping."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lever_pipe.report.catalogue import Translator
from lever_pipe.report.cells import Cell, Estimate, message, p_value
from lever_pipe.report.evidence import ALPHA
from lever_pipe.report.page import pages
from lever_pipe.report.table import SOURCE, Row, Table, as_csv, as_latex, as_markdown, framed

TRANSLATOR = Translator("en")
BLOCKS = Path("lever_pipe/report/templates/blocks.html.j2").read_text(encoding="utf-8")


def table(*rows: Row, **more: Any) -> Table:
    return Table("t1", "data", "A <title>", framed(rows), **more)


def html(*rows: Row, **more: Any) -> str:
    blocks = pages.environment(pages.Frame({"blocks": BLOCKS}, "", ""), TRANSLATOR).get_template("blocks").module
    return str(blocks.table(table(*rows, **more), "tables/t1"))


def test_cells_sort_by_their_number_and_name_its_row() -> None:
    cells: tuple[Cell, ...] = (
        Estimate(1.234, 1, "row", line=5),
        message("{n} of these", n=Estimate(7, 0)),
        None,
        "holds",
    )
    text = html(*({"Name": "a", "Head": cell} for cell in cells))
    assert re.findall(r'<td class="[^"]*"(?: data-v="([^"]*)")?>', text) == ["1.234", "7", "", ""]
    assert '<span data-e="5">1.2</span>' in text
    assert '<span class="verdict yes">holds</span>' in text
    assert text.count("absent") == 1


def test_a_line_shows_whose_it_is_and_leads_to_its_footnote() -> None:
    text = html({"Name": "a", SOURCE: "published"}, marks=["a"], footnotes=[("a", ["Differs"])])
    assert '<tr class="published">' in text
    assert "a<sup>a</sup></th>" in text
    assert "<li><sup>a</sup> Differs</li>" in text
    assert 'href="tables/t1.csv"' in text
    assert "A &lt;title&gt;" in text


@pytest.mark.parametrize(
    "low, high", [(0.02, 1.2), (0.0012, 0.03), (-1.2, -0.04), (-0.04, 1.2), (0.0, 1.2), (0.3, 1.2)]
)
def test_an_interval_shows_whether_it_holds_0(low: float, high: float) -> None:
    _, ends = Estimate(0.6, 2, low=low, high=high, interval_digits=1).parts
    displayed = [float(end) for end in ends.strip("[]").split(", ")]
    assert (displayed[0] <= 0 <= displayed[1]) is (low <= 0 <= high)
    assert displayed == pytest.approx([low, high], abs=0.05)
    csv = as_csv(table({"Name": "a", "Head": Estimate(0.6, 2, low=low, high=high)}), TRANSLATOR)
    assert (float(csv.split(",")[-2]) > 0) is (low > 0)


def test_latex_and_markdown_escape_their_special_characters() -> None:
    special = "a_b 5% & $x$ #1 {c} ~ ^ \\\\ <d> | *e* `f"
    special_table = table({special: "[g]", "β": special}, marks=["a"], footnotes=[("a", ["50% of _it_"])])
    latex = as_latex(special_table, TRANSLATOR)
    escaped = (
        r"a\_b 5\% \& \$x\$ \#1 \{c\} \textasciitilde{} \textasciicircum{} \textbackslash{}\textbackslash{} "
        r"\textless{}d\textgreater{} \textbar{} *e* `f"
    )
    assert latex.count(escaped) == 2
    assert r"$\beta$" in latex
    assert r"{}[g]\textsuperscript{a} & " in latex
    assert r"\textsuperscript{a} 50\% of \_it\_" in latex
    assert r"\caption{A \textless{}title\textgreater{}}" in latex
    assert latex.count("&") - latex.count(r"\&") == 2  # one between two cells, in the head and in the row
    markdown = as_markdown(special_table, TRANSLATOR)
    escaped = r"a_b 5% & $x$ #1 {c} ~ ^ \\\\ \<d\> \| \*e\* \`f"
    assert markdown.count(escaped) == 2
    assert r"50% of \_it\_" in markdown
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines() if line.startswith("|")} == {3}


def test_a_p_value_shows_on_which_side_of_the_border_it_lies() -> None:
    texts = {p: p_value(p).parts[0] for p in (0.0004, 0.03, 0.0401, 0.0496, 0.0499999, 0.05007, 0.059, 1.0)}
    assert (texts[0.0004], texts[0.0496], texts[0.05007], texts[1.0]) == ("<0.001", "0.0496", "0.0501", "1.000")
    assert all((float(text) < ALPHA) is (p < ALPHA) for p, text in texts.items() if p > 0.001)


def test_a_question_and_a_reply_are_no_markup() -> None:
    blocks: Any = pages.environment(pages.Frame({"blocks": BLOCKS}, "", ""), TRANSLATOR).get_template("blocks").module
    displayed = {"id": 1, "question": "<b>", "answer": "<b>", "image": "1"}
    rows = {"rce": {"answer": "<b>", "accuracy": 0.3, "demonstrations": [displayed]}}
    turns = [{"text": "<b>", "calls": [{"content": "<b>"}], "reply": "<b>", "uncovered": ["date"]}]
    task = {"request": "<b>", "hidden": [{"text": "<b>"}], "ceiling": 2.5}
    question = {"question": "<b>", "references": ["<b>"], "rows": rows, "image": "0"}
    gallery = {"questions": [question], "pictures": {"1": {"uri": "data:,", "width": 2, "height": 1}}}
    dialogues = {**task, "dialogues": {"a": {"turns": turns, "reward": 1.0}, "b": {"turns": turns, "reward": 1.0}}}
    texts = f"{blocks.gallery(gallery)}{blocks.dialogues({'tasks': [dialogues]})}"
    assert "<b>" not in texts
    assert texts.count("&lt;b&gt;") >= 10
    assert texts.count('href="#picture-1"') == texts.count('id="picture-1"') == 1  # only pictures of the gallery
