"""Chats with an OpenAI-compatible server: local (vLLM, SGLang) or hosted.

`http.client` reads no proxy from the environment and follows no redirect, so that a key goes to the configured server
and nowhere else.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from lever_pipe.base.errors import SimulatorError
from lever_pipe.base.storage import strict_json
from lever_pipe.experiment.agent_config import Connection, address_fault
from lever_pipe.intention.simulators.protocol import RequestCounts

T = TypeVar("T")
ChatRequest = dict[str, Any]
"""The body of a chat completion request; it determines the answer as far as anything does."""
LONGEST_WAIT_S = 60.0
_REMEDIES = {
    401: "Export a valid key in the variable that api_key_variable names, of its connection in intention.execution.",
    403: "Use a key that may ask this model.",
    404: "Check the address and the configured model's name.",
    405: "Check the address: it must lead to an OpenAI-compatible server.",
    **dict.fromkeys(
        (301, 302, 303, 307, 308), "Set the address that the server redirects to; no redirect is followed."
    ),
}
"""Statuses that no further attempt helps, each with what to do."""
_PASSING = (408, 409, 425, 429)
"""Statuses below 500 that may pass."""


class UnreadableError(Exception):
    """A model's answer that does not hold what was asked for."""


class _RejectedError(Exception):
    """The server will not answer this request, whatever it does with others."""


class Chat:
    """Completes chats by asking a server, again where that fails."""

    def __init__(
        self, access: Access, connection: Connection, *, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.counts = RequestCounts()
        self.concurrency = connection.concurrency
        self._access = access
        self._connection = connection
        self._sleep = sleep

    def answer(self, request: ChatRequest, read: Callable[[dict[str, Any]], T]) -> T | None:
        """Return what `read` makes of a completion, or None after the last failed attempt.

        `read` raises UnreadableError on a completion that does not hold what was asked for.
        """
        self.counts.add(requests=1)
        for attempt in range(self._connection.retries + 1):
            if attempt:
                self.counts.add(retries=1)
                self._sleep(min(LONGEST_WAIT_S, self._connection.backoff_seconds * 2 ** (attempt - 1)))
            try:
                return read(completion_of(self._body(request)))
            except UnreadableError as fault:
                self.counts.add(str(fault), malformed=1)
            except TimeoutError:
                self.counts.add("no answer in time")
            except (OSError, http.client.HTTPException) as fault:
                self.counts.add(f"{type(fault).__name__}: {fault}")
            except _RejectedError as fault:
                self.counts.add(str(fault))
                break
        self.counts.add(failures=1)
        return None

    def _body(self, request: ChatRequest) -> bytes:
        status, body = post_json(self._access, request, self._connection.timeout_seconds)
        if status in _REMEDIES:
            raise SimulatorError(
                f"{self._access.url}: expected a server that completes chats",
                found=f"HTTP {status}",
                do=_REMEDIES[status],
            )
        if status != http.client.OK:
            passes = status >= http.client.INTERNAL_SERVER_ERROR or status in _PASSING
            raise (ConnectionError if passes else _RejectedError)(f"HTTP {status}")
        return body


def completion_of(body: bytes) -> dict[str, Any]:
    """Return a chat completion, which has a first choice with a message."""
    try:
        completion: dict[str, Any] = strict_json(body)
        if isinstance(completion["choices"][0]["message"], dict):
            return completion
    except (ValueError, LookupError, TypeError):
        pass
    raise UnreadableError("an answer that is no JSON with choices[0].message")


class Access(NamedTuple):
    """A server and what lets us in; its text never shows the key."""

    url: str
    headers: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Access({self.url!r})"


def find_access(connection: Connection, environ: Mapping[str, str] = os.environ) -> Access:
    """Return the server's place and the headers that hold the key; a server of one's own needs none."""
    name = connection.base_url_variable
    url = connection.base_url or environ.get(name, "")
    if not url:
        raise SimulatorError(
            "the address of an OpenAI-compatible server",
            found=f"neither its connection's base_url nor the environment variable {name}",
            do="Set one of them (intention.execution), such as http://127.0.0.1:8000/v1.",
        )
    if fault := address_fault(url):
        raise SimulatorError(f"${name}: expected a server's address", found=f"one that {fault}", do="Export another.")
    variable = connection.api_key_variable
    key = environ.get(variable, "").strip()
    if not key.isascii() or any(letter <= " " for letter in key):
        raise SimulatorError(
            f"an API key in the environment variable {variable}",
            found="a value with blanks, control or non-ASCII characters (not shown)",
            do="Export the key alone.",
        )
    return Access(url, {"Authorization": f"Bearer {key}"} if key else {})


def post_json(access: Access, value: Any, seconds: float) -> tuple[int, bytes]:
    """Send one request and return status and body of its answer; the server may be silent for so many seconds."""
    parts = urlsplit(access.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Content-Type": "application/json", **access.headers}
    with closing(kind(parts.hostname or "", parts.port, timeout=seconds)) as connection:
        connection.request("POST", parts.path.rstrip("/") + "/chat/completions", json.dumps(value).encode(), headers)
        with connection.getresponse() as response:
            return response.status, response.read()
