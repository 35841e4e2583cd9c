"""The page as a reader sees it: opened from disk, with the network off."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

WIDE, NARROW = (1280, 900), (420, 900)

Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Open:
    """Open a page anew at a size and colour scheme; return the browser."""

    def open_page(language: str = "en", size: tuple[int, int] = WIDE, scheme: str = "light", media: str = "") -> Any:
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
        shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        browser.get(pages[language].as_uri())
        return browser

    return open_page


def script(browser: Any, text: str, *arguments: Any) -> Any:
    return browser.execute_script(text, *arguments)


def column(browser: Any, table: str, index: int) -> list[str]:
    """Return the texts of a column from top to bottom, without what stands small in its cells."""
    return script(
        browser,
        """return [...document.querySelector(arguments[0] + ' tbody').rows].map(row => {
               const cell = row.cells[arguments[1]].cloneNode(true);
               cell.querySelectorAll('small, sup').forEach(part => part.remove());
               return cell.textContent.trim(); })""",
        table,
        index,
    )


def head(browser: Any, table: str, index: int) -> Any:
    return script(
        browser, "return document.querySelectorAll(arguments[0] + ' thead button')[arguments[1]]", table, index
    )


def order_of(browser: Any, table: str, index: int) -> str | None:
    return script(
        browser,
        "return document.querySelectorAll(arguments[0] + ' thead th')[arguments[1]].getAttribute('aria-sort')",
        table,
        index,
    )


def picture(browser: Any) -> np.ndarray[Any, Any]:
    data = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_it_opens_without_an_error(opened: Open, language: str, size: tuple[int, int]) -> None:
    browser = opened(language, size)
    assert script(browser, "return document.readyState") == "complete"
    assert not script(browser, "return navigator.onLine")
    assert script(browser, "return performance.getEntriesByType('resource').map(entry => entry.name)") == []
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("size", [WIDE, (760, 900), NARROW, (320, 700)])
def test_the_page_never_scrolls_sideways_but_wide_tables_do(opened: Open, size: tuple[int, int]) -> None:
    browser = opened(size=size)
    width = script(browser, "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert width[0] == width[1] == size[0]
    wide = script(
        browser,
        "return [...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth + 1).length",
    )
    assert wide > 0 or size == WIDE


def test_every_table_sorts_by_click(opened: Open) -> None:
    browser = opened()
    table, index = "#table-overview", 2
    written = column(browser, table, index)
    numbers = sorted(map(float, written))
    assert list(map(float, written)) != numbers  # else sorting would show nothing
    head(browser, table, index).click()
    assert list(map(float, column(browser, table, index))) == numbers
    assert order_of(browser, table, index) == "ascending"
    head(browser, table, index).click()
    assert list(map(float, column(browser, table, index))) == numbers[::-1]
    assert order_of(browser, table, index) == "descending"
    head(browser, table, index).click()
    assert column(browser, table, index) == written
    assert order_of(browser, table, index) is None


def test_another_column_takes_the_order_over_and_rows_stay_whole(opened: Open) -> None:
    browser = opened()
    table = "#table-001-accuracy-epoch-1"

    def rows() -> list[str]:
        found = f"return [...document.querySelectorAll('{table} tbody tr')].map(row => row.textContent)"
        return list(script(browser, found))

    before = rows()
    head(browser, table, 2).click()
    head(browser, table, 0).click()
    assert order_of(browser, table, 2) is None
    assert order_of(browser, table, 0) == "ascending"
    assert sorted(rows()) == sorted(before)
    assert column(browser, table, 0) == sorted(column(browser, table, 0), key=float)


def test_every_head_of_every_table_sorts_with_empty_cells_last(opened: Open) -> None:
    browser = opened()
    faults = script(
        browser,
        """const faults = [];
           for (const head of document.querySelectorAll('thead th')) for (const order of ['ascending', 'descending']) {
             head.querySelector('button').click();
             if (head.getAttribute('aria-sort') !== order) faults.push(head.textContent + ' ' + order);
             const cells = [...head.closest('table').tBodies[0].rows].map(row => row.cells[head.cellIndex]);
             const empty = cells.map(cell => Boolean(cell.querySelector('.absent'))
               || ('number' in head.dataset && !/\\d/.test(cell.textContent)));
             const first = empty.indexOf(true);
             if (first >= 0 && empty.lastIndexOf(false) > first) faults.push(head.textContent);
             if (!('number' in head.dataset)) continue;
             const values = cells.filter((_, i) => !empty[i])
               .map(cell => parseFloat(cell.textContent.trim().replace(/[<,±]/g, '')));
             if (values.some(Number.isNaN)) faults.push(head.textContent + ' NaN');
             const signed = order === 'ascending' ? values : values.reverse();
             if (signed.some((value, i) => i && value < signed[i - 1])) faults.push(head.textContent + ' ' + values);
           }
           return faults""",
    )
    assert faults == []


def test_words_with_numbers_sort_by_the_numbers(opened: Open) -> None:
    browser = opened()
    head(browser, "#table-overview", 0).click()
    grpo = [text for text in column(browser, "#table-overview", 0) if text.startswith("GRPO")]
    assert [text.split("=")[1].split(",")[0] for text in grpo] == ["0", "0.12", "0.145", "0.15", "0.155", "0.18"]


def test_a_table_sorts_by_keyboard(opened: Open) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = opened()
    table = "#table-overview"
    script(browser, "arguments[0].focus()", head(browser, table, 2))
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert order_of(browser, table, 2) == "ascending"
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert script(browser, "return document.activeElement === arguments[0]", head(browser, table, 3))
    browser.switch_to.active_element.send_keys(Keys.SPACE)
    assert (order_of(browser, table, 2), order_of(browser, table, 3)) == (None, "ascending")


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_every_figure_has_a_size_and_texts_within_it(opened: Open, size: tuple[int, int]) -> None:
    browser = opened(size=size)
    found = script(
        browser,
        """return [...document.querySelectorAll('figure svg.plot')].map(svg => {
             const box = svg.getBoundingClientRect();
             const out = [...svg.querySelectorAll('text')].filter(text => {
               const own = text.getBoundingClientRect();
               return own.left < box.left - 4 || own.right > box.right + 4; });
             return [svg.parentElement.dataset.place, box.width, box.height, svg.querySelectorAll('text').length,
                     out.map(text => text.textContent)]; })""",
    )
    assert len(found) >= 6
    for place, width, height, texts, outside in found:
        assert width > 300, place
        assert 0.3 * width < height < 1.2 * width, place
        assert texts > 5, place
        assert outside == [], place


def test_links_of_the_contents_hit_their_targets(opened: Open) -> None:
    browser = opened()
    links = script(
        browser, "return [...document.querySelectorAll('nav > ul > li > a')].map(a => a.getAttribute('href'))"
    )
    assert len(links) >= 12
    for link in (links[1], links[4], links[-1]):
        browser.find_element("css selector", f'nav a[href="{link}"]').click()
        top = script(browser, "return document.querySelector(arguments[0]).getBoundingClientRect().top", link)
        at_end = script(browser, "return innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        assert -2 <= top <= 60 or at_end, link
    missing = (
        "return [...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.getElementById(a.hash.slice(1)))"
    )
    assert script(browser, f"{missing}.length") == 0


def test_the_contents_open_and_close_on_a_narrow_screen(opened: Open) -> None:
    browser = opened(size=NARROW)
    nav, summary = (browser.find_element("css selector", name) for name in ("nav", "summary"))
    assert not nav.is_displayed()
    summary.click()
    assert nav.is_displayed()
    nav.find_element("css selector", "a").click()
    assert not nav.is_displayed()
    assert opened().find_element("css selector", "nav").is_displayed()


def test_a_long_table_opens_on_demand(opened: Open) -> None:
    browser = opened()
    fold = browser.find_element("css selector", "details.fold")
    table = fold.find_element("css selector", "table")
    assert not table.is_displayed()
    fold.find_element("css selector", "summary").click()
    assert table.is_displayed()


CONTRASTS = """
const channel = value => { const c = value / 255; return c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; };
const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const light = colour => {
  paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
  const [r, g, b] = paint.getImageData(0, 0, 1, 1).data;
  return .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b); };
