"""How far long work has come: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Any, Self

SECONDS_BETWEEN_LINES = 15.0

log = logging.getLogger(__name__)


class Progress:
    """Counts finished items of a known number and shows the count from time to time.

    Args:
        total: items in all.
        label: what is done, as `answer prompts`.
    """

    def __init__(self, total: int, label: str) -> None:
        self.total = total
        self.label = label
        self.done = 0
        self._begin = self._shown = time.monotonic()
        self._bar: Any = None
        if total and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=label)

    def advance(self, count: int = 1) -> None:
        """Count items as finished."""
        self.done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._shown >= SECONDS_BETWEEN_LINES:
            self._line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self.total:
            self._line()

    def _line(self) -> None:
        self._shown = time.monotonic()
        spent = self._shown - self._begin
        rest = (
            f", about {spent / self.done * (self.total - self.done):.0f} s to go" if 0 < self.done < self.total else ""
        )
        log.info("%s: %d of %d in %.0f s%s", self.label, self.done, self.total, spent, rest)
