"""Errors that users can cause and fix, printed as one line without a traceback.

Every message has three parts: the expected state, the state found, and the remedy.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Self

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk and of a full quota."""

DISPLAY_LIMIT = 200  # characters of a foreign text in a message


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as `1 job` or `1,200 jobs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names and the number of further ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shortened(text: str) -> str:
    """Return a text for display in a message, cut if it is long."""
    return text if len(text) <= DISPLAY_LIMIT else f"{text[:DISPLAY_LIMIT]} ... ({len(text)} characters)"


class LeverPipeError(Exception):
    """A problem that the user can cause and fix; printed as one message without a traceback."""

    def __init__(self, expected: str, *, found: str, do: str) -> None:
        self.expected = expected
        self.found = found
        self.do = do
        super().__init__(f"{expected}; found {found}. {do}")


class ConfigError(LeverPipeError):
    """The configuration does not parse into its models; the message lists all problems."""


class RecordError(LeverPipeError):
    """A row of a file breaks its contract; the message names file, line and key."""


class DataError(LeverPipeError):
    """Data are incomplete or contradictory, such as raw files or rows of a table; the message gives the location."""


class CheckpointError(LeverPipeError):
    """A checkpoint misses tensors, or has extra or differently shaped ones; the message lists them."""


class UnknownNameError(LeverPipeError):
    """A named sampler, data set, encoder or LVLM does not exist; the message suggests the nearest."""


class ImageError(LeverPipeError):
    """An image cannot be read; the message names it."""


class SnapshotError(LeverPipeError):
    """A job differs from the plan that the invocation made at its start; the message lists the changes."""


class MachineError(LeverPipeError):
    """The machine refuses a file (full disk, read-only folder, limit), or has too few GPUs for a job."""

    @classmethod
    def of(cls, problem: OSError) -> Self:
        """Return a system error as a message."""
        expected = f"expected to read or write {problem.filename or 'a file'}"
        do = "Fix this, then start again: complete results are kept, and no partial files remain."
        return cls(expected, found=(problem.strerror or str(problem)).lower(), do=do)


class StoreError(LeverPipeError):
    """A store of finished work is missing or has another format."""


class PreflightError(LeverPipeError):
    """Problems that would make a run fail or never end, found before its first job; the message lists all of them."""


class ServerError(LeverPipeError):
    """A server cannot be used as configured; the message names the setting, never a secret."""


class TrainingError(LeverPipeError):
    """A loss or gradient is not a finite number."""
