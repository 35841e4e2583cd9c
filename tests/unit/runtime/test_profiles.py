"""Profiles are read by the programs that they are written for, and name rules and settings that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lever_pipe.runtime import sizing

ROOT = Path(__file__).parents[3]
PROFILES = {path.parent.name: path for path in (ROOT / "profiles").glob("*/*.yaml")}


def profile(name: str) -> dict[str, Any]:
    return yaml.safe_load(PROFILES[name].read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["default", "slurm", "node"])
def test_a_profile_is_read_as_snakemake_reads_it(name: str) -> None:
    from snakemake.cli import get_argument_parser
    from snakemake.profiles import ProfileConfigFileParser

    with PROFILES[name].open(encoding="utf-8") as stream:
        keys = ProfileConfigFileParser().parse(stream).keys()
    options = {word for action in get_argument_parser()._actions for word in action.option_strings}
    assert {f"--{key}" for key in keys} <= options


def test_the_slurm_profile_keeps_the_rules_that_prevent_hangs_and_doubles() -> None:
    slurm = profile("slurm")
    assert slurm["lever-slurm-status-command"] == "squeue"
    assert slurm["lever-slurm-no-requeue"] is True
    assert "lever-slurm-requeue" not in slurm
    assert not [key for key in slurm if key.startswith("lever-slurm-array")]
    assert slurm["retries"] >= 1
    rules = "\n".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    assert not re.search(
        r"^\s*(retries|group):", rules, flags=re.MULTILINE
    )  # retries would multiply, groups lose epochs


def test_the_commented_part_of_the_slurm_profile_is_valid_and_names_rules() -> None:
    text = PROFILES["slurm"].read_text(encoding="utf-8")
    commented = text[text.index("# set-resources:") :]
    wishes = yaml.safe_load(re.sub(r"^# ?", "", commented, flags=re.MULTILINE))["set-resources"]
    assert wishes.keys() == {rule for rule, need in sizing.PRODUCTION_MODEL.items() if need.gpus} - {
        "answer_controls"
    }  # of the embedded world
