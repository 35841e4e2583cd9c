"""The README's picture: the first screen of a finished run's report, `make picture`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path("docs/first-screen.png")
WIDTH, HEIGHT = 1280, 800
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main(results: str = "results") -> int:
    """Take the picture of a finished run's report; return 1 if a browser or the report is missing."""
    page = Path(results, "report.html").resolve()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None or not page.is_file():
        wanted = f"{page} and one of {', '.join(BROWSERS)}"
        remedy = "Run `make reproduce`; install Debian's package chromium."
        sys.stderr.write(f"Expected {wanted}; found {browser or 'no browser'}. {remedy}\n")
        return 1
    with tempfile.TemporaryDirectory() as profile:
        # As root, for example in a container, Chromium does not start with its sandbox.
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        size = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={PICTURE.resolve()}"]
        subprocess.run([browser, *options, *size, page.as_uri()], check=True, capture_output=True, timeout=120)
    sys.stdout.write(f"{PICTURE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
