from __future__ import annotations

from typing import Any

import pytest

from lever_pipe.base.errors import ConfigError
from lever_pipe.base.parsing import parse_model
from lever_pipe.experiment.emulation import EMULATED_ARMS, Emulate
from lever_pipe.experiment.studies import Experiment

EMULATE = Emulate(kl_betas=(0.12, 0.145, 0.15), grpo_epochs=2)


def test_policies_cross_arms_betas_and_epochs() -> None:
    names = [policy.name for policy in EMULATE.policies()]
    assert len(names) == len(set(names)) == 3 * 3 * 2
    assert names[:3] == [f"emulation/none/beta~{run}" for run in ("0.12/epoch~1", "0.12/epoch~2", "0.145/epoch~1")]


@pytest.mark.parametrize("arm", EMULATED_ARMS)
def test_every_arm_evaluates_the_right_run(arm: str) -> None:
    """Head and pool are bugs of the evaluation, not of the run."""
    runs = {p.name: EMULATE.checkpoint_of(p) for p in EMULATE.policies(arm)}
    assert runs[f"emulation/{arm}/beta~0.15/epoch~2"] == "preset~published/grpo/base~5/beta~0.15/seed~0/epoch~2"


def lines(values: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as problem:
        parse_model(Experiment, values, source="config.yaml")
    return [line.strip() for line in str(problem.value).split("\n")[1:]]


def test_rules_of_the_section() -> None:
    assert lines({"emulate": {"kl_betas": [0.15, 0.15]}}) == [
        "emulate.kl_betas: must not repeat a value, got [0.15, 0.15]. Drop the repeated ones."
    ]
    (line,) = lines({"emulate": {"kl_betas": [0.15]}})
    assert line.startswith("emulate.kl_betas: must have at least 2 entries")


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
