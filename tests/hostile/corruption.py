"""Corruptions of valid documents, an independent strict parser for the results, and the law for every reader."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple, NoReturn

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from lever_pipe.base.errors import LeverPipeError

MANY = "LEVER_PIPE_FUZZ"
"""The environment variable that asks for so many random inputs a test; without it each has a few, always the same."""
FEW = 60
inputs = settings(
    max_examples=int(os.environ.get(MANY, FEW)),
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


class Raw(str):
    """Text that a document contains verbatim."""


class Pairs(list[Any]):
    """A JSON object as a list of [key, value], so that a key may occur twice."""


NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 1.0, 0.5, -0.0, 1e308, 2**31, 2**63, 2**64, -(10**30), 10**400,
    math.nan, math.inf, -math.inf, Raw("1e999"), Raw("-1e999"), Raw("1" * 5000), Raw("01"), Raw("1."),
    "", " ", "1", "1e-5", "nan", "true", "null", "\ud800", "\udc00x", "\U0001f600", "\0", "a\nb", "../x", "-x", "$(x)",
    "x" * 100_000, "COCO_val2014_000000000001.png",
    [], [[]], [None], [1, 1], Pairs(), Pairs([["", 0]]), Pairs([["key", 1], ["key", 2]]),
    Raw("[" * DEPTH + "]" * DEPTH), Raw('{"a":' * DEPTH + "1" + "}" * DEPTH), Raw("[" * 300 + "]" * 300),
)  # fmt: skip
INSERTED: tuple[bytes, ...] = (
    b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\0", b"\n", b"\r", b"{", b"}", b"[", b"]", b'"', b",", b":",
    b"-", b"0", b"9", b"e9", b".5", b"NaN", b"Infinity", b"1e999", b"null", b"\\ud800", b"\\", b"//", b"#", b" ", b"\t",
    b"\xe2\x80\xa8", b"[" * 2000, b"9" * 5000,
)  # fmt: skip


class Corruption(NamedTuple):
    """One change: its kind, its position (modulo the number of positions), and the index of a nasty value."""

    kind: str
    location: int
    value: int


STRUCTURAL = ("drop", "twice", "rename", "replace", "exchange", "wrap", "text", "number", "once")
BYTES = ("flip", "cut", "insert", "remove", "repeat")


def _corruptions(kinds: Sequence[str], most: int) -> st.SearchStrategy[list[Corruption]]:
    corruption = st.builds(Corruption, st.sampled_from(kinds), st.integers(0, 2**20), st.integers(0, 2**12))
    return st.lists(corruption, max_size=most)


@st.composite
def corrupted(draw: st.DrawFn, document: Any) -> bytes:
    """Return a JSON document with some corruption to its structure, to its bytes, or to both."""
    tree = to_tree(document)
    for corruption in draw(_corruptions(STRUCTURAL, 2)):
        _corrupt_tree(tree, corruption)
    return corrupt_bytes(to_text(tree), draw(_corruptions(BYTES, 2)))


def corrupted_bytes(content: bytes) -> st.SearchStrategy[bytes]:
    """Return a file of another kind with some corruption to its bytes."""
    return _corruptions(BYTES, 3).map(lambda corruptions: corrupt_bytes(content, corruptions))


def to_tree(value: Any) -> Any:
    if isinstance(value, dict):
        return Pairs([key, to_tree(item)] for key, item in value.items())
    return [to_tree(item) for item in value] if isinstance(value, list | tuple) else value


def to_text(tree: Any) -> bytes:
    return _written(tree).encode("utf-8", "surrogatepass")


def _written(tree: Any) -> str:
    if isinstance(tree, Raw):
        return str(tree)
    if isinstance(tree, Pairs):
        return "{" + ",".join(f"{_written(key)}:{_written(value)}" for key, value in tree) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(_written, tree)) + "]"
    return json.dumps(tree)


def _locations(tree: Any) -> Iterator[tuple[list[Any], int]]:
    """Yield every object and list with the index of an item in it."""
    for index, item in enumerate(tree if isinstance(tree, list) else ()):
        yield tree, index
        yield from _locations(item[1] if isinstance(tree, Pairs) else item)


def _put(owner: list[Any], index: int, value: Any) -> None:
    owner[index] = [owner[index][0], value] if isinstance(owner, Pairs) else value


def _corrupt_tree(tree: Any, corruption: Corruption) -> None:
    locations = list(_locations(tree))
    if not locations:
        return
    owner, index = locations[corruption.location % len(locations)]
    is_object, nasty = isinstance(owner, Pairs), deepcopy(NASTY[corruption.value % len(NASTY)])
    old = owner[index][1] if is_object else owner[index]
    match corruption.kind:
        case "drop":
            del owner[index]
        case "twice":
            owner.insert(index + corruption.value % 2, [owner[index][0], nasty] if is_object else deepcopy(old))
        case "rename" if is_object:
            keys = [each[at][0] for each, at in locations if isinstance(each, Pairs)]
            key = ["", "x", owner[index][0] + " ", keys[corruption.value % len(keys)]][corruption.value % 4]
            owner[index] = [key, old]
        case "exchange":
            other, at = locations[(corruption.location + corruption.value) % len(locations)]
            _put(owner, index, deepcopy(other[at][1] if isinstance(other, Pairs) else other[at]))
            _put(other, at, deepcopy(old))
        case "wrap":
            _put(owner, index, [old])
        case "text" if isinstance(old, int | float):
            _put(owner, index, json.dumps(old))
        case "number" if isinstance(old, int | float) and abs(old) < 1e9:
            _put(owner, index, float(old) if isinstance(old, int) else int(old))
        case "once" if isinstance(old, list):
            del old[1:]
        case _:
            _put(owner, index, nasty)


def corrupt_bytes(content: bytes, corruptions: Sequence[Corruption]) -> bytes:
    for kind, location, value in corruptions:
        at = location % (len(content) + 1)
        if kind == "flip" and content:
            at %= len(content)
            content = content[:at] + bytes([content[at] ^ (1 << value % 8)]) + content[at + 1 :]
        elif kind == "cut":
            content = content[:at]
        elif kind == "insert":
            content = content[:at] + INSERTED[value % len(INSERTED)] + content[at:]
        elif kind == "remove":
            content = content[:at] + content[at + 1 + value % 64 :]
        elif kind == "repeat":
            content = content[: at + value % 64] + content[at:]
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
        value = json.loads(
            content.decode("utf-8-sig"), parse_constant=refuse, parse_float=number, object_pairs_hook=pairs
        )
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
    if isinstance(given, bool) or isinstance(result, bool) or isinstance(given, float):
        return type(result) is type(given) and bool(result == given)
    if isinstance(given, int) and isinstance(result, float):
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
    """Return whether a reader accepted its input, and its result.

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
