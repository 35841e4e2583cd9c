"""The report of a small evidence: each number traces to a row, links work, and no other text has a digit."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from gettext import NullTranslations
from html.parser import HTMLParser
from pathlib import Path

import pytest
import synthetic_page as small

from lever_pipe.base.errors import RecordError
from lever_pipe.report import contents
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.cells import Cell, Estimate, Message
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.table import Table, framed

BOTH = ("lever", "intention")
VOID = {"meta", "link", "img", "br"}


@dataclass
class BuiltPage:
    """The visible text of an element that names a row, or of everything outside such elements."""

    line: int
    text: str = ""


class Reader(HTMLParser):
    """Reads what a page shows: the texts of elements that name evidence, and all other text but figures' and code."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, BuiltPage | None, bool]] = []
        self.traced: list[BuiltPage] = []
        self.other: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        self.links += [found["href"] or ""] if tag == "a" else []
        if tag in VOID:
            return
        inside, is_hidden = self.open[-1][1:] if self.open else (None, False)
        if "data-e" in found:
            inside = BuiltPage(int(found["data-e"] or 0))
            self.traced.append(inside)
        is_hidden |= (
            tag in ("style", "script", "head") or found.get("class") == "dots" or "plot" in str(found.get("class"))
        )
        self.open.append((tag, inside, is_hidden))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        _, inside, is_hidden = self.open[-1] if self.open else ("", None, True)
        if inside is not None:
            inside.text += data
        elif not is_hidden:
            self.other.append(data)


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def pages_of(folder: Path) -> list[Path]:
    return [folder / "report.html", *sorted((folder / "report").glob("*.html"))]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    inputs = small.write_inputs(folder, small.of_lever() + small.of_agents())
    return small.build(inputs, folder, small.config(*BOTH))


def test_every_number_is_that_of_the_row_that_it_names(built: Path) -> None:
    lines = (built / "report" / "evidence.csv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(lines))
    parts = ("value", "low", "high", "p", "p_holm", "detectable", "n", "runs")
    seen = 0
    for page in pages_of(built):
        for displayed in read(page).traced:
            row = rows[displayed.line - 2]
            known = [float(row[name]) for name in parts if row[name]]
            known += [100 * value for value in known]  # shares are printed in percent
            text = displayed.text.rpartition(": ")[2].replace("<0.001", "")  # a dot's text begins with its label
            for number in re.findall(r"[-+]?\d+(?:\.\d+)?", text):
                step = 10.0 ** -len(number.partition(".")[2])
                assert any(abs(float(number) - each) <= 0.5001 * step for each in known), (page, displayed, row)
                seen += 1
    assert seen > 100


def test_each_table_has_the_same_numbers_as_latex_and_markdown(built: Path) -> None:
    """Row by row; all three have the page's own form of a number."""

    def numbers(line: str) -> list[str]:
        return re.findall(r"[-+]?\d+(?:\.\d+)?", line)

    files = sorted((built / "report" / "tables").glob("*.csv"))
    for file in files:
        lines = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))[1:]
        latex = file.with_suffix(".tex").read_text(encoding="utf-8")
        latex = latex.partition("\\midrule\n")[2].partition("\\bottomrule")[0]
        rows = [re.sub(r"\\textsuperscript{.*?}", "", row) for row in latex.splitlines()]
        text = file.with_suffix(".md").read_text(encoding="utf-8")
        marked = [row for row in text.splitlines() if row.startswith("|")][2:]
        assert [numbers(row) for row in rows] == [numbers(" | ".join(line)) for line in lines], file.name
        assert [numbers(row) for row in marked] == [numbers(" | ".join(line)) for line in lines], file.name
    assert len(files) > 10


def test_a_changed_row_changes_the_page_and_the_answers(tmp_path: Path, built: Path) -> None:
    target = (small.ON_POLICY.format("0.15"), small.RCE, "mean")
    rows = [
        row._replace(value=73.14) if (row.subject, row.against, row.shots) == target else row
        for row in small.of_lever() + small.of_agents()
    ]
    other = small.build(small.write_inputs(tmp_path, rows), tmp_path, small.config(*BOTH))
    for name in ("report.html", "report/report.zh.html", "report/answers.txt", "report/tables/ladder.csv"):
        assert "73.1" in (other / name).read_text(encoding="utf-8")
        assert "73.1" not in (built / name).read_text(encoding="utf-8")


def test_a_missing_row_fails_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Estimate(1.0, 1, "lever:gone:accuracy")
    table = Table("t", "data", "x", framed([{"x": gone}]))
    monkeypatch.setattr(contents, "TABLES", (lambda _: [table],))
    inputs = small.write_inputs(tmp_path, small.of_lever())
    with pytest.raises(RecordError, match="lever:gone:accuracy"):
        small.build(inputs, tmp_path, small.config("lever"))
    assert not (tmp_path / "report.html").exists()


class Empty(NullTranslations):
    """Catalogue that empties every text."""

    def gettext(self, _: str) -> str:
        return ""

    def ngettext(self, *_: object) -> str:
        return ""


class Blank(Translator):
    """Emit everything but digits: no numbers, configured names or sentences, and only the words of a message."""

    def _write(self, cell: Cell, *, is_html: bool) -> str:
        match cell:
            case Estimate() | str() | int() | float():
                return ""
            case Message():
                return re.sub(r"\d", "", super()._write(cell, is_html=is_html))
            case _:
                return super()._write(cell, is_html=is_html)


