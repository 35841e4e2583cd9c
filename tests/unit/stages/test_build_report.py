from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jinja2
import pytest
import synthetic_page
import synthetic_results as synthetic
from synthetic_page import build
from test_plot_curves import plot

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.stage_configs import ShownStudy
from lever_pipe.report.page.numbers import numbers_in

STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")


class Reader(HTMLParser):
    """What a page holds, by tag and attribute."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def all(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def figures_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[synthetic.Size], Path]:
    """Return the folder of the figures of a size, drawn once."""
    return cache(lambda size: plot(tmp_path_factory.mktemp("figures"), size))


@pytest.fixture(scope="module")
def inputs(folder: Path, figures_of: Callable[[synthetic.Size], Path]) -> dict[str, Any]:
    return synthetic_page.write_inputs(folder, synthetic.FULL, figures=figures_of(synthetic.FULL))


@pytest.fixture(scope="module")
def html(folder: Path, inputs: dict[str, Any]) -> str:
    return build(inputs, folder / "page").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def markdown(folder: Path, html: str) -> str:
    assert html
    return (folder / "page" / "report.md").read_text(encoding="utf-8")


def all_tables(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    return [table for path in inputs["tables"] for table in storage.read_json(path)]


def with_tables(inputs: dict[str, Any], folder: Path, tables: list[dict[str, Any]]) -> dict[str, Any]:
    storage.write_json(folder / "changed.json", tables)
    return {**inputs, "tables": (folder / "changed.json",)}


def with_template(inputs: dict[str, Any], folder: Path, name: str, was: str, becomes: str) -> dict[str, Any]:
    text = inputs[name].read_text(encoding="utf-8")
    assert was in text
    (folder / "changed.j2").write_text(text.replace(was, becomes, 1), encoding="utf-8")
    return {**inputs, name: folder / "changed.j2"}


def test_the_page_stands_in_reading_order(html: str, markdown: str) -> None:
    names = re.findall(r'id="section-([^"]+)"', html)
    order = "answer how 000 001 002 statistics on_policy agreement why claims extra world data rl_data work"
    assert names == order.split()
    assert markdown.count("\n## ") == len(names)
    answer = html[html.index('id="section-answer"') : html.index('id="section-how"')]
    assert re.findall(r'id="(table-[^"-]+(?:-kl-beta)?|figure-[a-z_]+)"', answer) == [
        "table-overview",
        "table-highest-kl-beta",
        "figure-accuracy_by_shots",
    ]


def test_every_table_is_on_both_pages_with_all_its_cells(html: str, markdown: str, inputs: dict[str, Any]) -> None:
    rows = 0
    for table in all_tables(inputs):
        assert f'data-place="table:{table["id"]}"' in html
        assert f"### {table['title']}\n" in markdown
        assert table["caption"] in markdown
        rows += len(table["rows"])
    assert len(re.findall(r'<th scope="row"', html)) == rows
    assert "| 200 | published | 58.80 | 56.60 | 53.90 | 55.20 |" in markdown


def test_numbers_of_the_page_are_those_of_its_tables(html: str, inputs: dict[str, Any]) -> None:
    body = re.findall(r"<tbody>(.*?)</tbody>", html, re.DOTALL)
    cells = [cell for table in all_tables(inputs) for row in table["rows"] for cell in row]
    shown = Counter(number for text in body for number in numbers_in(re.sub(r"<[^>]+>", " ", text)))
    assert shown == Counter(number for cell in cells for number in numbers_in(cell))


def test_links_lead_to_files_and_places(folder: Path, html: str, markdown: str, inputs: dict[str, Any]) -> None:
    page, ids = Reader(html), Counter(Reader(html).all("id"))
    assert max(ids.values()) == 1
    links = page.all("href")
    inside = [link[1:] for link in links if link.startswith("#")]
    outside = [link for link in links if not link.startswith(("#", "data:"))]
    assert set(inside) <= set(ids)
    assert len([link for link in inside if link.startswith("table-")]) >= len(all_tables(inputs))  # the contents
    for link in [*outside, *re.findall(r"\]\(([^)]+)\)", markdown)]:
        assert (folder / "page" / link).is_file(), link


def test_the_page_needs_nothing_else(html: str) -> None:
    page = Reader(html)
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "object", "embed", "base")]
    assert not page.all("src")
    assert not page.all("style")
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert not re.findall(r"(?:https?:)?//[a-z]", re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL))
    assert "url(" not in re.findall(r"<style>(.*?)</style>", html, re.DOTALL)[0]


def test_the_policy_allows_this_style_and_this_script_alone(html: str) -> None:
    import base64

    (policy,) = [a["content"] for t, a in Reader(html).tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_only_the_stamp_differs_between_two_builds(
    folder: Path, html: str, markdown: str, inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lever_pipe.stages import build_report as stage

    class Later(stage.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return super().now(tz).replace(year=2099)

    monkeypatch.setattr(stage, "datetime", Later)
    again = build(inputs, folder / "page").read_text(encoding="utf-8")
    assert again != html
    assert STAMP.subn("", again) == STAMP.subn("", html)
    assert len(STAMP.findall(html)) == 1
    assert (folder / "page" / "report.md").read_text(encoding="utf-8") == markdown


@pytest.mark.parametrize("name", ["html_template", "markdown_template"])
@pytest.mark.parametrize(
    ("added", "fault"),
    [
        ("{{ 1 + 1 }}", "2"),
        ("{{ page.sections | length }}", "15"),
        ("{{ '57.01' }}", "57.01"),
    ],
)
def test_a_number_that_no_file_holds_fails_the_build(
    tmp_path: Path, inputs: dict[str, Any], name: str, added: str, fault: str
) -> None:
    was = "<h1>" if name == "html_template" else "# {{ page.title }}"
    becomes = f"{was}{added} " if name == "html_template" else f"{added}\n\n{was}"
    changed = with_template(inputs, tmp_path, name, was, becomes)
    with pytest.raises(RecordError, match=rf"(header|report.md): expected only numbers .*found {re.escape(fault)} in "):
        build(changed, tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "was"),
    [("html_template", "{{ content(cell) }}</td>"), ("markdown_template", "{{ table.rows | grid(table.columns) }}")],
)
def test_a_number_that_the_template_leaves_out_fails_the_build(
    tmp_path: Path, inputs: dict[str, Any], name: str, was: str
) -> None:
    changed = with_template(inputs, tmp_path, name, was, "</td>" if name == "html_template" else "")
    with pytest.raises(RecordError, match="expected every number of its files"):
        build(changed, tmp_path)


def test_a_misspelt_name_in_a_template_is_an_error(tmp_path: Path, inputs: dict[str, Any]) -> None:
    with pytest.raises(jinja2.UndefinedError):
        build(with_template(inputs, tmp_path, "html_template", "page.ledes", "page.leeds"), tmp_path)


def test_every_text_is_escaped(tmp_path: Path, inputs: dict[str, Any]) -> None:
    attack = '<script>alert("x")</script> & <b>'
    tables = all_tables(inputs)
    for key in ("title", "caption"):
        tables[0][key] += attack
    tables[0]["rows"][0][0] = tables[0]["columns"][1] = attack
    tables[0]["notes"] = tables[0]["footnotes"] = [attack]
    page = build(
        with_tables(inputs, tmp_path, tables),
        tmp_path,
        title=attack,
        studies=synthetic.shown_studies(model=attack),
        main_preset=attack,
    )
    html = page.read_text(encoding="utf-8")
    assert html.count("<script>") == 1  # the page's own
    assert "<b>" not in html
    assert html.count("&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; &amp; &lt;b&gt;") >= 9
    assert not re.search(r"(?<!\\)<(?:script|b)>", page.with_name("report.md").read_text(encoding="utf-8"))


def test_footnotes_hang_together(tmp_path: Path, inputs: dict[str, Any]) -> None:
    tables = all_tables(inputs)
    tables[0] |= {"marks": ["ab", *[""] * (len(tables[0]["rows"]) - 1)], "footnotes": ["a: Base.", "b: Seed."]}
    html = build(with_tables(inputs, tmp_path, tables), tmp_path).read_text(encoding="utf-8")
    assert '<sup><a href="#table-overview--a">a</a></sup><sup><a href="#table-overview--b">b</a></sup>' in html
    assert '<li id="table-overview--b"><sup>b</sup> Seed.</li>' in html


def test_emulated_numbers_stand_apart(html: str) -> None:
    section = html[html.index('id="section-why"') : html.index('id="section-claims"')]
    assert '<section class="part emulated" id="section-why"' in html
    assert "emulated fault</span>" in section
    assert '<tr class="emulated">' in section
    assert '<tr class="emulated">' not in html.replace(section, "")


def test_a_table_of_an_unknown_section_is_named(tmp_path: Path, inputs: dict[str, Any]) -> None:
    tables = all_tables(inputs)
    tables[3]["document"] = "somewhere"
    with pytest.raises(RecordError, match=f"table '{tables[3]['id']}': expected a section, one of .*found 'somewhere'"):
        build(with_tables(inputs, tmp_path, tables), tmp_path)


def test_a_table_without_its_csv_file_is_named(tmp_path: Path, inputs: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match="table 'highest-kl-beta': expected a CSV file"):
        build({**inputs, "csv": inputs["csv"][:1]}, tmp_path)


def test_a_missing_folder_of_figures_is_named(tmp_path: Path, inputs: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match="expected a folder of figures"):
        build({**inputs, "figures": (tmp_path / "none",)}, tmp_path)


def test_a_figure_without_words_stands_in_the_further_results(tmp_path: Path, inputs: dict[str, Any]) -> None:
    (tmp_path / "figures").mkdir()
    for ending in ("svg", "png"):
        found = (inputs["figures"][0] / f"rce_curve.{ending}").read_bytes()
        (tmp_path / "figures" / f"another_curve.{ending}").write_bytes(found)
    html = build({**inputs, "figures": (tmp_path / "figures",)}, tmp_path).read_text(encoding="utf-8")
    assert html.index('id="section-extra"') < html.index('id="figure-another_curve"') < html.index('id="section-world"')
    assert ">Another curve</title>" in html


def production() -> tuple[ShownStudy, ...]:
    return synthetic.shown_studies(is_world=False, model="Qwen2.5-VL-3B-Instruct")


def test_a_page_of_one_study_does_not_speak_of_the_other(tmp_path: Path, inputs: dict[str, Any]) -> None:
    both = visible(build(inputs, tmp_path / "both").read_text(encoding="utf-8"))
    lever, intention = synthetic.shown_studies()
    alone = visible(build(inputs, tmp_path / "lever", studies=(lever,)).read_text(encoding="utf-8"))
    other = visible(build(inputs, tmp_path / "intention", studies=(intention,)).read_text(encoding="utf-8"))
    for text, of_lever in (("pointer network", True), ("A preset is", True), ("IntentionGym", False)):
        assert text in both
        assert (text in alone) is of_lever
        assert (text in other) is not of_lever


def test_production_and_a_small_configuration(tmp_path: Path, figures_of: Callable[[synthetic.Size], Path]) -> None:
    figures = figures_of(synthetic.SMOKE)
    small = synthetic_page.write_inputs(tmp_path, synthetic.SMOKE, data="files", figures=figures)
    page = build(small, tmp_path / "page", studies=production())
    html = page.read_text(encoding="utf-8")
    assert "<strong>Production.</strong>" in html
    assert "embedded world" not in html.split("<main")[1].split("</header>")[0].lower()


# ---------------------------------------------------------------------------------------------------------- Chinese


@pytest.fixture(scope="module")
def translated(folder: Path, inputs: dict[str, Any]) -> str:
    return build(inputs, folder / "zh", language="zh").read_text(encoding="utf-8")


def visible(html: str) -> str:
    text = re.sub(r"<(script|style)>.*?</\1>", " ", html, flags=re.DOTALL)
    return STAMP.sub("", unescape(re.sub(r"<[^>]+>", " ", text)))


def test_the_chinese_page_has_the_same_numbers(html: str, translated: str) -> None:
    assert Counter(numbers_in(visible(translated))) == Counter(numbers_in(visible(html)))
    assert '<html lang="zh-Hans">' in translated


@pytest.mark.parametrize("size", [synthetic.FULL, synthetic.SMOKE])
@pytest.mark.parametrize("data", ["world", "files"])
def test_no_text_is_left_in_english(
    tmp_path: Path,
    size: synthetic.Size,
    data: str,
    caplog: pytest.LogCaptureFixture,
    figures_of: Callable[[synthetic.Size], Path],
) -> None:
    found = synthetic_page.write_inputs(tmp_path, size, data=data, figures=figures_of(size))
    with caplog.at_level(logging.WARNING):
        build(found, tmp_path / "zh", language="zh", studies=production())
    assert [record.getMessage() for record in caplog.records] == []


def test_each_translation_keeps_the_numbers_of_its_text(inputs: dict[str, Any]) -> None:
    from lever_pipe.commands.glossary_tool import file_texts, page_texts

    glossary = synthetic_page.chinese()
    texts = [*page_texts(), *file_texts(inputs["tables"], inputs["figures"])]
    assert len(texts) > 1000
    for text in texts:
        translation, _ = glossary.translate(text)
        assert sorted(numbers_in(translation)) == sorted(numbers_in(text)), text


def test_english_words_on_the_chinese_page_are_names(translated: str) -> None:
    prose = re.sub(r"<code>.*?</code>", " ", translated)
    words = set(re.findall(r"(?<![\w/.=~-])[a-z]{4,}(?![\w/.=~-])", visible(prose)))
    assert words <= {"backbone", "base", "beta", "checkpoint", "dropout", "epoch", "epochs", "error", "layer", "main",
                     "norm", "published", "reader", "shot", "sqrt", "tiny", "title", "token"}  # fmt: skip


def test_a_text_without_translation_stays_english_and_is_named_in_the_log(
    tmp_path: Path, inputs: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    tables = all_tables(inputs)
    tables[0]["title"] = "Words that nobody translated"
    with caplog.at_level(logging.WARNING):
        page = build(with_tables(inputs, tmp_path, tables), tmp_path, language="zh")
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("1 texts have no translation into 'zh'")
    assert "Words that nobody translated" in message
    assert page.read_text(encoding="utf-8").count("Words that nobody translated") == 2  # heading and contents


def test_the_title_may_have_no_translation(tmp_path: Path, inputs: dict[str, Any], caplog: Any) -> None:
    build(inputs, tmp_path, language="zh", title="My own title")
    assert not caplog.records


@pytest.mark.parametrize(("language", "glossary"), [("zh", ()), ("en", synthetic_page.GLOSSARY)])
def test_a_glossary_of_another_language_is_refused(
    tmp_path: Path, inputs: dict[str, Any], language: str, glossary: tuple[Path, ...]
) -> None:
    with pytest.raises(RecordError, match=rf"a glossary of '{language}'; found '(en|zh)'"):
        build(inputs, tmp_path, language=language, glossary=glossary)
