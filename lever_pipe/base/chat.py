"""Chat completions from an OpenAI-compatible server: local (vLLM, SGLang) or hosted.

The client reads no proxy from the environment and follows no redirect, so that it sends a key to the configured server
only.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import Field
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from lever_pipe.base.errors import ServerError, shortened
from lever_pipe.base.sections import Problem, Section, displayed, rule
from lever_pipe.base.storage import strict_json

if TYPE_CHECKING:
    from openai import APIStatusError, OpenAI

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
ChatRequest = dict[str, Any]
"""Body of a chat completion request; it determines the answer as far as the server is deterministic."""
LONGEST_WAIT_S = 60.0
SHORTEST_WAIT_S = 0.5
"""Minimum pause for a busy server, whatever `backoff_seconds` is."""
_QUOTA = "Raise the account's budget or quota, then run again: finished answers are kept."
_REMEDIES = {
    401: "Export a valid key in the variable that its connection's api_key_variable names.",
    402: _QUOTA,
    403: "Use a key with access to this model.",
    404: "Check the address and the configured model's name.",
    405: "Check the address: it must lead to an OpenAI-compatible server.",
    **dict.fromkeys(
        (301, 302, 303, 307, 308), "Set the address that the server redirects to; no redirect is followed."
    ),
}
"""Remedies by status, for errors that another attempt does not solve."""
_PASSING, _OF_SERVER = (408, 409, 425), 500
"""HTTP statuses worth retrying: these, and all from the latter on."""
_BUSY = 429
_INVALID = (400, 422)
_UNSUPPORTED = re.compile(
    r"unsupported[ _](parameter|value)|un(known|recognized) .*(parameter|argument)|not supported with this model"
    r"|extra_forbidden|extra inputs are not permitted",
    re.IGNORECASE,
)
"""Matches the message of a server that rejects a setting, and therefore all requests of a job."""
_SETTINGS = {
    "max_tokens": "Set token_limit_field: max_completion_tokens in its connection (lvlm.server, or"
    " intention.execution.connection or .served).",
    "max_completion_tokens": "Set token_limit_field: max_tokens in its connection.",
    "temperature": "Set temperature: null (in lvlm.decode, intention.simulator.endpoint or the entry of"
    " intention.served): the server's default then applies.",
    "repetition_penalty": "Set lvlm.decode.repetition_penalty: 1.",
    **dict.fromkeys(("seed", "tools", "tool_choice"), "Use a model and a server that support it."),
}
"""Remedies by rejected setting."""
_FILTERED = json.dumps({"choices": [{"finish_reason": "content_filter", "message": {"content": None}}]}).encode()
"""Completion for a prompt that a content filter rejects; Azure sends an error instead of one."""


def address_problem(url: str) -> str:
    """Return the requirement that a server's address breaks, or an empty text; hide addresses with secrets."""
    if "@" in url or "?" in url:
        problem = "must hold no name, password or query, got one that does (not shown)"
        return f"{problem}. Export the key in the variable that api_key_variable names."
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and parts.port != 0 and (parts.hostname or "").encode("idna")
    except ValueError:
        is_one = False
    if is_one and not parts.fragment and url.isascii() and url.isprintable() and " " not in url:
        return ""
    return f"must be an address such as http://127.0.0.1:8000/v1, got {displayed(url)}. Write it so."


