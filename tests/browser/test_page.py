"""The pages as a reader sees them: opened from disk, with the network off."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

FIRST, NARROW = (1280, 800), (420, 900)
LADDER = "#table-ladder"

Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Open:
    """Open a page anew at a size and colour scheme; return the browser."""

    def open_page(page: str = "en", size: tuple[int, int] = FIRST, scheme: str = "light", media: str = "") -> Any:
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
        shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        browser.get(pages[page].as_uri())
        return browser

    return open_page


def script(browser: Any, text: str, *arguments: Any) -> Any:
    return browser.execute_script(text, *arguments)


def values(browser: Any, table: str, index: int) -> list[float | None]:
    """Return what the cells of a column sort by, from top to bottom."""
    return script(
        browser,
        """return [...document.querySelector(arguments[0] + ' tbody').rows].map(row => {
               const cell = row.cells[arguments[1]];
               return 'v' in cell.dataset ? Number(cell.dataset.v) : null; })""",
        table,
        index,
    )


def head(browser: Any, table: str, index: int) -> Any:
    return script(
        browser, "return document.querySelectorAll(arguments[0] + ' thead button')[arguments[1]]", table, index
    )


def picture(browser: Any) -> np.ndarray[Any, Any]:
    from selenium.common.exceptions import TimeoutException
    from selenium.webdriver.support.wait import WebDriverWait

    def captured(browser: Any) -> str:
        return str(browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])

    data = WebDriverWait(browser, 60, ignored_exceptions=[TimeoutException]).until(
        captured
    )  # a busy one misses a frame
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


@pytest.mark.parametrize("page", ["en", "zh", "appendix"])
@pytest.mark.parametrize("size", [FIRST, NARROW])
def test_it_opens_without_an_error(opened: Open, page: str, size: tuple[int, int]) -> None:
    browser = opened(page, size)
    assert script(browser, "return document.readyState") == "complete"
    assert script(browser, "return performance.getEntriesByType('resource').map(entry => entry.name)") == []
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("page", ["en", "zh"])
def test_the_first_screen_holds_the_answers_and_the_ways_on(opened: Open, page: str) -> None:
    found = script(
        opened(page),
        """return ['h1', '.subtitle', '.summaries article:last-child', '#summary-2 svg', '.line']
             .map(name => document.querySelector(name).getBoundingClientRect())
             .map(box => [box.top >= 0, box.bottom <= innerHeight, box.width > 0 && box.height > 0])""",
    )
    assert found == [[True, True, True]] * 5


@pytest.mark.parametrize("page", ["en", "zh", "appendix"])
@pytest.mark.parametrize("size", [FIRST, (760, 900), NARROW, (320, 700)])
def test_nothing_overflows_but_within_its_own_box(opened: Open, page: str, size: tuple[int, int]) -> None:
    browser = opened(page, size)
    width = script(browser, "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert width[0] == width[1] == size[0]
    outside = script(
        browser,
        """return [...document.querySelectorAll('main *')]
             .filter(node => !node.closest('.scroll') && node.getBoundingClientRect().right > innerWidth + 1)
             .map(node => node.outerHTML.slice(0, 80))""",
    )
    assert outside == []


@pytest.mark.parametrize("page", ["en", "zh"])
@pytest.mark.parametrize("size", [FIRST, NARROW])
def test_texts_of_figures_are_readable_and_within_them(opened: Open, page: str, size: tuple[int, int]) -> None:
    found = script(
        opened(page, size),
        """return [...document.querySelectorAll('svg.dots, svg.plot')].map(svg => {
             const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
             const texts = [...svg.querySelectorAll('text')];
             return [Math.min(...texts.map(text => parseFloat(getComputedStyle(text).fontSize) * scale)),
               texts.filter(text => { const own = text.getBoundingClientRect();
                 return own.left < box.left - 4 || own.right > box.right + 4; }).map(text => text.textContent)]; })""",
    )
    assert len(found) >= 3
    assert all(least >= 11 for least, _ in found), found
    assert [outside for _, outside in found if outside] == []


def test_a_table_sorts_by_click_turns_round_and_comes_back(opened: Open) -> None:
    browser = opened()
    written = values(browser, LADDER, 1)
    known = sorted(value for value in written if value is not None)
    assert written != known  # else sorting would show nothing
    for order in (known, known[::-1]):
        head(browser, LADDER, 1).click()
        assert values(browser, LADDER, 1) == order
    head(browser, LADDER, 1).click()
    assert values(browser, LADDER, 1) == written
    assert script(browser, "return document.querySelectorAll('[aria-sort]').length") == 0


def test_every_head_of_every_table_sorts_with_empty_cells_last(opened: Open) -> None:
    problems = script(
        opened("appendix"),
        """const problems = [];
           for (const head of document.querySelectorAll('thead th')) for (const order of ['ascending', 'descending']) {
             head.querySelector('button').click();
             if (head.getAttribute('aria-sort') !== order) problems.push(head.textContent + ' ' + order);
             const cells = [...head.closest('table').tBodies[0].rows].map(row => row.cells[head.cellIndex]);
             const empty = cells.map(cell => Boolean(cell.querySelector('.absent')));
             const first = empty.indexOf(true);
             if (first >= 0 && empty.lastIndexOf(false) > first) problems.push(head.textContent);
             const found = cells.filter(cell => 'v' in cell.dataset).map(cell => Number(cell.dataset.v));
             const rising = order === 'ascending' ? found : found.reverse();
             if (rising.some((value, i) => i && value < rising[i - 1])) problems.push(head.textContent + ' ' + found);
           }
           return problems""",
    )
    assert problems == []


def test_a_table_sorts_by_keyboard(opened: Open) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = opened()
    script(browser, "arguments[0].focus()", head(browser, LADDER, 1))
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.SPACE)
    assert script(browser, "return [...document.querySelectorAll('[aria-sort]')].map(th => th.cellIndex)") == [2]


def test_a_number_tells_its_line_of_the_evidence(opened: Open) -> None:
    from selenium.webdriver import ActionChains

    browser = opened()
    number = browser.find_element("css selector", ".answer [data-e]")
    ActionChains(browser).move_to_element(number).perform()
    assert number.get_attribute("title") == f"evidence.csv:{number.get_attribute('data-e')}"


def test_the_contents_of_an_appendix_page_open_and_close_on_a_narrow_screen(opened: Open) -> None:
    browser = opened("appendix", NARROW)
    nav, summary = (browser.find_element("css selector", name) for name in ("aside nav", "aside summary"))
    assert not nav.is_displayed()
    summary.click()
    assert nav.is_displayed()
    assert opened("appendix").find_element("css selector", "aside nav").is_displayed()


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
@pytest.mark.parametrize("page", ["en", "appendix"])
def test_texts_stand_out_from_their_background(opened: Open, page: str, scheme: str) -> None:
    found = script(opened(page, scheme=scheme), CONTRASTS, "main *, aside *, .bar *")
    names = {"g", "title", "svg"}
    texts = {name: value for name, value in found.items() if name.split(".")[0] not in names}
    assert len(texts) > 10
    assert not {name: round(value, 2) for name, value in texts.items() if value < 4.5}  # WCAG AA


def test_dark_is_dark_and_the_switch_wins(opened: Open) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    light, dark = picture(opened()).mean(), picture(opened(scheme="dark")).mean()
    assert light > 200
    assert dark < 60
    browser = opened(scheme="dark")
    browser.find_element("id", "theme").click()
    assert picture(browser).mean() == pytest.approx(light, abs=10)

    def is_remembered(browser: Any) -> bool:
        browser.refresh()
        return bool(picture(browser).mean() == pytest.approx(light, abs=10))

    WebDriverWait(browser, 5).until(is_remembered)  # what a page stores reaches the next one a moment later
    script(browser, "localStorage.clear()")


def test_print_has_every_table_and_figure_and_no_controls(opened: Open) -> None:
    browser = opened(size=(794, 1123), media="print")  # A4 at 96 dpi
    found = script(
        browser,
        """const shown = selector => [...document.querySelectorAll(selector)].map(node => node.getBoundingClientRect())
             .filter(box => box.width && box.height).length;
           const all = selector => document.querySelectorAll(selector).length;
           return [shown('table') === all('table'), shown('svg') >= all('.dots, .plot'), shown('.bar'),
                   getComputedStyle(document.body).backgroundColor]""",
    )
    assert found == [True, True, 0, "rgb(255, 255, 255)"]


@pytest.mark.parametrize("size", [FIRST, NARROW])
def test_a_word_of_a_head_is_never_broken(opened: Open, size: tuple[int, int]) -> None:
    browser = opened(size=size)
    lines = script(
        browser,
        """const button = document.querySelector(arguments[0] + ' thead .number button');
           button.textContent = 'Comparisons';
           const range = document.createRange();
           range.selectNodeContents(button);
           return range.getClientRects().length""",
        LADDER,
    )
    assert lines == 1
