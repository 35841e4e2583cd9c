"""One rule = one stage = one function = one name, with the same file names."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_type_hints

import pytest
from snakemake.iocontainers import Namedlist, Wildcards

from lever_pipe.__main__ import stage_function
from lever_pipe.base.provenance import stages
from lever_pipe.experiment.identities import model_of
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.stage_files import Role, declared

from .workflow_model import rules

STAGES = sorted(stages())


def test_every_stage_has_a_rule_and_every_rule_a_stage() -> None:
    assert set(rules()) - {"all", "launch"} == set(STAGES)


@pytest.mark.parametrize("stage", STAGES)
def test_a_rule_names_the_files_of_its_stage_and_no_others(stage: str) -> None:
    rule, files = rules()[stage], declared(stage_function(stage))
    by_role = {role: {name for name, of in files.items() if of.role is role} for role in Role}
    assert set(rule.input.keys()) == by_role[Role.INPUT]
    assert set(rule.output.keys()) == by_role[Role.OUTPUT] | {"manifest"}
    # The name of a file in the manifest and in the store marks members of a list.
    named = [*rule.input.items(), *((name, path) for name, path in rule.output.items() if name != "manifest")]
    are_lists = {name: not isinstance(path, str) for name, path in named if not callable(path)}
    assert are_lists == {name: files[name].several for name in are_lists}


@pytest.mark.parametrize("stage", STAGES)
def test_signature_law(stage: str) -> None:
    function = stage_function(stage)
    parameters = inspect.signature(function).parameters
    hints = get_type_hints(function)
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values())
    assert list(parameters) in ([*declared(function), "config"], [*declared(function), "config", "runtime"])
    assert hints["config"] is model_of(stage)
    assert hints.get("runtime", Runtime) is Runtime
    for name in declared(function):
        assert parameters[name].default is inspect.Parameter.empty, f"{name} must have no default"


@pytest.mark.parametrize("stage", STAGES)
def test_a_rule_calls_its_stage_with_its_files(stage: str) -> None:
    rule = rules()[stage]
    assert list(rule.params.keys())[:2] == ["spec", "files"]
    assert rule.shellcmd.startswith(f"python -m lever_pipe {stage} {{params.files:q}} ")
    wildcards = Wildcards(fromdict={"arm": "a", "seed": "0", "split": "train"})
    assert rule.params.files(wildcards, Namedlist(), Namedlist(fromdict={"manifest": "x"}))[0] == "manifest=x"


@pytest.mark.parametrize("stage", STAGES)
def test_the_log_lies_next_to_the_manifest(stage: str) -> None:
    """Its wildcards have the bounds of the manifest's: else Snakemake searches all rules for the file's producer."""
    rule = rules()[stage]
    folder = str(rule.output.manifest).removesuffix("run.json")
    assert list(map(str, rule.log)) == [f"{folder}log.txt"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_chooses_no_path_and_reads_no_environment(stage: str) -> None:
    source = Path(inspect.getfile(stage_function(stage))).read_text()
    for banned in ("os.environ", "getcwd", ".glob(", "config.yaml"):
        assert banned not in source, banned
