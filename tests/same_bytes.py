"""Whether two finished runs hold the same, byte for byte, but for what a run costs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Logs and benchmark records hold times and process numbers throughout. Ledger files are named after their processes,
# and which of two jobs asks a shared prompt is up to the scheduler: their rows are compared as one set.
NOT_COMPARED = re.compile(r"log\.txt$|benchmark\.jsonl$|^ledger/")
# What an artefact cost, in units of `units`: only this may differ.
WORK = (
    r"\"?(flop|forwards|images_encoded|prompt_tokens|prompts_from_ledger|seconds|tokens_padded|tokens_prefilled"
    r"|trie_tokens_distinct)\b"
)
LOAD = r"seconds\w*|\w*tokens_per_second\w*"
"""Metrics that depend on a machine's load."""
TABLES = "003-efficiency|agent-runs|work"
"""Tables that show such metrics, or what a run's work was."""
MAY_DIFFER = (
    # A run card says how long its stage took, and holds digests of files that say the same.
    (r"run\.json$", r"^(seconds|inputs|outputs)\b"),
    # The later of two jobs finds the answers that both need in the ledger.
    (r"counters\.json$", rf"^{WORK}"),
    (r"^intention/arm~.*metrics\.jsonl$", r"^\d+ \w*(seconds_|tokens_per_second)"),
    (r"^intention/tables/curves\.csv$", rf",({LOAD}),"),
    (r"(^|/)evidence\.csv$", rf",({LOAD}),|^lever,work,|^report,table/({TABLES}),"),
    (rf"^report/tables/({TABLES})\.csv$", ""),
)
SECONDS_COLUMN = re.compile(r",[\d.]+(,\w+)$", re.MULTILINE)  # of runs.csv, the last but one
SECTION = re.compile(rf'<section class="table" id="table-({TABLES})">.*?</section>', re.DOTALL)


def units(path: Path) -> Iterator[str]:
    """Yield what a text file is made of: lines, rows of tables, values of a record."""
    text = path.read_text()
    if path.name == "runs.csv":
        yield SECONDS_COLUMN.sub(r",\1", text)
    elif path.suffix == ".html":
        yield SECTION.sub("", text)
    elif path.suffix == ".jsonl" and path.name == "metrics.jsonl":
        for line in map(json.loads, text.splitlines()):
            yield from (f"{line['step']} {name} {value}" for name, value in line["values"].items())
    elif path.suffix == ".json":
        yield from _values(json.loads(text))
    else:
        yield from text.splitlines()


def _values(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        yield from (f"{name} {json.dumps(value)}" for name, value in content.items())
    else:
        yield from map(json.dumps, content)


def differences(mine: Path, theirs: Path) -> list[str]:
    """Return the files that differ in what may not differ, each with its first difference."""
    names = [sorted(str(p.relative_to(top)) for p in top.rglob("*") if p.is_file()) for top in (mine, theirs)]
    compared, other = ([name for name in some if not NOT_COMPARED.search(name)] for some in names)
    found = [f"only in one: {name}" for name in sorted(set(compared) ^ set(other))]
    for name in set(compared) & set(other):
        if (mine / name).read_bytes() != (theirs / name).read_bytes():
            found += _difference(name, mine / name, theirs / name)
    return sorted(found)


def _difference(name: str, mine: Path, theirs: Path) -> list[str]:
    allowed = [re.compile(what) for where, what in MAY_DIFFER if re.search(where, name)]
    if not allowed and mine.name != "runs.csv" and mine.suffix != ".html":
        return [f"{name}: other bytes"]
    one, other = (
        [unit for unit in units(path) if not any(what.search(unit) for what in allowed)] for path in (mine, theirs)
    )
    if one == other:
        return []
    first = next((pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]), ("", "another length"))
    return [f"{name}: {first[0][:200]!r} and {first[1][:200]!r}"]
