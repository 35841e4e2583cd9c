"""Whether two runs agree bit for bit, and where they first differ.

Every output of every artifact counts, by the digests in the manifests: data, answers, rewards, weights, metrics, scores
and evidence. Pages and figures do not count, because they only print the evidence, nor does the lineage, which lists
settings and code. What a run costs does not count either: durations, and the work of the LVLM, which depends on the
ledger.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lever_pipe.base import contents
from lever_pipe.base.artefacts import Artefact, absolute, makers_of, manifests_below, read_artefact
from lever_pipe.base.records import Manifest

NO_RESULTS = ("build_report", "build_grid", "plot_figures", "collect_lineage")
"""Stages that only print the evidence, or list settings."""
COSTS = (
    r"seconds\w*|\w*tokens_per_second\w*|forwards|images_encoded|prompt_tokens|prompts_from_ledger|tokens_padded"
    r"|tokens_prefilled|trie_tokens_distinct"
)
"""Names of keys, columns and metrics with the costs of a run."""
SHOWN = 60  # characters of a printed value
Run = dict[str, Artefact]
"""The artifacts of a run by the path of their manifest below the results."""


class Agreement(NamedTuple):
    """The number of compared artifacts, and the first difference; empty if there is none."""

    artifacts: int
    first: str

    def __str__(self) -> str:
        """Return the finding as one line."""
        if self.first:
            return f"The two runs differ, first in {self.first}"
        return f"The two runs agree bit for bit, except for durations and other costs ({self.artifacts:,} artifacts)"


def agreement(left: Path, right: Path) -> Agreement:
    """Compare two results folders in the order of the workflow."""
    a, b = _read(left), _read(right)
    order = [name for name in _ordered(a, left) if name in a] + [name for name in b if name not in a]
    return Agreement(len(order), next((first for name in order if (first := _difference(name, a, b))), ""))


def _read(results: Path) -> Run:
    found = {str(path.relative_to(results)): read_artefact(path) for path in manifests_below(results)}
    return {n: each for n, each in found.items() if each.origin is None or each.origin.stage not in NO_RESULTS}


def _ordered(run: Run, results: Path) -> Iterator[str]:
    """Yield the artifacts, each after those that it reads."""
    makers = makers_of(run.values())
    graph = {}
    for name, artefact in run.items():
        read = [makers[path] for path in map(absolute, artefact.read) if path in makers]
        graph[name] = [str(maker.artefact.manifest.relative_to(results)) for maker in read]
    return iter(TopologicalSorter(graph).static_order())


def _difference(name: str, a: Run, b: Run) -> str:
    """Return the first difference of an artifact; empty if there is none."""
    if name not in a or name not in b:
        return f"{name}, which only {'A' if name in a else 'B'} has"
    one, other = a[name].origin, b[name].origin
    if one is None or other is None:
        return f"{name}, which cannot be read"
    before, after = _digests(one), _digests(other)
    for output in before | after:
        if before.get(output) != after.get(output):
            x, y = a[name].paths.get(output), b[name].paths.get(output)
            if place := _place(x, y) if x and y else "which only one run has":
                return f"{name} ({one.stage}): {output}, {place}"
    return ""


def _digests(manifest: Manifest) -> dict[str, str]:
    return manifest.outputs | manifest.replaced


def _place(a: Path, b: Path) -> str:
    """Return where two files or folders first differ in anything but costs; empty if nowhere."""
    if not a.exists() or not b.exists():
        return "other content; the file was deleted"
    if a.is_dir() or b.is_dir():
        names = [[str(path.relative_to(top)) for path in contents.files_below(top)] for top in (a, b)]
        return next((place for name in sorted({*names[0], *names[1]}) if (place := _in_folder(name, a, b))), "")
    if a.suffix == ".safetensors":
        tensors = contents.tensors_of(a), contents.tensors_of(b)
        return next((f"tensor {n}" for n in tensors[0] | tensors[1] if tensors[0].get(n) != tensors[1].get(n)), "")
    frames = _frame(a), _frame(b)
    if frames[0] is None or frames[1] is None:
        return "" if a.read_bytes() == b.read_bytes() else "other bytes"
    compared = _without_costs(frames[0]), _without_costs(frames[1])
    may_differ = compared[0].size < frames[0].size  # in costs
    return _cell(*compared) or ("" if may_differ or a.read_bytes() == b.read_bytes() else "other bytes")


def _in_folder(name: str, a: Path, b: Path) -> str:
    place = _place(a / name, b / name)
    return place and f"{name}, {place}"


def _cell(a: pd.DataFrame, b: pd.DataFrame) -> str:
    """Return the row, from 1, and the column of the first different cell of two tables; empty if there is none."""
    if list(a.columns) != list(b.columns):
        pairs = zip_longest(a.columns, b.columns, fillvalue="none")
        return next(f"columns {one} and {other}" for one, other in pairs if one != other)
    n_rows = min(len(a), len(b))
    differing = np.argwhere(a.to_numpy()[:n_rows] != b.to_numpy()[:n_rows])
    if len(differing):
        row, column = differing[0]
        values = (f"{frame.iat[row, column]!s:.{SHOWN}}" for frame in (a, b))
        return f"row {a.index[row] + 1}, column {a.columns[column]}: {' and '.join(values)}"
    return f"{len(a)} and {len(b)} rows" if len(a) != len(b) else ""


def _frame(path: Path) -> pd.DataFrame | None:
    """Return a table or record with every cell as text; None for another file."""
    if path.suffix == ".csv":
        return pd.read_csv(path, dtype=str, keep_default_na=False)
    if path.suffix not in (".json", ".jsonl"):
        return None
    text = path.read_text(encoding="utf-8")
    rows = [json.loads(line) for line in (text.splitlines() if path.suffix == ".jsonl" else [text])]
    return pd.json_normalize(rows).map(json.dumps) if all(isinstance(row, dict) for row in rows) else None


def _without_costs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the rows and columns of costs, and without the paths of its sources."""
    metric, source = (frame.get(name, pd.Series("", frame.index)) for name in ("metric", "source"))
    is_cost = metric.str.fullmatch(COSTS) | source.str.contains(rf":(?:{COSTS})(?::|$)")
    columns = [name for name in frame if name != "source" and not re.fullmatch(COSTS, str(name).rpartition(".")[2])]
    return frame.loc[~is_cost, columns]
