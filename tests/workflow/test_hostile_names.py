"""A results folder whose name is a shell script is a folder like any other."""

from __future__ import annotations

import pytest
import yaml

from .conftest import Project

NAME = "a b;touch pwned $(touch pwned2)' `touch pwned3`"


@pytest.mark.workflow
def test_a_results_folder_named_like_a_command_only_gets_results(project: Project) -> None:
    hostile = project.folder / "hostile.yaml"
    values = yaml.safe_load((project.folder / "config/smoke.yaml").read_text()) | {"results": NAME, "store": None}
    values["data"]["world"]["n_train"] = 100
    hostile.write_text(yaml.safe_dump(values))
    before = {path.name for path in project.folder.iterdir()}
    done = project.call("--cores", "1", "--configfile", str(hostile), "--until", "generate_world")
    assert done.returncode == 0, done.stdout[-3000:]
    assert {path.name for path in project.folder.iterdir()} - before == {NAME, ".snakemake"}
    assert {path.name for path in (project.folder / NAME / "world").iterdir()} >= {
        "train.run.json",
        "train2014",
    }
