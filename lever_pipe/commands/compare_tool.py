"""`lever-pipe compare A B`: whether two runs agree bit for bit, and the differences in their settings and results.

A and B are results folders. The first line names the first difference in the order of the workflow; for a table its row
and column. Settings come from the manifests with equal paths; each difference is listed once with the number of jobs.
Results are rows of `evidence.csv` with an interval: the accuracy of a policy as mean over shots, and the endpoints of
an agent, both as mean over seeds. An entry that one run lacks is `absent`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pandas as pd
from tabulate import tabulate

from lever_pipe.base import storage
from lever_pipe.base.artefacts import manifests_below
from lever_pipe.base.records import Manifest
from lever_pipe.commands.agreement import agreement
from lever_pipe.report.evidence import MEAN, read_evidence

ABSENT = "absent"
KINDS = ("config", "code", "version", "commit", "device", "input")
"""Kinds of facts, in the order of display."""
OF_ANY_JOB = ("version", "commit", "device")
DIGEST = 12  # hexadecimal digits of a content digest, enough to distinguish files
WIDEST = 36  # characters of a printed value
NAMES = ("policy.", "shard")
"""Prefixes of config keys that name the job itself."""
SETTING = ["kind", "stage", "key", "A", "B"]


@click.command(help=__doc__)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
def command(a: Path, b: Path) -> None:
    """Print whether two runs agree, and their differences."""
    results = differing_results(a, b)
    settings = differing_settings(a, b).map(lambda cell: f"{cell!s:.{WIDEST}}")
    of_settings = tabulate(settings, ("stage", "key", "A", "B", "jobs"), showindex=False, disable_numparse=True)
    of_results = tabulate(results, ("quantity", "A", "B", "B - A"), floatfmt=".6g", missingval=ABSENT)
    sys.stdout.write(f"{agreement(a, b)}\nA  {a}\nB  {b}\n")
    for what, lines, table in (("Settings", settings, of_settings), ("Results", results, of_results)):
        sys.stdout.write(f"\n{what} that differ" + (f"\n\n{table}\n" if len(lines) else ": none\n"))


def differing_settings(left: Path, right: Path) -> pd.DataFrame:
    """Return the differences between manifests with equal paths below two folders, by kind and stage.

    Each has a stage, a key, both values and the number of jobs. Inputs have no digests here: every job after a first
    difference reads other content, so the digests would add nothing.
    """
    a, b = _settings(left), _settings(right)
    shared = a[a.manifest.isin(b.manifest)], b[b.manifest.isin(a.manifest)]
    both = shared[0].merge(shared[1], "outer", on=["manifest", "stage", "key"]).fillna(ABSENT)
    both = both[both.value_x != both.value_y].rename(columns={"value_x": "A", "value_y": "B"})
    kind = both.key.str.split(".").str[0]
    both = both.assign(kind=pd.Categorical(kind, KINDS), key=both.key.str.split("[").str[0])
    both.loc[kind.isin(OF_ANY_JOB), "stage"] = "any job"
    both.loc[kind == "input", ["A", "B"]] = "one content", "another"
    both = both.drop_duplicates(["manifest", *SETTING])  # files of a list count as one input
    return both.groupby(SETTING, observed=True).size().reset_index(name="jobs").drop(columns="kind")


def _settings(results: Path) -> pd.DataFrame:
    """Return the facts of each manifest below a folder, a row each."""
    manifests = {str(path.relative_to(results)): storage.read_row(path, Manifest) for path in manifests_below(results)}
    rows = [(name, of.stage, *fact) for name, of in manifests.items() for fact in _facts(of)]
    return pd.DataFrame(rows, columns=["manifest", "stage", "key", "value"])


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the facts in a manifest: configuration, code, versions, commit, device and inputs, each as text."""
    for key, value in pd.json_normalize(manifest.config).to_dict("records")[0].items():
        if not str(key).startswith(NAMES):
            yield f"config.{key}", value if isinstance(value, str) else json.dumps(value)
    yield "code", manifest.code
    yield from ((f"version.{name}", version) for name, version in manifest.versions.items())
    yield "commit", f"{manifest.commit[:DIGEST]}{' with changes' if manifest.dirty else ''}"
    yield "device", manifest.device
    yield from ((f"input.{name}", digest[:DIGEST]) for name, digest in manifest.inputs.items())


def differing_results(left: Path, right: Path) -> pd.DataFrame:
    """Return the results that differ between two runs, by key, with the difference, in the order of their evidence."""
    both = pd.concat([_results(left), _results(right)], axis=1, keys=["A", "B"])
    both["B - A"] = both.B - both.A  # a result of only one run has no difference; it is listed too
    differing = both[both["B - A"] != 0]
    return differing.astype(object).where(differing.notna(), None)


def _results(folder: Path) -> pd.Series[float]:
    rows = (row for row in read_evidence(folder / "evidence.csv") if row.has_interval and not row.against)
    of_means = (row for row in rows if row.shots in ("", MEAN) and "/seed~" not in row.subject)
    return pd.Series({row.key: row.value for row in of_means}, dtype=float)
