"""One rule = one stage = one module = one name, with the same file names."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_type_hints

import pytest

from lever_pipe.__main__ import path_parameters, stage_function
from lever_pipe.base.parsing import available
from lever_pipe.base.sections import Section
from lever_pipe.experiment.run_card import EXTERNAL, MADE
from lever_pipe.experiment.stage_configs import Runtime

from .workflow_model import rules

STAGES = available("stages")


def test_every_stage_has_a_rule_and_every_rule_a_stage() -> None:
    assert set(rules()) - {"all", "launch"} == set(STAGES)


@pytest.mark.parametrize("stage", STAGES)
def test_file_names_of_rule_and_signature_agree(stage: str) -> None:
    rule = rules()[stage]
    declared = set(rule.input.keys()) | set(rule.output.keys())
    wanted = set(path_parameters(stage_function(stage)))
    assert declared <= wanted, declared - wanted
    assert wanted - declared <= EXTERNAL, wanted - declared - EXTERNAL


@pytest.mark.parametrize("stage", STAGES)
def test_one_file_is_one_and_a_list_a_list(stage: str) -> None:
    """The name of an output in the run card and in the store says whether it is a member of a list."""
    several = path_parameters(stage_function(stage))
    for name, value in rules()[stage].output.items():
        assert isinstance(value, str) is not several[name], name


def test_an_external_name_is_an_output_of_those_stages_alone_that_say_so() -> None:
    made = {stage: EXTERNAL & set(rules()[stage].output.keys()) for stage in STAGES}
    assert {stage: names for stage, names in made.items() if names} == MADE


@pytest.mark.parametrize("stage", STAGES)
def test_signature_law(stage: str) -> None:
    function = stage_function(stage)
    parameters = inspect.signature(function).parameters
    hints = get_type_hints(function)
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values())
    assert list(parameters)[-2:] == ["config", "runtime"]
    assert issubclass(hints["config"], Section)
    assert hints["runtime"] is Runtime
    for name in path_parameters(function):
        assert hints[name] in (Path, tuple[Path, ...]), name
        assert parameters[name].default is inspect.Parameter.empty, f"{name} must have no default"


@pytest.mark.parametrize("stage", STAGES)
def test_a_rule_has_one_identity_param_and_calls_its_stage(stage: str) -> None:
    rule = rules()[stage]
    assert set(rule.params.keys()) <= {"spec", "files", "ledger"}
    assert f"python -m lever_pipe {stage} " in rule.shellcmd
    assert rule.log, "a rule writes a log"
    assert rule.benchmark, "a rule writes a benchmark"
    assert "card" in set(rule.output.keys())


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_chooses_no_path_and_reads_no_environment(stage: str) -> None:
    source = Path(inspect.getfile(stage_function(stage))).read_text()
    for banned in ("os.environ", "getcwd", ".glob(", "config.yaml"):
        assert banned not in source, banned
