"""The README's picture: the first screen of a finished run's report, `make picture`.

Beside the picture lies what it shows in words and a digest of the code that draws it: a test compares the digest, so
that a picture of another first screen is seen.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE, SAID = Path("docs/first-screen.png"), Path("docs/first-screen.txt")
WIDTH, HEIGHT = 1280, 800
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRAWN_BY = (
    "lever_pipe/report/cards.py",
    "lever_pipe/report/selector/answer.py",
    "lever_pipe/report/agent/answer.py",
    "lever_pipe/report/page/dots.py",
    "lever_pipe/report/templates/page.html.j2",
    "lever_pipe/report/templates/report.css",
    "resources/messages/en/page.yaml",
)
"""What the first screen looks like and says depends on these."""
DIGEST = "Drawn by code of digest "


def digest() -> str:
    """Return a digest of the files that draw the first screen."""
    found = hashlib.sha256()
    for path in DRAWN_BY:
        found.update(Path(path).read_bytes())
    return found.hexdigest()[:16]


def main(results: str = "results") -> int:
    """Write picture and words from the report of a finished run; return 1 where a browser or the report is missing."""
    page, answers = Path(results, "report.html").resolve(), Path(results, "report", "answers.txt")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None or not (page.is_file() and answers.is_file()):
        wanted = f"{page} and one of {', '.join(BROWSERS)}"
        remedy = "Run `make reproduce`; install Debian's package chromium."
        sys.stderr.write(f"Expected {wanted}; found {browser or 'no browser'}. {remedy}\n")
        return 1
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        size = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={PICTURE.resolve()}"]
        subprocess.run([browser, *options, *size, page.as_uri()], check=True, capture_output=True, timeout=120)
    SAID.write_text(f"{answers.read_text(encoding='utf-8').strip()}\n\n{DIGEST}{digest()}.\n", encoding="utf-8")
    sys.stdout.write(f"{PICTURE}, {SAID}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
