"""Outcomes of checks, and the error that stops a run before its first job."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from lever_pipe.base.errors import LeverPipeError, PreflightError, counted


class Level(StrEnum):
    """Severity of an outcome; a problem stops the run."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Outcome(NamedTuple):
    """The outcome of one check; `expected` and `do` are empty for a successful one."""

    level: Level
    check: str
    found: str
    expected: str = ""
    do: str = ""

    @property
    def text(self) -> str:
        """The outcome without its level, in the format of this package's errors."""
        if self.level is Level.OK:
            return f"{self.check}: {self.found}"
        return f"{self.check}: expected {self.expected}; found {self.found}. {self.do}"


def ok(check: str, found: str) -> Outcome:
    """Return a successful outcome."""
    return Outcome(Level.OK, check, found)


def warning(check: str, expected: str, *, found: str, do: str) -> Outcome:
    """Return an outcome that does not stop the run."""
    return Outcome(Level.WARNING, check, found, expected, do)


def problem(check: str, expected: str, *, found: str, do: str) -> Outcome:
    """Return an outcome that stops the run."""
    return Outcome(Level.PROBLEM, check, found, expected, do)


def refused(check: str, refusal: LeverPipeError) -> Outcome:
    """Convert an error to a problem."""
    return problem(check, refusal.expected.rpartition("expected ")[2], found=refusal.found, do=refusal.do)


def require_no_problem(outcomes: Iterable[Outcome]) -> None:
    """Raise one PreflightError with all problems, if there are any."""
    problems = [outcome.text for outcome in outcomes if outcome.level is Level.PROBLEM]
    if problems:
        texts = "\n  ".join(problems)
        raise PreflightError(
            "expected everything in place before the first job",
            found=counted(len(problems), "problem"),
            do=f"Nothing was submitted. Fix this (lever-pipe doctor checks again):\n  {texts}",
        )
