"""How the commands beside the stages print: the same values as JSON for programs and as text for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


def plain(value: Any) -> Any:
    """Return a value as JSON holds it: named tuples by name, sets sorted, paths as text, NaN as null."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, Path):
        return str(value)
    return None if value != value else value


def as_json(value: Any) -> str:
    """Return the indented JSON of a value's plain form."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False) + "\n"


def counted(count: int, noun: str) -> str:
    """Return a count with what is counted, as `1 row` or `1,200 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class WordsForSnakemake(NamedTuple):
    """What a command is asked for that hands words on to Snakemake."""

    words: list[str]
    as_json: bool


def words_for_snakemake(words: Sequence[str], about: str | None) -> WordsForSnakemake | None:
    """Return the words behind a command's name; None where help was wanted, which is told."""
    rest = [word for word in words[1:] if word != "--json"]
    if not {"-h", "--help"} & set(rest):
        return WordsForSnakemake(rest, "--json" in words[1:])
    sys.stdout.write(about or "")
    return None
