"""What a job finished after its main process was killed is judged by its run card, not trusted and not made again."""

from __future__ import annotations

import shutil
import time

import pytest

from .conftest import Project

RECORDS = ".snakemake/metadata"
TARGET = "results/smoke/lever/examples/train.jsonl"
SKIP = ("--config", "data={on_bad_image: skip}")
"""Another configuration of `prepare_examples` alone."""


def make(project: Project, *words: str) -> None:
    project.snakemake("--cores", "2", *words, "--", TARGET)


def planned(project: Project, *words: str) -> set[str]:
    return set(project.planned(*words, "--", TARGET))


@pytest.fixture
def made_meanwhile(project: Project, request: pytest.FixtureRequest) -> Project:
    """Return a project whose examples a job made with `skip`, unseen; before it, with `stop`, or never."""
    records, before = project.folder / RECORDS, project.folder / "before"
    make(project)
    shutil.copytree(records, before)
    time.sleep(0.01)
    make(project, *SKIP)
    shutil.rmtree(records)
    if request.param == "older record":
        shutil.copytree(before, records, copy_function=shutil.copy2)
    return project


@pytest.mark.parametrize("made_meanwhile", ["no record", "older record"], indirect=True)
def test_an_unseen_job_counts_for_its_own_configuration_only(made_meanwhile: Project) -> None:
    assert planned(made_meanwhile, *SKIP) == set()
    assert planned(made_meanwhile) == {"prepare_examples"}
    make(made_meanwhile)
    assert planned(made_meanwhile) == set()