const behind = node => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour; }
  return 'white'; };
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
const seen = {};
for (const node of document.querySelectorAll(arguments[0])) {
  if (!node.getClientRects().length || node.closest('.skip') || !node.textContent.trim()) continue;
  const style = getComputedStyle(node);
  const colour = node.closest('svg') ? style.fill : style.color;
  const value = ratio(colour, behind(node));
  const name = node.tagName + '.' + (node.getAttribute('class') || '');
  seen[name] = Math.min(seen[name] ?? 99, value); }
return seen"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_background(opened: Open, scheme: str) -> None:
    browser = opened(scheme=scheme)
    found = script(browser, CONTRASTS, "main *, aside *")
    texts = {name: value for name, value in found.items() if name.split(".")[0] not in ("g", "title", "desc", "svg")}
    assert len(texts) > 20
    weak = {name: round(value, 2) for name, value in texts.items() if value < 4.5}  # WCAG AA
    assert not {name: value for name, value in weak.items() if "absent" not in name}


def test_dark_is_dark_and_the_switch_wins(opened: Open) -> None:
    light, dark = picture(opened()).mean(), picture(opened(scheme="dark")).mean()
    assert light > 200
    assert dark < 60
    browser = opened(scheme="dark")
    browser.find_element("id", "theme").click()
    assert picture(browser).mean() == pytest.approx(light, abs=10)
    browser.refresh()
    assert picture(browser).mean() == pytest.approx(light, abs=10)  # remembered
    script(browser, "localStorage.clear()")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_a_screenshot_is_sane(opened: Open, language: str, size: tuple[int, int]) -> None:
    browser = opened(language, size)
    for place in ("content", "table-overview", "figure-accuracy_by_shots"):
        script(browser, "document.getElementById(arguments[0]).scrollIntoView()", place)
        pixels = picture(browser)
        assert pixels.shape == (size[1], size[0], 3)
        ink = float((pixels.min(axis=2) < 160).mean())
        assert 0.005 < ink < 0.3, (place, ink)  # neither blank nor black
        rows = (pixels.min(axis=2) < 160).any(axis=1)
        assert rows.mean() > 0.3, place  # text all over the height


def test_print_has_every_table_and_figure_and_no_controls(opened: Open) -> None:
    browser = opened(size=(794, 1123), media="print")  # A4 at 96 dpi
    found = script(
        browser,
        """const shown = selector => [...document.querySelectorAll(selector)].map(node => node.getBoundingClientRect())
             .filter(box => box.width && box.height).length;
           return [shown('table'), document.querySelectorAll('table').length, shown('svg.plot'),
                   document.querySelectorAll('svg.plot').length, shown('aside'), shown('.hint'),
                   getComputedStyle(document.body).backgroundColor]""",
    )
    assert found[0] == found[1] > 30
    assert found[2] == found[3] > 5
    assert found[4:] == [0, 0, "rgb(255, 255, 255)"]
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 100_000
