from __future__ import annotations

import re
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lever_pipe.report.figures import style
from lever_pipe.report.page import drawings


def plotted(tmp_path, title: str = "Title <b>") -> str:  # type: ignore[no-untyped-def]
    with style.styled():
        figure, (left, right) = style.panels(1, 2, height=3.0)
        for axes in (left, right):
            axes.errorbar([1, 2], [3, 4], yerr=[0.5, 0.5], color=style.PALETTE[0], marker="o", label="a line")
            axes.fill_between([1, 2], [2, 3], [4, 5], color=style.PALETTE[1], alpha=0.15)
            style.label(axes, title=title, x="Shots", y="Accuracy")
            axes.legend()
        style.save(figure, tmp_path, "f", with_png=False)
    return (tmp_path / "f.svg").read_text(encoding="utf-8")


def inline(svg: str, name: str = "f") -> str:
    return str(drawings.inline(svg, source="f.svg", name=name, title='A "title"'))


@pytest.fixture(scope="module")
def svg(tmp_path_factory: pytest.TempPathFactory) -> str:
    return plotted(tmp_path_factory.mktemp("svg"))


def test_ids_differ_between_figures_and_references_hit_them(svg: str) -> None:
    one, two = inline(svg, "one"), inline(svg, "two")
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, found in ((one, ids[0]), (two, ids[1])):
        references = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
        assert references
        assert references <= found


def test_styles_are_classes_and_attributes_alone(svg: str) -> None:
    text = inline(svg)
    assert "style=" not in text
    assert "<style" not in text
    assert "#000000" not in text
    assert "#0072b2" not in text.lower()
    classes = set(" ".join(re.findall(r'class="([^"]+)"', text)).split())
    assert {"fill-paper", "stroke-c1", "fill-c2", "stroke-ink", "stroke-grid"} <= classes


def test_a_text_cannot_become_markup() -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><text x="1">&lt;script&gt;1 &amp; 2</text></svg>'
    assert "&lt;script&gt;1 &amp; 2" in inline(svg)
    assert "<script" not in inline(svg)


def test_a_figure_is_drawn_once_a_file_as_it_would_be(
    tmp_path: Path, svg: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its two panels; the library draws all twice, the first time for the layout alone."""
    drawings_of, own = list[Axes](), Axes.draw
    monkeypatch.setattr(Axes, "draw", lambda axes, renderer: (drawings_of.append(axes), own(axes, renderer)))
    assert plotted(tmp_path) == svg
    assert len(drawings_of) == 2
    monkeypatch.setattr(style, "DrawnOnce", Figure)
    assert plotted(tmp_path) == svg
    assert len(drawings_of) == 2 + 4
