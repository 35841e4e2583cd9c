from __future__ import annotations

from pathlib import Path

import pytest

from lever_pipe.base.errors import ConfigError
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.intention import RenderVerlConfig
from lever_pipe.experiment.studies import Experiment
from lever_pipe.stages.verl import render_verl


def config(arm: str = "bundle", seed: str = "1", **changed: object) -> RenderVerlConfig:
    """Return what the workflow gives the stage for the default configuration."""
    planned = config_of(Experiment(intention=changed), "render_verl", {"arm": arm, "seed": seed})
    assert isinstance(planned, RenderVerlConfig)
    return planned


def test_a_second_rendering_gives_the_same_bytes_and_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    launch = tmp_path / "launch"
    render_verl(launch=launch, config=config())
    first = {path.name: path.read_bytes() for path in launch.iterdir()}
    (launch / "stray").write_text("")
    render_verl(launch=launch, config=config())
    assert {path.name: path.read_bytes() for path in launch.iterdir()} == first


def test_a_refused_configuration_writes_nothing(tmp_path: Path) -> None:
    refused = config(grpo={"trajectory_score": "sum"})
    with pytest.raises(ConfigError, match="must be mean or r2g with engine verl"):
        render_verl(launch=tmp_path / "launch", config=refused)
    assert list(tmp_path.iterdir()) == []
