"""One headless Chromium for all tests of the page, without a network; without Chromium they are skipped."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "stages"))

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMEDRIVER = shutil.which("chromedriver")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # a container has no user namespaces
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The main page of a small evidence in both languages, and a page of its appendix."""
    import synthetic_page as small

    folder = tmp_path_factory.mktemp("pages")
    inputs = small.write_inputs(folder, small.of_lever() + small.of_agents())
    small.build(inputs, folder, small.config("lever", "intention"))
    appendix = folder / "report"
    return {"en": folder / "report.html", "zh": appendix / "report.zh.html", "appendix": appendix / "comparisons.html"}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    missing = [name for name, path in (("chromium", CHROMIUM), ("chromedriver", CHROMEDRIVER)) if not path]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} on this machine; Debian has both")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    driver.execute_cdp_cmd("Network.enable", {})
    off = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", off)
    yield driver
    driver.quit()
