from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
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


def test_the_number_of_tasks_is_the_configurations(tmp_path: Path) -> None:
    convert(tmp_path, RECORDED, verl={"n_val": 50})
    assert {row.n_tasks for row in storage.read_rows(tmp_path / "evaluations", EvaluationRow)} == {50}


def test_a_damaged_log_writes_nothing(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_text("<html><body>404</body></html>\n")
    with pytest.raises(RecordError, match="found no line of a step"):
        convert(tmp_path, log)
    assert list(tmp_path.iterdir()) == [log]
