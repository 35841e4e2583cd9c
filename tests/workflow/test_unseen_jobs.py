"""A job that finished after its main process was killed is checked by its manifest, not trusted and not rerun."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from .conftest import Project, copy_project
from .test_contents_decide import run

RECORDS = ".snakemake/metadata"
TARGET = "results/smoke/lever/examples/train.jsonl"
SKIP = ("--config", "data={on_bad_image: skip}")
"""Another configuration of `prepare_examples` alone."""


def make(project: Project, *words: str) -> None:
    project.snakemake("--cores", "2", *words, "--", TARGET)


def test_an_unseen_job_counts_for_its_own_configuration_only(tmp_path: Path) -> None:
    """If Snakemake has the record of a job from before, it plans by that record, and the job is skipped."""
    project = copy_project(tmp_path, store=False)
    records, before = project.folder / RECORDS, project.folder / "before"
    make(project)
    shutil.copytree(records, before)
    time.sleep(0.01)
    make(project, *SKIP)
    shutil.rmtree(records)
    shutil.copytree(before, records, copy_function=shutil.copy2)
    assert run(project, *SKIP, "--", TARGET) == {}
    assert set(project.planned("--", TARGET)) == {"prepare_examples"}