def test_no_digit_stands_outside_evidence_names_and_catalogues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lever_pipe.stages.build_report.Translator", lambda name, *_: Blank(name, Empty()))
    inputs = small.write_inputs(tmp_path, small.of_lever() + small.of_agents())
    small.build(inputs, tmp_path, small.config(*BOTH))
    for page in pages_of(tmp_path):
        stray = [text for text in read(page).other if re.search(r"\d", text)]
        assert stray == [], page.name


def test_every_link_hits_a_file_and_a_place(built: Path) -> None:
    found = {page.resolve(): read(page) for page in pages_of(built)}
    for page, reader in found.items():
        for link in reader.links:
            file, _, anchor = link.partition("#")
            target = (page.parent / file).resolve() if file else page
            assert target.is_file(), (page.name, link)
            if anchor and target in found and file:
                assert anchor in found[target].ids, (page.name, link)


def test_both_languages_say_the_same_numbers(built: Path) -> None:
    for page in (built / "report").glob("*.zh.html"):
        other = built / "report.html" if page.name == "report.zh.html" else page.with_name(page.name.replace(".zh", ""))
        chinese, english = read(page), read(other)
        assert sorted(displayed.line for displayed in chinese.traced) == sorted(
            displayed.line for displayed in english.traced
        )
        assert re.search("[\u4e00-\u9fff]", "".join(chinese.other))


def test_the_page_is_one_small_file_that_loads_nothing(built: Path) -> None:
    for page in pages_of(built):
        text = page.read_text(encoding="utf-8")
        assert len(text) < 1_000_000
        assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", text)
        assert "default-src &#39;none&#39;" in text
        assert " style=" not in text


def test_same_inputs_same_bytes(tmp_path: Path, built: Path) -> None:
    inputs = small.write_inputs(tmp_path, small.of_lever() + small.of_agents())
    small.build(inputs, tmp_path, small.config(*BOTH))
    files = [path.relative_to(built) for path in built.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert all((tmp_path / file).read_bytes() == (built / file).read_bytes() for file in files)


@pytest.mark.parametrize(
    ("studies", "rows", "is_world"),
    [
        (("lever",), small.of_lever(), False),
        (("lever",), small.of_lever(("0.15",), sampled=False, runs=1), True),
        (("lever",), small.of_lever((), sampled=False), True),
        (("intention",), small.of_agents(), True),
        (BOTH, [], True),
    ],
)
def test_every_run_has_a_first_screen(
    tmp_path: Path,
    studies: tuple[str, ...],
    rows: list[EvidenceRow],
    is_world: bool,
) -> None:
    inputs = small.write_inputs(tmp_path, rows)
    small.build(inputs, tmp_path, small.config(*studies, is_world=is_world))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('<article id="summary-') >= 2 * ("lever" in studies)
    assert ("Embedded world" in text) == is_world
    assert ("Data from files" in text) == (not is_world)
    answers = (tmp_path / "report" / "answers.txt").read_text(encoding="utf-8")
    assert ("Which KL_BETA?" in answers) == ("lever" in studies)


def test_own_data_are_named_with_the_embedded_reader(tmp_path: Path) -> None:
    displayed = small.config("lever", is_world=False)
    (study,) = displayed.studies
    own = study.model_copy(update={"data": "mine/questions.json", "model": "lvlm", "parameters": 700_000})
    small.build(
        small.write_inputs(tmp_path, small.of_lever()), tmp_path, displayed.model_copy(update={"studies": (own,)})
    )
    for page, reader in (("report.html", "the embedded reader"), ("report/report.zh.html", "内置阅读模型")):
        text = (tmp_path / page).read_text(encoding="utf-8")
        assert text.count(reader) == 2
        assert "0.7 M" in text
        assert "<code>mine/questions.json</code>" in text
        assert "lvlm." not in text


def test_a_numeric_path_that_other_cpus_do_not_repeat_is_told(tmp_path: Path) -> None:
    inputs = small.write_inputs(tmp_path, small.of_lever() + small.of_agents())
    with (tmp_path / "lineage.csv").open("a", encoding="utf-8") as lines:
        lines.write(f"\n{small.OFFLINE.format('0.15')},version.numerics,portable aarch64 less\n")
    text = (small.build(inputs, tmp_path, small.config(*BOTH)) / "report.html").read_text(encoding="utf-8")
    assert "portable aarch64 less" in text.partition("Which KL_BETA?")[0]


def test_exchanged_files_are_told_on_top_and_at_what_follows_from_them(tmp_path: Path, built: Path) -> None:
    inputs, file = small.write_inputs(tmp_path, small.of_lever() + small.of_agents()), "lever/x/selector.safetensors"
    with (tmp_path / "lineage.csv").open("a", encoding="utf-8") as lines:
        lines.write(f"\n{small.OFFLINE.format('0.15')},exchanged,{file}\n")
    other = small.build(inputs, tmp_path, small.config(*BOTH))
    text = (other / "report.html").read_text(encoding="utf-8")
    head, _, rest = text.partition("Which KL_BETA?")
    assert "Files were exchanged by hand" in head
    assert file in head
    assert f"Files were exchanged by hand: {file}" in (other / "report/answers.txt").read_text(encoding="utf-8")
    assert "Follows from a file that somebody exchanged: " in rest
    assert "exchanged" not in (built / "report.html").read_text(encoding="utf-8")
