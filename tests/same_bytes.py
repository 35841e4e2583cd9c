"""Compare the files of two finished runs byte for byte, except for what a run costs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

# Logs contain times throughout. Ledger files are named
# after their processes, and the scheduler decides between two jobs with a shared prompt: their rows are compared as
# one set.
NOT_COMPARED = re.compile(r"log\.txt$|^ledger/")
# Costs of an artifact, in units of `units`: only these may differ, and the report's text about them.
WORK = (
    "forwards|images_encoded|prompt_tokens|prompts_from_ledger|seconds|tokens_padded|tokens_prefilled"
    "|trie_tokens_distinct"
)
TIMED = r"seconds\w*|\w*tokens_per_second\w*"
EVIDENCE = rf"^lever,work,({WORK}),|^intention,[^,]*,({TIMED}),|^report,.*intention:[^:]*:({TIMED})\b"
MAY_DIFFER = (
    # A manifest contains its stage's duration and the digests of other files with durations.
    (r"run\.json$", r"^(seconds|inputs|outputs)\b"),
    # The later of two jobs finds the answers that both need in the ledger.
    (r"counters\.json$", rf"^({WORK})\b"),
    (r"^intention/arm~.*metrics\.jsonl$", rf"^\d+ ({TIMED}) "),
    (r"^intention/tables/curves\.csv$", rf",({TIMED}),"),
    (r"^(report/)?evidence\.csv$", EVIDENCE),
)
PRINTED = re.compile(r"(^|/)report(\.html|/[^/]*\.html|/tables/[^/]*\.(csv|tex|md))$")
"""Files of which each part names the lines of the evidence that it prints."""
END_OF_HEAD = ("\\midrule", "|:-", "|--")
PADDING = re.compile(r" +| ?-{3,}:?")
"""Of Markdown, as wide as the longest cell of a column."""
SECONDS_COLUMN = re.compile(r",[\d.]+(,\w+)$", re.MULTILINE)  # of runs.csv, the last but one


def units(path: Path) -> Iterator[str]:
    """Yield the parts of a text file (lines, rows of tables, values of a record), without printed costs."""
    text = path.read_text()
    if path.name == "runs.csv":
        yield SECONDS_COLUMN.sub(r",\1", text)
    elif PRINTED.search(path.as_posix()):
        yield from _printed(path, text)
    elif path.suffix == ".jsonl" and path.name == "metrics.jsonl":
        for line in map(json.loads, text.splitlines()):
            yield from (f"{line['step']} {name} {value}" for name, value in line["values"].items())
    elif path.suffix == ".json":
        yield from (f"{name} {json.dumps(value)}" for name, value in json.loads(text).items())
    else:
        yield from text.splitlines()


def _printed(path: Path, text: str) -> Iterator[str]:
    """Yield the parts of a page, or the lines of a table of the report, that print nothing of what the run cost."""
    top = path.parents[1] if path.suffix != ".html" else path.parent / ("report" if path.name == "report.html" else "")
    evidence = (top / "evidence.csv").read_text().splitlines()
    costs = {str(number) for number, line in enumerate(evidence, start=1) if re.search(EVIDENCE, line)}
    if path.suffix == ".html":
        parts = re.split(r"(?=<tr|<footer)|(?<=</tr>)", text)
        displayed = [re.findall(r'data-e="(\d+)"', part) for part in parts]
    else:
        parts = [PADDING.sub(" ", line) for line in text.splitlines()]
        cells = json.loads((top / "index.json").read_text())["tables"][path.stem]["cells"]
        heads = (i for i, line in enumerate(text.splitlines(), start=1) if line.startswith(END_OF_HEAD))
        first = 1 if path.suffix == ".csv" else next(heads)
        rows = [re.findall(r"\be(\d+)", json.dumps(row)) for row in cells]
        displayed = [*[[]] * first, *rows, *[[]] * (len(parts) - first - len(rows))]
    yield from (part for part, lines in zip(parts, displayed, strict=True) if costs.isdisjoint(lines))


def differences(mine: Path, theirs: Path) -> list[str]:
    """Return the files with unexpected differences, each with its first difference."""
    names = [sorted(str(p.relative_to(top)) for p in top.rglob("*") if p.is_file()) for top in (mine, theirs)]
    compared, other = ([name for name in some if not NOT_COMPARED.search(name)] for some in names)
    found = [f"only in one: {name}" for name in sorted(set(compared) ^ set(other))]
    for name in set(compared) & set(other):
        if (mine / name).read_bytes() != (theirs / name).read_bytes():
            found += _difference(name, mine / name, theirs / name)
    return sorted(found)


def _difference(name: str, mine: Path, theirs: Path) -> list[str]:
    allowed = [re.compile(what) for where, what in MAY_DIFFER if re.search(where, name)]
    if not allowed and mine.name != "runs.csv" and not PRINTED.search(name):
        return [f"{name}: other bytes"]
    one, other = (
        [unit for unit in units(path) if not any(what.search(unit) for what in allowed)] for path in (mine, theirs)
    )
    if one == other:
        return []
    first = next((pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]), ("", "another length"))
    return [f"{name}: {first[0][:200]!r} and {first[1][:200]!r}"]
