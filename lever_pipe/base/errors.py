"""Every foreseeable problem, printed as one line without a traceback.

Every message has three parts: what was expected, what was found, what to do.
"""

from __future__ import annotations

import errno
from typing import Self

FULL = (errno.ENOSPC, errno.EDQUOT)
"""How the system says that a disk or a quota is full."""

DISPLAY_LIMIT = 200  # characters of a foreign text in a message


def shortened(text: str) -> str:
    """Return a text as a message shows it, cut where it is long."""
    return text if len(text) <= DISPLAY_LIMIT else f"{text[:DISPLAY_LIMIT]} ... ({len(text)} characters)"


class LeverPipeError(Exception):
    """A problem that the user can cause and fix; printed as one message without a traceback."""

    def __init__(self, expected: str, *, found: str, do: str) -> None:
        self.expected = expected
        self.found = found
        self.do = do
        super().__init__(f"{expected}; found {found}. {do}")


class ConfigError(LeverPipeError):
    """The configuration does not parse into its models; the message lists all faults."""


class RecordError(LeverPipeError):
    """A row of a file breaks its contract; the message names file, line and key."""


class DataError(LeverPipeError):
    """Data are incomplete or contradict each other, as raw files or the rows of a table; the message says where."""


class CheckpointError(LeverPipeError):
    """A checkpoint misses tensors, or has extra or differently shaped ones; the message lists them."""


class UnknownNameError(LeverPipeError):
    """A named sampler, data set, encoder or LVLM does not exist; the message suggests the nearest."""


class ImageError(LeverPipeError):
    """An image cannot be read; the message names it."""


class SnapshotError(LeverPipeError):
    """A job is not what the invocation planned at its start; the message says what changed."""


class MachineError(LeverPipeError):
    """The machine refuses a file, as a full disk, a read-only folder or a limit does, or has no GPU for a job alone."""

    @classmethod
    def of(cls, problem: OSError) -> Self:
        """Return what the system says as a message."""
        expected = f"expected to read or write {problem.filename or 'a file'}"
        do = "Change that, then start again: what was complete is kept, and no half file stays."
        return cls(expected, found=(problem.strerror or str(problem)).lower(), do=do)


class StoreError(LeverPipeError):
    """A store of finished work has another format, or is none."""


class PreflightError(LeverPipeError):
    """What would make a run fail or never end, found before its first job; the message lists all of it."""


class ServerError(LeverPipeError):
    """A server cannot be asked as configured; the message names the setting, never a secret."""


class TrainingError(LeverPipeError):
    """A loss or gradient that is no finite number."""
