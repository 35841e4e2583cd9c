"""`lever-pipe compare A B`: the differences between the settings of two runs, and between their results.

A and B are results folders. Settings come from the manifests with equal paths; each difference is listed once with the
number of jobs. Results are rows of `evidence.csv` with an interval: the accuracy of a policy as mean over shots, and
the endpoints of an agent, both as mean over seeds. An entry that one run lacks is `absent`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from lever_pipe.base import storage
from lever_pipe.base.artefacts import flat, manifests_below
from lever_pipe.base.records import Manifest
from lever_pipe.report.evidence import MEAN, read_evidence

ABSENT = "absent"
KINDS = ("config", "code", "version", "commit", "device", "input")
"""Kinds of facts, in the order of display."""
OF_ANY_JOB = ("version", "commit", "device")
DIGEST = 12  # hexadecimal digits of a content digest, enough to distinguish files
WIDEST = 36  # characters of a printed value
NAMES = ("policy.", "shard")
"""Prefixes of config keys that name the job itself."""


def main(words: Sequence[str]) -> int:
    """Print the differences between two runs and return 0."""
    parser = argparse.ArgumentParser(prog="lever-pipe compare", description=__doc__)
    parser.add_argument("a", metavar="A", type=Path, help="a results folder")
    parser.add_argument("b", metavar="B", type=Path, help="the results folder to compare with it")
    options = parser.parse_args(words[1:])
    results = differing_results(options.a, options.b)
    settings = [[f"{cell!s:.{WIDEST}}" for cell in line] for line in differing_settings(options.a, options.b)]
    of_settings = tabulate(settings, ("stage", "key", "A", "B", "jobs"), disable_numparse=True)
    of_results = tabulate(results, ("quantity", "A", "B", "B - A"), floatfmt=".6g", missingval=ABSENT)
    sys.stdout.write(f"A  {options.a}\nB  {options.b}\n")
    for what, lines, table in (("Settings", settings, of_settings), ("Results", results, of_results)):
        sys.stdout.write(f"\n{what} that differ" + (f"\n\n{table}\n" if lines else ": none\n"))
    return 0


def differing_settings(left: Path, right: Path) -> list[tuple[str, str, str, str, int]]:
    """Return the differences between manifests with equal paths below two folders, by kind and stage.

    Each has a stage, a key, both values and the number of jobs. Inputs have no digests here: every job after a first
    difference reads other content, so the digests would add nothing.
    """
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for path in manifests_below(left):
        if not (other := right / path.relative_to(left)).is_file():
            continue
        manifest = storage.read_row(path, Manifest)
        a, b = facts(manifest), facts(storage.read_row(other, Manifest))
        differing = [key for key in a | b if a.get(key) != b.get(key)]
        for key in dict.fromkeys(key.partition("[")[0] for key in differing):  # files of a list count as one input
            kind = _kind(key)
            values = ("one content", "another") if kind == "input" else (a.get(key, ABSENT), b.get(key, ABSENT))
            counts["any job" if kind in OF_ANY_JOB else manifest.stage, key, *values] += 1
    by_kind = sorted(counts, key=lambda setting: (KINDS.index(_kind(setting[1])), setting))
    return [(*setting, counts[setting]) for setting in by_kind]


def facts(manifest: Manifest) -> dict[str, str]:
    """Return the facts in a manifest: configuration, code, versions, commit, device and inputs, each as text."""
    config = {key: value for key, value in flat(manifest.config).items() if not key.startswith(NAMES)}
    return {
        **{f"config.{key}": value if isinstance(value, str) else json.dumps(value) for key, value in config.items()},
        "code": manifest.code,
        **{f"version.{name}": version for name, version in manifest.versions.items()},
        "commit": f"{manifest.commit[:DIGEST]}{' with changes' if manifest.dirty else ''}",
        "device": manifest.device,
        **{f"input.{name}": digest[:DIGEST] for name, digest in manifest.inputs.items()},
    }


def differing_results(left: Path, right: Path) -> list[tuple[str, float | None, float | None, float | None]]:
    """Return the results that differ between two runs, with the difference, in the order of their evidence."""
    a, b = _results(left), _results(right)
    # A result of only one run has no gap; it is listed too.
    gaps = {key: b[key] - a[key] for key in a.keys() & b.keys()}
    return [(key, a.get(key), b.get(key), gaps.get(key)) for key in a | b if gaps.get(key) != 0]


def _results(folder: Path) -> dict[str, float]:
    rows = (row for row in read_evidence(folder / "evidence.csv") if row.has_interval and not row.against)
    return {row.key: row.value for row in rows if row.shots in ("", MEAN) and "/seed~" not in row.subject}


def _kind(key: str) -> str:
    return key.partition(".")[0]
