"""How far long work has come, as plain lines in a log."""

from __future__ import annotations

import logging
import time
from typing import Self

SECONDS_BETWEEN_LINES = 15.0

log = logging.getLogger(__name__)


class Progress:
    """Counts finished items of a known number and logs the count from time to time, and at the end.

    Args:
        total: items in all.
        label: what is done, as `answer prompts`.
    """

    def __init__(self, total: int, label: str) -> None:
        self.total = total
        self.label = label
        self.done = 0
        self._begin = self._shown = time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Count items as finished."""
        self.done += count
        if time.monotonic() - self._shown >= SECONDS_BETWEEN_LINES:
            self._line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.total:
            self._line()

    def _line(self) -> None:
        self._shown = time.monotonic()
        spent, left = self._shown - self._begin, self.total - self.done
        rest = f", about {spent / self.done * left:.0f} s to go" if self.done and left else ""
        log.info("%s: %d of %d in %.0f s%s", self.label, self.done, self.total, spent, rest)
