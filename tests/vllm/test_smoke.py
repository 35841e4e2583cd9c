"""The whole workflow in the environment of vLLM, at toy size: its tables equal the packed engine's."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).parents[2]
OF_VLLM = "lvlm={engine: vllm, vllm: {memory_share: 0.1, eager: true, image_cache_gb: 0.1}}"
TOLERANCE = 1e-5
"""For rewards that are probabilities, which two engines sum in another order, and for results trained on them."""


def ran(results: Path, *settings: str) -> Path:
    """Run the workflow in this environment; return the folder of its results."""
    own = (f"results={results}", f"store={{folder: {results}-store}}", *settings)
    words = ("--cores", "2", "--configfile", "config/smoke.yaml", "--config", *own)
    subprocess.run([Path(sys.executable).with_name("snakemake"), *words], cwd=ROOT, check=True, capture_output=True)
    return results


def test_tables_are_equal(tmp_path: Path) -> None:
    ours, theirs = ran(tmp_path / "vllm", OF_VLLM), ran(tmp_path / "packed", "lvlm={engine: qwen2_5_vl}")
    names = sorted(path.name for path in (theirs / "report/tables").glob("*.csv"))
    assert len(names) > 20
    for name in names:
        assert (ours / "report/tables" / name).read_bytes() == (theirs / "report/tables" / name).read_bytes(), name
    for name in ("scores.csv", "intervals.csv"):
        assert (ours / "lever/tables" / name).read_bytes() == (theirs / "lever/tables" / name).read_bytes()
    with (ours / "lever/tables/training.csv").open() as one, (theirs / "lever/tables/training.csv").open() as other:
        for mine, its in zip(csv.DictReader(one), csv.DictReader(other), strict=True):
            assert float(mine.pop("value")) == pytest.approx(float(its.pop("value")), rel=TOLERANCE, abs=TOLERANCE)
            assert mine == its
