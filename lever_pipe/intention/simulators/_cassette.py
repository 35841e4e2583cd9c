"""A file of requests (by hash) with the answers that were given to them, and a chat that answers from it.

One JSON object a line. Several processes may record into one file: a lock orders them, the first answer to a request is
the one that counts, and whoever records is given that one, so that a recorded run and its replay are the same run.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import IO, TypeVar

from pydantic import Field, ValidationError

from lever_pipe.base.errors import RecordError, SimulatorError
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import Row
from lever_pipe.base.storage import regular, shortened, strict_json
from lever_pipe.intention.simulators._prompted import Chat, ChatRequest, UnreadableError
from lever_pipe.intention.simulators.protocol import SimulatorCounts

T = TypeVar("T")


class Take(Row):
    """One line of a cassette."""

    request: str = Field(pattern="^[0-9a-f]{64}$")
    """`request_hash` of what was asked."""
    response: str
    """The model's words."""


def request_hash(request: ChatRequest, agent: str = "") -> str:
    """Return the sha256 of a request's canonical JSON: model, sampling settings and messages, not the server.

    A served agent's name stands in it, too: two servers may call two models alike.
    """
    return hashlib.sha256(canonical_json({**request, "agent": agent} if agent else request).encode()).hexdigest()


class Cassette:
    """The takes of one file."""

    def __init__(self, path: Path, *, is_writable: bool) -> None:
        """Read what the file holds.

        Raises:
            SimulatorError: it cannot be opened.
            RecordError: a line that is no take.
        """
        self.path = path
        self._known: dict[str, str] = {}
        self._offset = 0
        self._lines = 0
        self._lock = Lock()
        try:
            if is_writable:
                path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a+b" if is_writable else "rb", opener=regular) as handle:
                fcntl.flock(handle, fcntl.LOCK_EX if is_writable else fcntl.LOCK_SH)
                self._read_on(handle)
        except OSError as fault:
            record = "Record it with kind: record, of intention.simulator or of the served agent."
            do = "Name a file that can be written." if is_writable else record
            raise self._unusable(fault, do) from None

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def read(self, key: str, read: Callable[[str], T]) -> T:
        """Return what `read` makes of the known answer to a request.

        Raises:
            SimulatorError: it makes nothing of it, as with a cassette of another program.
        """
        try:
            return read(self._known[key])
        except UnreadableError as fault:
            raise SimulatorError(
                f"{self.path}: expected readable answers",
                found=f"{fault} to the request with hash {key}",
                do="Record the cassette anew.",
            ) from None

    def keep(self, key: str, response: str) -> None:
        """Append an answer unless another one is known by now.

        Raises:
            SimulatorError: the file cannot be written.
        """
        try:
            self._append(key, response)
        except OSError as fault:
            raise self._unusable(fault, "Make room, or name a file that can be written.") from None

    def _unusable(self, fault: OSError, do: str) -> SimulatorError:
        return SimulatorError(f"{self.path}: expected a cassette", found=fault.strerror or str(fault), do=do)

    def _append(self, key: str, response: str) -> None:
        with self._lock, open(self.path, "a+b", opener=regular) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            end = self._read_on(handle)
            if key in self._known:
                return
            line = Take(request=key, response=response).model_dump_json().encode() + b"\n"
            handle.truncate(end)  # what a killed process left of a line
            handle.write(line)
            handle.flush()
            self._known[key] = response
            self._offset += len(line)
            self._lines += 1

    def _read_on(self, handle: IO[bytes]) -> int:
        """Read the whole lines that were added since, and return where they end."""
        handle.seek(self._offset)
        whole, newline, _ = handle.read().rpartition(b"\n")
        lines = whole.split(b"\n") if newline else []
        for number, line in enumerate(lines, start=self._lines + 1):
            take = self._parse(line, number)
            self._known.setdefault(take.request, take.response)
            self._lines += 1
        self._offset += len(whole) + len(newline)
        return self._offset

    def _parse(self, line: bytes, number: int) -> Take:
        try:
            strict_json(line)  # pydantic takes the last of several equal keys
            return Take.model_validate_json(line, strict=True)
        except ValidationError as fault:
            found = fault.errors(include_url=False)[0]["msg"]
        except ValueError as fault:
            found = shortened(str(fault))
        raise RecordError(
            f"{self.path}:{number}: expected a request's hash with its response",
            found=found,
            do="Record the cassette anew, or drop the line.",
        )


class CassetteChat:
    """Completes chats from a cassette, or else from another chat, whose readable answers the cassette keeps."""

    def __init__(self, cassette: Cassette, chat: Chat | None = None, agent: str = "") -> None:
        self.counts = chat.counts if chat else SimulatorCounts()
        self.concurrency = chat.concurrency if chat else 1
        self.is_remote = chat is not None and chat.is_remote
        self._chat = chat
        self._cassette = cassette
        self._agent = agent

    def answer(self, request: ChatRequest, read: Callable[[str], T]) -> T | None:
        """Return what `read` makes of the first answer that this request was ever given.

        Raises:
            SimulatorError: the cassette does not hold it and there is no other chat, or it cannot be read.
        """
        key = request_hash(request, self._agent)
        if key in self._cassette:
            self.counts.add(requests=1)
            return self._cassette.read(key, read)
        if self._chat is None:
            raise SimulatorError(
                f"{self._cassette.path}: expected the recorded answer to every request",
                found=f"none for the request with hash {key}",
                do="Record the cassette with this very configuration, kind: record, in a run where no request failed.",
            )

        def keep(text: str) -> T:
            read(text)
            self._cassette.keep(key, text)
            return self._cassette.read(key, read)

        return self._chat.answer(request, keep)
