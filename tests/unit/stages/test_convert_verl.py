from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lever_pipe.base import storage
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.intention import ConvertVerlConfig, Verl
from lever_pipe.experiment.studies import Experiment
from lever_pipe.intention.records import DoneRow, EpisodeRow, EvaluationRow, StepRow
from lever_pipe.stages.verl import convert_verl

RECORDED = Path(__file__).parents[1] / "intention" / "verl" / "console.log"


def convert(folder: Path, log: Path, **changed: object) -> DoneRow:
    """Run the stage as the workflow does, for a configuration of six steps."""
    experiment = Experiment(intention={"grpo": {"steps": 6}, **changed})
    config = config_of(experiment, "convert_verl", {"arm": "bundle", "seed": "1"})
    assert isinstance(config, ConvertVerlConfig)
    names = ("metrics", "evaluations", "episodes", "done")
    return convert_verl(log=log, **{name: folder / name for name in names}, config=config)


def test_a_log_becomes_a_run_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        done = convert(tmp_path, RECORDED)
    assert [row.step for row in storage.read_rows(tmp_path / "metrics", StepRow)] == [1, 2, 3, 4, 5]
    rewards = {row.step: row.values["reward"] for row in storage.read_rows(tmp_path / "evaluations", EvaluationRow)}
    assert rewards == {0: 1.712, 3: 1.820}
    assert storage.read_rows(tmp_path / "episodes", EpisodeRow) == []
    assert storage.read_row(tmp_path / "done", DoneRow) == done
    assert (done.arm, done.seed, done.reason, done.version) == ("bundle", 1, "log ended", Verl().version)
    messages = [record.message for record in caplog.records]
    assert "log ended: 5 of 6 planned steps" in messages
