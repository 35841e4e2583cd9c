"""Corruptions of valid documents, an independent strict parser for the results, and the law for every reader."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from lever_pipe.base.errors import LeverPipeError

MANY = "LEVER_PIPE_FUZZ"
"""The environment variable that asks for so many random inputs a test; without it each has a few, always the same."""
inputs = settings(
    max_examples=int(os.environ.get(MANY, 60)),
    derandomize=MANY not in os.environ,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),  # one folder serves all inputs of a test
)
fewer_inputs = settings(inputs, max_examples=max(20, inputs.max_examples // 10))
"""Of readers that take tens of milliseconds an input."""
SECONDS = 300.0  # a few kilobytes take milliseconds on any machine: who needs so long hangs
LONGEST_MESSAGE = 20_000  # characters; a message is read on a terminal
DEPTH = 100_000

NASTY: tuple[str, ...] = (
    "null", "true", "0", "-1", "1", "7", "1.0", "0.5", "-0.0", "1e308", "1e999", "-1e999", "NaN", "Infinity", "01",
    "1.", str(2**31), str(2**63), str(2**64), str(-(10**30)), "1" * 5000, '""', '" "', '"1"', '"nan"', '"true"',
    '"null"', r'"\ud800"', r'"\udc00x"', '"\\ud83d\\ude00"', r'"\u0000"', r'"a\nb"', '"../x"', '"-x"', '"$(x)"',
    f'"{"x" * 100_000}"', "[]", "[[]]", "[null]", "[1,1]", "{}", '{"":0}', '{"key":1,"key":2}',
    "[" * DEPTH + "]" * DEPTH, '{"a":' * DEPTH + "1" + "}" * DEPTH, "[" * 300 + "]" * 300,
)  # fmt: skip
INSERTED: tuple[bytes, ...] = (
    b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0", b"\n", b"\r", b"{", b"}", b"[", b"]", b'"', b",", b":",
    b"-", b"0", b"e9", b".5", b"NaN", b"1e999", b"null", b"\\ud800", b"\\", b"//", b"#", b" ", b"\xe2\x80\xa8",
    b"[" * 2000, b"9" * 5000,
)  # fmt: skip
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"\[\]{}:,]+|[\[\]{}:,]')

Corruption = tuple[str, int, int]
"""Its kind, its position (modulo the number of positions), and a number that it is about."""


def _corruptions(*kinds: str, most: int = 2) -> st.SearchStrategy[list[Corruption]]:
    return st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 2**20), st.integers(0, 2**12)), max_size=most)


@st.composite
def corrupted(draw: st.DrawFn, document: Any) -> bytes:
    """Return a JSON document with some corruption to its words, to its bytes, or to both."""
    words = TOKEN.findall(json.dumps(document))
    for corruption in draw(_corruptions("replace", "wrap", "quote", "exchange", "drop", "repeat")):
        _corrupt_words(words, *corruption)
    content = "".join(words).encode("utf-8", "surrogatepass")
    return corrupt_bytes(content, draw(_of_bytes(2)))


def corrupted_bytes(content: bytes) -> st.SearchStrategy[bytes]:
    """Return a file of another kind with some corruption to its bytes."""
    return _of_bytes(3).map(lambda corruptions: corrupt_bytes(content, corruptions))


def _of_bytes(most: int) -> st.SearchStrategy[list[Corruption]]:
    return _corruptions("flip", "cut", "insert", "remove", "repeat", most=most)


def _corrupt_words(words: list[str], kind: str, location: int, number: int) -> None:
    values = [at for at, word in enumerate(words) if word not in "[]{}:,"]
    if not values:
        return
    at, n_words = values[location % len(values)], 1 + number % 5  # a key with its value and comma has 4
    if kind == "drop":
        del words[at : at + n_words]
    elif kind == "repeat":
        words[at:at] = words[at : at + n_words]
    elif kind == "exchange":
        other = values[(location + number) % len(values)]
        words[at], words[other] = words[other], words[at]
    else:
        quoted = json.dumps(words[at].strip('"'))
        words[at] = {"wrap": f"[{words[at]}]", "quote": quoted}.get(kind, NASTY[number % len(NASTY)])


def corrupt_bytes(content: bytes, corruptions: Sequence[Corruption]) -> bytes:
    for kind, location, number in corruptions:
        at = location % (len(content) + 1)
        if kind == "flip" and at < len(content):
            content = content[:at] + bytes([content[at] ^ (1 << number % 8)]) + content[at + 1 :]
        elif kind == "cut":
            content = content[:at]
        elif kind == "insert":
            content = content[:at] + INSERTED[number % len(INSERTED)] + content[at:]
        elif kind == "remove":
            content = content[:at] + content[at + 1 + number % 64 :]
        elif kind == "repeat":
            content = content[: at + number % 64] + content[at:]
    return content


class NoOneReading(Exception):
    """A text that is no JSON, or has several readings."""


def only_reading(content: bytes) -> Any:
    """Return the value of a JSON text by the letter of RFC 8259 and I-JSON; independent of the package.

    A byte order mark is skipped, as RFC 8259 allows.

    Raises:
        NoOneReading: no UTF-8 or JSON, a repeated key, no finite double, half a character.
    """

    def refuse(*_: object) -> NoReturn:
        raise NoOneReading

    def number(text: str) -> float:
        return float(text) if math.isfinite(float(text)) else refuse()

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(items) if len({key for key, _ in items}) == len(items) else refuse()

    try:
        text = content.decode("utf-8-sig")
        value = json.loads(text, parse_constant=refuse, parse_float=number, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        raise NoOneReading from None
    return _whole(value)


def _whole(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value if isinstance(value, dict) else []
    if any(0xD800 <= ord(letter) <= 0xDFFF for text in texts for letter in text):
        raise NoOneReading
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _whole(item)
    return value


def same(result: Any, given: Any) -> bool:
    """Return whether a value equals the given one, with the same type for ints and truth values."""
    if isinstance(given, dict) and isinstance(result, dict):
        return given.keys() <= result.keys() and all(same(result[key], given[key]) for key in given)
    if isinstance(given, list) and isinstance(result, list | tuple):
        return len(given) == len(result) and all(map(same, result, given))
    if isinstance(given, int) and not isinstance(given, bool) and isinstance(result, float):
        return result == float(given)
    return type(result) is type(given) and bool(result == given)


class TooSlowError(BaseException):
    """An input that takes too long; no reader may swallow it."""


@contextmanager
def in_time() -> Iterator[None]:
    """Let no input take longer than `SECONDS`."""

    def end(*_: object) -> NoReturn:
        raise TooSlowError(f"more than {SECONDS} seconds")

    former = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def law_of(read: Callable[[], Any], *, names: str) -> tuple[bool, Any]:
    """Return whether a reader accepted its input, and its result or error.

    Anything but a value or an error of three parts that names `names` fails the test, and so does a hang.
    """
    with in_time():
        try:
            return True, read()
        except LeverPipeError as error:
            parts = (error.expected, error.found, error.do)
            assert all(isinstance(part, str) and part.strip() for part in parts), parts
            assert names in str(error), (names, str(error)[:500])
            assert len(str(error)) <= LONGEST_MESSAGE, len(str(error))
            str(error).encode()  # the message goes to a terminal and a log
            return False, error
