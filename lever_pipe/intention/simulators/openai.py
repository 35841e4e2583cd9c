"""A user that a model behind an OpenAI-compatible server plays: local (vLLM, SGLang) or hosted."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from typing import TypeVar

from lever_pipe.base.errors import SimulatorError
from lever_pipe.base.storage import strict_json
from lever_pipe.experiment.agent_config import AgentExecution, Connection, Simulator
from lever_pipe.intention.simulators._endpoint import Access, find_access
from lever_pipe.intention.simulators._http import LARGEST_BODY, post_json
from lever_pipe.intention.simulators._prompted import ChatRequest, PromptedUser
from lever_pipe.intention.simulators._prompts import UnreadableError
from lever_pipe.intention.simulators.protocol import SimulatorCounts

T = TypeVar("T")

_OK = 200
_REMEDIES = {
    401: "Export a valid key in the variable that intention.execution.connection.api_key_variable names.",
    403: "Use a key that may ask this model.",
    404: "Check the address and intention.simulator.endpoint.model.",
    405: "Check the address: it must lead to an OpenAI-compatible server.",
    **dict.fromkeys(
        (301, 302, 303, 307, 308), "Set the address that the server redirects to; no redirect is followed."
    ),
}
"""Statuses that no further attempt mends, each with what to do."""
_PASSING = (408, 409, 425, 429)
"""Statuses below 500 that may pass."""


def load(config: Simulator, execution: AgentExecution) -> PromptedUser:
    """Return the user behind the configured server; it is first contacted with the first question.

    Raises:
        SimulatorError: no address, or one that is none.
    """
    chat = EndpointChat(find_access(execution.connection), execution.connection)
    return PromptedUser(chat, config.endpoint, leak_details=config.leak_details)


class EndpointChat:
    """Completes chats by asking a server, again where that fails."""

    is_remote = True

    def __init__(
        self, access: Access, connection: Connection, *, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.counts = SimulatorCounts()
        self.concurrency = connection.concurrency
        self._access = access
        self._connection = connection
        self._sleep = sleep

    def answer(self, request: ChatRequest, read: Callable[[str], T]) -> T | None:
        """Return what `read` makes of the model's words, or None after the last failed attempt.

        Raises:
            SimulatorError: the server refuses in a way that no further attempt mends.
        """
        self.counts.add(requests=1)
        for attempt in range(self._connection.retries + 1):
            if attempt:
                self.counts.add(retries=1)
                self._sleep(self._connection.backoff_seconds * 2 ** (attempt - 1))
            try:
                return read(self._words(request))
            except UnreadableError as fault:
                self.counts.add(malformed=1)
                self.counts.note(str(fault))
            except (OSError, http.client.HTTPException) as fault:
                self.counts.note(_describe(fault))
            except _RejectedError as fault:
                self.counts.note(str(fault))
                break
        self.counts.add(failures=1)
        return None

    def _words(self, request: ChatRequest) -> str:
        access = self._access
        status, body = post_json(access.target, request, access.headers, self._connection.timeout_seconds)
        if status in _REMEDIES:
            raise SimulatorError(
                f"{access.url}: expected a server that completes chats", found=f"HTTP {status}", do=_REMEDIES[status]
            )
        if status != _OK:
            passes = status >= http.client.INTERNAL_SERVER_ERROR or status in _PASSING
            raise (ConnectionError if passes else _RejectedError)(f"HTTP {status}")
        return _content_of(body)


class _RejectedError(Exception):
    """The server will not answer this request, whatever it does with others."""


def _content_of(body: bytes) -> str:
    """Return the first choice's words of a chat completion."""
    if len(body) > LARGEST_BODY:
        raise UnreadableError(f"an answer of more than {LARGEST_BODY} bytes")
    try:
        content = strict_json(body)["choices"][0]["message"]["content"]
    except ValueError:
        raise UnreadableError("an answer that is not JSON") from None
    except (LookupError, TypeError):
        raise UnreadableError("an answer without choices[0].message.content") from None
    if not isinstance(content, str):
        raise UnreadableError("an answer whose content is not text")
    return content


def _describe(fault: Exception) -> str:
    return "no answer in time" if isinstance(fault, TimeoutError) else f"{type(fault).__name__}: {fault}"
