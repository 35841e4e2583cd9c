from __future__ import annotations

import re
from pathlib import Path

import jinja2
import pytest
import synthetic_results as synthetic
from test_plot_curves import plot
from test_tabulate_documents import tabulate

from lever_pipe import storage
from lever_pipe.errors import RecordError
from lever_pipe.stages.build_report import build_report
from lever_pipe.tables.report import flat, plain, totals

CHECK = {
    "bounds": ["exact_1: accuracy 80.0 is below 90.0"],
    "judged": True,
    "probes": {"exact_1": {"accuracy": 80.0, "n_queries": 12, "truth": 75.0}},
    "stock_agreement": {"prompts": 96, "equal": 96},
}


def report(
    folder: Path, size: synthetic.Size, *, data: str = "world", checks: int = 1, bound: dict[str, float] | None = None
) -> str:
    tabulate(folder, size, data)
    plot(folder, size)
    storage.write_json(folder / "check.json", CHECK)
    storage.write_json(folder / "bound.json", {"exact_demonstration": 97.5, "queries": 800.0, **(bound or {})})
    storage.write_json(folder / "examples.json", {"train_questions": 9009, "train_skipped_images": 7})
    for index in (0, 1):
        storage.write_json(folder / f"counters{index}.json", {"prompts_asked": 1200 + index, "seconds": 1.5})
    build_report(
        template=synthetic.TEMPLATE,
        tables=folder / "tables.json",
        csv=folder / "csv",
        figures=folder / "figures",
        world_check=(folder / "check.json",) * checks,
        rl_summary=folder / "summary.json",
        examples_summary=folder / "examples.json",
        pool_bound=folder / "bound.json",
        counters=(folder / "counters0.json", folder / "counters1.json"),
        report=folder / "report" / "report.md",
        card=folder / "report" / "run.json",
        config=synthetic.report_config().model_copy(update={"data": data}),
    )
    return (folder / "report" / "report.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return report(folder, synthetic.FULL)


def test_the_answer_comes_before_the_documents(text: str) -> None:
    order = [text.index(f"\n## {title}") for title in ("The answer", "How to read", "Document 000", "Document 002")]
    assert order == sorted(order)
    assert text.index("### Overview at 800 samples") < order[1]


def test_every_table_is_printed_with_its_rows(text: str, folder: Path) -> None:
    for table in storage.read_json(folder / "tables.json"):
        assert f"### {table['title']}\n" in text
        assert table["caption"] in text
    assert "| 200 | published | 58.80 | 56.60 | 53.90 | 55.20 |" in text
    assert "?" not in text.split("## The answer")[1].split("## Does the embedded world")[0]


def test_links_lead_to_files(text: str, folder: Path) -> None:
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(links) == 5
    for link in [*links, *re.findall(r"\]\((\.\./csv)\)", text)]:
        assert (folder / "report" / link).exists(), link


def test_world_check_counters_and_bound_are_shown(text: str) -> None:
    assert "| exact 1 | 80 | 75 | 12 |" in text
    assert "Bounds missed: exact_1: accuracy 80.0 is below 90.0." in text
    assert "| prompts asked | 2,401 |" in text  # 1200 + 1201
    assert "| seconds | 3 |" in text
    assert "| exact demonstration | 97.5 |" in text
    assert "| train questions | 9,009 |" in text
    assert "| train skipped images | 7 |" in text
    assert "**Embedded world.**" in text
    assert "(reader: tiny-reader)" in text
    assert "preset `main`" in text


def test_the_expected_order_stands_in_the_world_section_alone(text: str) -> None:
    assert text.count("### Expected order in the embedded world at 800 samples") == 1
    assert text.index("## Does the embedded world") < text.index("### Expected order") < text.index("Bounds missed")


def test_copying_is_explained_with_the_zero_shot_answer_where_it_was_measured(text: str, tmp_path: Path) -> None:
    assert "perfect copying" not in text
    measured = report(tmp_path, synthetic.SMOKE, bound={"best_answer": 80.0, "best_answer_or_zero_shot": 85.0})
    assert "what perfect copying\ncould reach" in measured
    assert "| best answer or zero shot | 85 |" in measured


def test_production_has_no_world_section(tmp_path: Path) -> None:
    text = report(tmp_path, synthetic.SMOKE, data="files", checks=0)
    assert "**Production.**" in text
    assert "embedded world" not in text.lower()


def test_equal_inputs_give_equal_bytes(text: str, tmp_path: Path) -> None:
    assert report(tmp_path, synthetic.FULL) == text


def test_a_missing_folder_of_figures_is_named(tmp_path: Path) -> None:
    for name in ("tables", "summary", "bound"):
        storage.write_json(tmp_path / f"{name}.json", [] if name == "tables" else {})
    with pytest.raises(RecordError, match="expected a folder of figures"):
        build_report(
            template=synthetic.TEMPLATE,
            tables=tmp_path / "tables.json",
            csv=tmp_path / "csv",
            figures=tmp_path / "figures",
            world_check=(),
            rl_summary=tmp_path / "summary.json",
            examples_summary=tmp_path / "summary.json",
            pool_bound=tmp_path / "bound.json",
            counters=(),
            report=tmp_path / "report.md",
            card=tmp_path / "run.json",
            config=synthetic.report_config(),
        )


def test_a_misspelt_name_in_the_template_is_an_error(tmp_path: Path, folder: Path, text: str) -> None:
    assert text
    (tmp_path / "bad.j2").write_text("{{ parts.titel }}")
    with pytest.raises(jinja2.UndefinedError):
        build_report(
            template=tmp_path / "bad.j2",
            tables=folder / "tables.json",
            csv=folder / "csv",
            figures=folder / "figures",
            world_check=(),
            rl_summary=folder / "summary.json",
            examples_summary=folder / "examples.json",
            pool_bound=folder / "bound.json",
            counters=(),
            report=tmp_path / "report.md",
            card=tmp_path / "run.json",
            config=synthetic.report_config(),
        )


def test_totals_add_numbers_only() -> None:
    assert totals([{"a": 1, "b": True, "c": "x"}, {"a": 2.5}]) == [("a", "3.5")]


def test_a_ratio_is_taken_over_the_sums() -> None:
    on_gpu = {"seconds": 6.0, "limit_seconds": 2.0, "seconds_per_limit": 3.0}
    further = {"seconds": 2.0, "limit_seconds": 2.0, "seconds_per_limit": 1.0}
    found = dict(totals([on_gpu, further, {"seconds": 100.0}]))
    assert found == {"limit seconds": "4", "seconds": "108", "seconds per limit": "2"}


def test_flat_names_nested_values() -> None:
    assert flat({"a_b": {"c": 0.25}, "d": False}) == [("a b: c", "0.25"), ("d", "no")]


@pytest.mark.parametrize(("value", "text"), [(1234567, "1,234,567"), (2.0, "2"), (0.123456, "0.1235"), ("x", "x")])
def test_plain(value: object, text: str) -> None:
    assert plain(value) == text
