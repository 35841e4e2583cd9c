"""One POST of JSON within a deadline, over the standard library.

`http.client` reads no proxy from the environment and follows no redirect, so that a key goes to the configured server
and nowhere else.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

LARGEST_BODY = 4_000_000
"""Bytes of an answer; a longer one is no chat completion."""


class Target(NamedTuple):
    """Where requests go."""

    is_secure: bool
    host: str
    port: int
    path: str


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes
    """At most one byte more than `LARGEST_BODY`."""


def post_json(target: Target, value: Any, headers: Mapping[str, str], seconds: float) -> Answer:
    """Send one request and return its answer; the connection is closed afterwards.

    Args:
        target: the server.
        value: what is sent as JSON.
        headers: beside those of the format.
        seconds: from before the connection to the answer's last byte, however slowly that trickles in.

    Raises:
        OSError: no connection, or none that lasts; TimeoutError after the deadline.
        http.client.HTTPException: the answer is not HTTP.
    """
    deadline = time.monotonic() + seconds
    kind = http.client.HTTPSConnection if target.is_secure else http.client.HTTPConnection
    connection = kind(target.host, target.port, timeout=seconds)
    connection.connect()
    raw: socket.socket = connection.sock
    try:
        connection.sock = _DeadlineSocket(raw, deadline)
        payload = json.dumps(value, ensure_ascii=True).encode()
        connection.request("POST", target.path, payload, {"Content-Type": "application/json", **headers})
        with connection.getresponse() as response:
            return Answer(response.status, response.read(LARGEST_BODY + 1))
    finally:
        raw.close()


class _DeadlineSocket:
    """The part of a socket that `http.client` uses; a socket's own time-out starts anew with every byte."""

    def __init__(self, raw: socket.socket, deadline: float) -> None:
        self._raw = raw
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._raw.settimeout(_left(self._deadline))
        self._raw.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        del mode
        return io.BufferedReader(_DeadlineStream(self._raw, self._deadline))

    def close(self) -> None:
        """Leave the socket open: the answer is read after the connection says that it is closed."""


class _DeadlineStream(io.RawIOBase):
    def __init__(self, raw: socket.socket, deadline: float) -> None:
        super().__init__()
        self._raw = raw
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._raw.settimeout(_left(self._deadline))
        return self._raw.recv_into(buffer)


def _left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the time of the request is over")
    return seconds
