"""One rule = one stage = one module = one name, with the same file names."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
from snakemake.io import strip_wildcard_constraints
from snakemake.iocontainers import Namedlist

from lever_pipe.__main__ import path_parameters, stage_function
from lever_pipe.base.parsing import available
from lever_pipe.experiment.run_card import EXTERNAL, MADE
from lever_pipe.experiment.stage_configs import IDENTITIES, Runtime

from .workflow_model import rules

STAGES = available("stages")


def test_every_stage_has_a_rule_and_every_rule_a_stage() -> None:
    assert set(rules()) - {"all", "launch", "stage"} == set(STAGES) == set(IDENTITIES)


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
    assert hints["config"] is IDENTITIES[stage].config
    assert hints["runtime"] is Runtime
    for name in path_parameters(function):
        assert hints[name] in (Path, tuple[Path, ...]), name
        assert parameters[name].default is inspect.Parameter.empty, f"{name} must have no default"


@pytest.mark.parametrize("stage", STAGES)
def test_a_rule_has_one_identity_param_and_calls_its_stage(stage: str) -> None:
    rule = rules()[stage]
    assert list(rule.params.keys()) == ["spec", "call"]
    assert rule.shellcmd.startswith("python -m lever_pipe {params.call:q} --spec {params.spec:q} ")
    several = {"resources": SimpleNamespace(processes=2, launcher="")} if calls_several(rule) else {}
    words = rule.params.call({"arm": "a", "seed": "0"}, Namedlist(), Namedlist(fromdict={"card": "x"}), **several)
    assert words[:2] == [stage, "card=x"]


@pytest.mark.parametrize("stage", STAGES)
def test_log_and_benchmark_lie_beside_the_card(stage: str) -> None:
    rule = rules()[stage]
    beside = strip_wildcard_constraints(rule.output.card).removesuffix("run.json")
    assert list(map(str, rule.log)) == [f"{beside}log.txt"]
    assert str(rule.benchmark) == f"{beside}benchmark.jsonl"


def test_those_stages_alone_are_shared_by_processes_that_can_be() -> None:
    shared = {stage for stage in STAGES if calls_several(rules()[stage])}
    assert shared == {"generate_rl_data", "answer_prompts", "train_agent"}


def calls_several(rule: Any) -> bool:
    return "resources" in inspect.signature(rule.params.call).parameters


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_chooses_no_path_and_reads_no_environment(stage: str) -> None:
    source = Path(inspect.getfile(stage_function(stage))).read_text()
    for banned in ("os.environ", "getcwd", ".glob(", "config.yaml"):
        assert banned not in source, banned