class Connection(Section):
    """Access to a server; it changes no number and never enters `spec`."""

    base_url: str = ""
    """Such as http://127.0.0.1:8000/v1; if empty, the variable below is read."""
    base_url_variable: str = Field("OPENAI_BASE_URL", pattern="^[A-Za-z_][A-Za-z0-9_]*$")
    api_key_variable: str = Field("OPENAI_API_KEY", pattern="^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the environment variable that contains the key; the key itself is never stored."""
    timeout_seconds: float = Field(10.0, gt=0, le=600)
    """Timeout of one request."""
    retries: int = Field(3, ge=0, le=20)
    """Further attempts after a failed request, with back-off."""
    backoff_seconds: float = Field(0.5, ge=0, le=60)
    """Wait before the first retry; it doubles each time, up to a minute."""
    patience_seconds: float = Field(300.0, ge=0, le=86_400)
    """Maximum seconds that one request pauses while the server limits rates (HTTP 429, or `Retry-After`). A pause
    follows the server's `Retry-After`; without one it grows as after a failure. Pauses use none of `retries`."""
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the token limit in a request; current OpenAI models accept only the second."""
    strip_thoughts: bool = False
    """Whether to accept the text after a closed `<think>...</think>` as the answer; otherwise such a reply is unusable.
    The thoughts of a served agent are always accepted."""
    concurrency: int = Field(64, ge=1, le=1024)
    """Maximum number of requests in flight."""
    most_requests: int | None = Field(None, ge=1)
    """Maximum number of requests of a job, retries not counted; None for no limit."""
    most_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens of a job, prompts and answers as the server counts them; None for no limit."""

    @rule
    def _address_is_one(self) -> Iterator[Problem]:
        if self.base_url and (problem := address_problem(self.base_url)):
            yield ("base_url",), problem


@dataclass
class RequestCounts:
    """Requests to a server and their outcomes; safe to change from several threads.

    Attributes:
        requests: requested completions.
        failures: requests given up after their last retry.
        retries: further attempts after one that failed.
        malformed: attempts with an unreadable or unusable reply.
        tokens: of prompts and answers, as far as the server counts them.
        last_error: message of the last error.
    """

    requests: int = 0
    failures: int = 0
    retries: int = 0
    malformed: int = 0
    tokens: int = 0
    last_error: str = ""
    _lock: Lock = field(default_factory=Lock)

    def add(self, problem: str = "", **counts: int) -> None:
        """Add to the counts, and keep the message of a problem."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)
            self.last_error = problem or self.last_error

    def values(self) -> dict[str, int]:
        """Return the counts by name."""
        return {name: getattr(self, name) for name in ("requests", "failures", "retries", "malformed")}


class UnreadableError(Exception):
    """A model's answer without the requested content."""


class _RejectedError(Exception):
    """The server rejects this request, but may answer others."""


class _BusyError(Exception):
    """The server limits rates and may request a pause."""

    def __init__(self, text: str, pause: float) -> None:
        super().__init__(text)
        self.pause = pause


class Chat:
    """Completes chats through a server, with retries."""

    def __init__(self, access: Access, connection: Connection, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.counts = RequestCounts()
        self.concurrency = connection.concurrency
        self.url = access.url
        self.connection = connection
        self._access = access
        self._sleep = sleep
        self._growing = wait_exponential(connection.backoff_seconds, max=LONGEST_WAIT_S)
        self._n_answered = 0
        self._is_overloaded = False
        """Whether a request exceeded its patience while no other was answered; until the next answer, none waits."""

    def answer(self, request: ChatRequest, read: Callable[[dict[str, Any]], T]) -> T | None:
        """Return the result of `read` for a completion, or None after the last failed attempt.

        `read` raises UnreadableError for a completion without the requested content.

        Raises:
            ServerError: no further request can succeed, or the connection's limit is reached.
        """
        self.counts.add(requests=1)
        self._require_allowance()
        for attempt in range(self.connection.retries + 1):
            if attempt:
                self.counts.add(retries=1)
                self._sleep(min(LONGEST_WAIT_S, self.connection.backoff_seconds * 2 ** (attempt - 1)))
            try:
                completion = completion_of(self._patiently(request))
                self.counts.add(tokens=tokens_of(completion))
                return read(completion)
            except UnreadableError as error:
                self.counts.add(str(error), malformed=1)
            except ConnectionError as error:
                self.counts.add(str(error))
            except (_RejectedError, _BusyError) as error:
                self.counts.add(str(error))
                break
        self.counts.add(failures=1)
        return None

    def _patiently(self, request: ChatRequest) -> bytes:
        """Return the body of an answer; repeat the request while the server limits rates and the patience lasts."""
        attempts = Retrying(
            retry=retry_if_exception_type(_BusyError),
            wait=self._pause,
            stop=self._gives_up,
            before_sleep=self._tell_pause,
            sleep=self._sleep,
            reraise=True,
        )
        before = self._n_answered
        try:
            body = attempts(self._body, request)
        except _BusyError:
            # An answer to another request proves that waiting helps: then only this request gives up.
            self._is_overloaded |= before == self._n_answered
            raise
        self._n_answered += 1
        self._is_overloaded = False
        return body

    def _pause(self, state: RetryCallState) -> float:
        return max(SHORTEST_WAIT_S, self._growing(state), _busy_in(state).pause)

    def _gives_up(self, state: RetryCallState) -> bool:
        return self._is_overloaded or state.idle_for + state.upcoming_sleep > self.connection.patience_seconds

    def _tell_pause(self, state: RetryCallState) -> None:
        problem = str(_busy_in(state))
        # Warn before the first retry only; later ones are counted.
        if not self.counts.retries:
            limit = self.connection.patience_seconds
            log.warning("%s: %s. Requests wait, each up to %g s (patience_seconds)", self.url, problem, limit)
        self.counts.add(problem, retries=1)

    def _require_allowance(self) -> None:
        allowed, counts = self.connection, self.counts
        # Requests in flight have counted already, their tokens have not: `most_tokens` may be exceeded by those.
        budget = {"most_requests": counts.requests - 1, "most_tokens": counts.tokens}
        for key, number in budget.items():
            if number >= (getattr(allowed, key) or math.inf):
                expected = f"{self.url}: expected a job within its connection's {key}"
                raise ServerError(expected, found=f"{number}", do="Raise it and run again; what was answered is kept.")

    @cached_property
    def _client(self) -> OpenAI:
        from openai import DefaultHttpxClient, OpenAI  # the import takes a second, which other runs save

        logging.getLogger("httpx2").setLevel(logging.WARNING)  # below, it logs a line for each request
        client = OpenAI(
            base_url=self.url,
            api_key=self._access.key or "none",  # the client requires one, local servers do not
            timeout=self.connection.timeout_seconds,
            max_retries=0,  # `answer` retries unreadable replies too, counts attempts, and waits beyond two minutes
            http_client=DefaultHttpxClient(trust_env=False, follow_redirects=False),
        )
        weakref.finalize(self, client.close)  # connections must not outlive this object
        return client

    def _body(self, request: ChatRequest) -> bytes:
        """Return the body of an answer.

        Raises:
            ServerError: no further request can succeed.
            ConnectionError: another attempt may succeed.
            _BusyError: another attempt may succeed after a pause.
            _RejectedError: another attempt cannot succeed.
        """
        import openai

        field = self.connection.token_limit_field
        # A setting of None is absent from the request, so that the server's own default applies.
        sent = {field if key == "max_tokens" else key: value for key, value in request.items() if value is not None}
        try:
            answer = self._client.chat.completions.with_raw_response.create(**sent)  # read by `completion_of`
        except openai.APITimeoutError:
            raise ConnectionError("no answer in time") from None
        except openai.APIStatusError as error:
            return self._body_despite(error)
        except openai.APIConnectionError as error:
            raise ConnectionError(f"no answer: {error.__cause__ or error}") from None
        return answer.content

    def _body_despite(self, problem: APIStatusError) -> bytes:
        """Return the body of an answer with an error status; raise the errors of `_body` for others."""
        status = problem.status_code
        # Servers may quote the key, and messages go to logs. An empty key must match nothing, as a line break does.
        message = shortened(" ".join(_words_of(problem).split())).replace(self._access.key or "\n", "(not shown)")
        found = f"HTTP {status}: {message}"
        if remedy := _remedy_of(problem):
            expected = f"{self.url}: expected a server that completes chats as configured"
            raise ServerError(expected, found=f"HTTP {status}" if status in _REMEDIES else found, do=remedy) from None
        if status in _INVALID and _is_filtered(problem):
            return _FILTERED
        passes = status >= _OF_SERVER or status in _PASSING
        pause = pause_of(problem.response.headers, time.time())
        if status == _BUSY or (passes and pause):
            retry_after = f" (Retry-After: {pause:g} s)" if pause else ""
            raise _BusyError(f"{found}{retry_after}", pause) from None
        raise (ConnectionError if passes else _RejectedError)(found) from None


def _busy_in(state: RetryCallState) -> _BusyError:
    assert state.outcome is not None
    return cast("_BusyError", state.outcome.exception())


def _words_of(problem: APIStatusError) -> str:
    """Return the message of an error, or the whole body if its form is not OpenAI's."""
    words = problem.body.get("message") if isinstance(problem.body, dict) else None
    return words if isinstance(words, str) else problem.response.text


def _remedy_of(problem: APIStatusError) -> str:
    """Return the remedy if an error concerns all requests of a job, else an empty text."""
    status = problem.status_code
    if status == _BUSY and "insufficient_quota" in (problem.code, problem.type):
        return _QUOTA
    text = f"{problem.code} {_words_of(problem)}"
    if status in _INVALID and _UNSUPPORTED.search(text):
        # The message may name two settings: the rejected one, then the one to use instead.
        named = re.findall(r"\w+", f"{problem.param or ''} {text}")
        return next((_SETTINGS[word] for word in named if word in _SETTINGS), "")
    return _REMEDIES.get(status, "")


def _is_filtered(problem: APIStatusError) -> bool:
    """Return whether a content filter withheld the prompt, or the reply in a completion with this status."""
    if "content_filter" in (problem.code, problem.type):
        return True
    try:
        choice = completion_of(problem.response.content)["choices"][0]
    except UnreadableError:
        return False
    return bool(choice.get("finish_reason") == "content_filter")


def pause_of(headers: Mapping[str, str], now: float) -> float:
    """Return the pause in seconds that a server requests; 0 without a readable header.

    `Retry-After` is in seconds or a date; some servers also send the exact `retry-after-ms`.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(0.0, unit * float(headers.get(name, "")))
        except ValueError:
            continue
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


def completion_of(body: bytes) -> dict[str, Any]:
    """Return a chat completion after checking that its first choice has a message."""
    try:
        completion: dict[str, Any] = strict_json(body)
        if isinstance(completion["choices"][0]["message"], dict):
            return completion
    except (ValueError, LookupError, TypeError):
        pass
    raise UnreadableError("an answer that is no JSON with choices[0].message")


def tokens_of(completion: Mapping[str, Any]) -> int:
    """Return the number of tokens of prompt and answer in a completion's usage; 0 without one."""
    usage = completion.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else 0
    return total if type(total) is int and total > 0 else 0


class Access(NamedTuple):
    """A server's address and key; its text never shows the key."""

    url: str
    key: str

    def __repr__(self) -> str:
        return f"Access({self.url!r})"


def find_access(connection: Connection, environ: Mapping[str, str] = os.environ) -> Access:
    """Return the address and the key of a server; a local server needs no key."""
    name = connection.base_url_variable
    url = connection.base_url or environ.get(name, "")
    if not url:
        raise ServerError(
            "the address of an OpenAI-compatible server",
            found=f"neither its connection's base_url nor the environment variable {name}",
            do="Set one of them (lvlm.server or intention.execution), such as http://127.0.0.1:8000/v1.",
        )
    if problem := address_problem(url):
        raise ServerError(f"${name}: expected a server's address", found=f"one that {problem}", do="Export another.")
    variable = connection.api_key_variable
    key = environ.get(variable, "").strip()
    if not key.isascii() or any(letter <= " " for letter in key):
        raise ServerError(
            f"an API key in the environment variable {variable}",
            found="a value with blanks, control or non-ASCII characters (not shown)",
            do="Export the key alone.",
        )
    return Access(url, key)


def at_once(workers: int, act: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield the results of `act` in the order of the items, several at a time; an error cancels unstarted items."""
    if workers == 1:
        yield from map(act, items)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="chat") as pool:
        yield from pool.map(act, items)
