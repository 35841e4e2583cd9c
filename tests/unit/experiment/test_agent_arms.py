"""The arms of study `intention`: their names, their files, and values that they take from other sections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import shipped

from lever_pipe.experiment.agent_training import AgentArm
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.plans import agents, report
from lever_pipe.experiment.studies import Experiment, parse_experiment

DEFAULT = shipped()


def experiment(**changes: Any) -> Experiment:
    """Return the default experiment with changed sections of study `intention`."""
    intention = DEFAULT["intention"]
    for key, value in changes.items():
        old = intention.get(key)
        intention = {**intention, key: {**old, **value} if isinstance(value, dict) and old else value}
    return parse_experiment({**DEFAULT, "intention": intention})


def arms(**of: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**arm, **of.get(arm["name"], {})} for arm in DEFAULT["intention"]["arms"]]


def test_a_tiny_agent_that_is_taught_first_is_no_start_that_the_report_names(tmp_path: Path) -> None:
    for taught in (None, 4):
        model = {"folder": str(tmp_path), "codec": "word"}
        found = experiment(model=model, warm_start={"folder_micro_batch": taught})
        displayed = report.shown_agents(found)
        assert displayed is not None
        assert bool(displayed.start) is (taught is None)


def test_what_an_arm_leaves_out_stands_in_no_identity() -> None:
    """The keys of an arm without schedules of weights and without a stop, as jobs were identified before these."""
    keys = {"name", "kl", "entropy", "schedule", "trajectory_score", "learning_rate", "seeds"}
    found = AgentArm(name="plain", kl_schedule={"kind": "constant"}, stop=None)
    assert found.model_dump(mode="json").keys() == keys
    assert found.model_dump(mode="json")["schedule"].keys() == {"kind", "warmup_steps", "minimum"}
    given = {"kl": 0.1, "kl_schedule": {"kind": "adaptive", "target": 0.05, "horizon": 640}, "stop": {"patience": 2}}
    other = AgentArm(name="other", **given)
    assert other.model_dump().keys() == keys | {"kl_schedule", "stop"}
    assert AgentArm.model_validate_json(other.model_dump_json()) == other


def test_the_dials_of_an_arm_are_told_and_its_clip_bounds_are_those_of_its_run() -> None:
    dials = {"kl_form": "k2_loss", "reference_reset": 3, "ratio": "sequence", "advantages": "centred"}
    clip = {"clip_high": 0.28}
    found = experiment(arms=arms(bundle=dials | clip))
    run = config_of(found, "train_agent", {"arm": "bundle", "seed": "0"})
    assert run.arm.model_dump(include={*dials}) == dials
    assert (run.grpo.clip_low, run.grpo.clip_high) == (0.2, 0.28)
    plain = config_of(found, "train_agent", {"arm": "kl_only", "seed": "0"})
    assert not plain.arm.model_dump().keys() & {*dials, *clip, "clip_low"}
    assert plain.grpo.clip_high == 0.2


def test_an_arm_keeps_what_it_sets_itself() -> None:
    own = arms(kl_only={"trajectory_score": "mean"})
    found = experiment(arms=own, grpo={"trajectory_score": "r2g"})
    for arm, score in (("kl_only", "mean"), ("baseline", "r2g")):
        assert config_of(found, "train_agent", {"arm": arm, "seed": "0"}).arm.trajectory_score == score


@pytest.mark.parametrize(("ending", "n_details"), [("json", 0), ("parquet", 2)])
def test_details_are_read_where_a_file_only_names_its_tasks(ending: str, n_details: int) -> None:
    written = {"train": f"a.{ending}", "val": "b.json", "test": "c.json"}
    changes = {"tasks": {"source": "intentiongym", "files": written}, "simulator": {"kind": "openai"}}
    files = agents.raw_files(experiment(**changes).intention)
    assert [len(paths) for paths in files.values()] == [1, 1, 1, n_details]


@pytest.mark.parametrize(
    ("arms", "chosen"),
    [
        ([{"name": "baseline"}, {"name": "bundle"}, {"name": "a", "kl": 1}], "bundle"),
        ([{"name": "baseline"}, {"name": "b"}, {"name": "a", "kl": 0.1}], "a"),
        ([{"name": "baseline"}, {"name": "b"}, {"name": "a"}], "b"),
        ([{"name": "baseline"}], "baseline"),
    ],
)
def test_the_documents_arm_is_one_of_the_arms_where_none_is_named(arms: list[dict[str, Any]], chosen: str) -> None:
    values = shipped()
    values["intention"] = values["intention"] | {"arms": arms}
    assert parse_experiment(values).intention.document_arm == chosen
