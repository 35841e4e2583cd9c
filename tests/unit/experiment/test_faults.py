from __future__ import annotations

from typing import Any

import pytest

from lever_pipe.base.errors import ConfigError
from lever_pipe.base.parsing import parse_model
from lever_pipe.experiment import faults
from lever_pipe.experiment.evaluation_config import Emulate
from lever_pipe.experiment.studies import Experiment

EMULATE = Emulate(kl_betas=(0.12, 0.145, 0.15), grpo_epochs=2)


def test_every_arm_but_the_control_and_the_last_has_one_fault() -> None:
    assert faults.faults_of("none") == frozenset()
    assert [faults.faults_of(fault) for fault in faults.FAULTS] == [frozenset({fault}) for fault in faults.FAULTS]
    assert faults.faults_of("all") == frozenset({"head", "pool", "dropout", "bases"})


def test_policies_cross_arms_betas_and_epochs() -> None:
    names = [policy.name for policy in faults.policies(EMULATE)]
    assert len(names) == len(set(names)) == 6 * 3 * 2
    assert names[:3] == [f"emulation/none/beta~{run}" for run in ("0.12/epoch~1", "0.12/epoch~2", "0.145/epoch~1")]


@pytest.mark.parametrize(
    ("arm", "folder", "base"),
    [
        ("none", "preset~published/grpo", 5),
        ("head", "preset~published/grpo", 5),
        ("pool", "preset~published/grpo", 5),
        ("dropout", "emulation/dropout", 5),
        ("bases", "preset~published/grpo", 2),
        ("all", "emulation/dropout", 2),
    ],
)
def test_an_arm_evaluates_the_run_that_its_faults_name(arm: str, folder: str, base: int) -> None:
    """The base differs for one beta only; the head and the pool are faults of the evaluation, not of the run."""
    runs = {p.name: faults.checkpoint_of(EMULATE, p) for p in faults.policies_of_arm(EMULATE, arm)}
    assert runs[f"emulation/{arm}/beta~0.15/epoch~2"] == f"{folder}/base~{base}/beta~0.15/seed~0/epoch~2"
    assert runs[f"emulation/{arm}/beta~0.12/epoch~2"] == f"{folder}/base~5/beta~0.12/seed~0/epoch~2"


def test_runs_are_trained_once() -> None:
    runs = faults.trained_runs(EMULATE)
    # three betas from the base and one from the other, two epochs, right and with dropout
    assert len(runs) == len(set(runs)) == (3 + 1) * 2 * 2
    right = [run for run in runs if run.startswith("preset~")]
    assert runs[: len(right)] == right
    assert len(right) == 8


def lines(values: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as fault:
        parse_model(Experiment, values, source="config.yaml")
    return [line.strip() for line in str(fault.value).split("\n")[1:]]


def test_rules_of_the_section() -> None:
    betas = [0.12, 0.145, 0.15, 0.155, 0.18]
    assert lines({"emulate": {"kl_betas": [0.15, 0.15]}}) == [
        "emulate.kl_betas: must not repeat a value, got [0.15, 0.15]. Drop the repeated ones."
    ]
    assert lines({"emulate": {"other_kl_beta": 0.2, "other_base_rce_epoch": 5}}) == [
        f"emulate.other_kl_beta: must be one of kl_betas={betas}, got 0.2. Name one of them or add it.",
        "emulate.other_base_rce_epoch: must differ from base_rce_epoch=5, got 5. Change one of them.",
    ]
    (line,) = lines({"emulate": {"kl_betas": [0.15]}})
    assert line.startswith("emulate.kl_betas: tuple should have at least 2 items")


def test_rules_between_sections() -> None:
    presets = {"a": {}, "free": {"grpo": {"freeze_projections": False}}}
    presets["still"] = {"selector": {"dropout": 0, "attention_dropout": 0}}
    base = {"presets": presets, "arms": [{"preset": "a"}]}
    (line,) = lines(base)
    assert line.startswith("emulate.preset: must be one of ['a', 'free', 'still'], got 'published'.")
    assert "emulate: null" in line
    (line,) = lines(base | {"emulate": {"preset": "free"}})
    assert line.startswith("emulate.preset: must name a preset with grpo.freeze_projections, got 'free'.")
    (line,) = lines(base | {"emulate": {"preset": "still"}})
    assert line.startswith("emulate.preset: must name a preset with dropout, got 'still'.")
    for emulate in ({"preset": "a"}, None):
        parse_model(Experiment, base | {"emulate": emulate}, source="config.yaml")


def test_no_production_preset_can_train_with_dropout_in_the_ratio() -> None:
    (line,) = lines({"presets": {"published": {"grpo": {"dropout": True}}}})
    assert line.startswith("presets.published.grpo.dropout: unknown key")
