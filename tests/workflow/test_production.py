"""The production experiment plans its whole workflow before any model or image is there."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import yaml
from snakemake.utils import update_config

from lever_pipe.experiment.arms import Preset
from lever_pipe.experiment.studies import Experiment, parse_experiment
from tests.sampling import ROOT

from .conftest import JOB_COUNT, Project

CONFIG = ("--configfile", "config/okvqa_qwen2_5_vl_3b.yaml")
# Six betas x 3 epochs x 3 seeds, and the epochs 4-50 of two betas of one seed.
GRPO, LONG_ONLY, RCE = 6 * 3 * 3, 47 * 2, 5 * 3
ON_POLICY, DISTIL = (7 + 1) * 3, 3  # one seed: seven betas and REINFORCE
RAW = (
    "OpenEnded_mscoco_train2014_questions.json",
    "mscoco_train2014_annotations.json",
    "OpenEnded_mscoco_val2014_questions.json",
    "mscoco_val2014_annotations.json",
)


def test_the_production_experiment_is_the_published_one() -> None:
    """On top of config.yaml, it replaces every value of the embedded world."""
    values = yaml.safe_load((ROOT / "config.yaml").read_text())
    update_config(values, yaml.safe_load((ROOT / CONFIG[1]).read_text()))
    merged, published = parse_experiment(values), Experiment()
    assert merged.rl_data == published.rl_data.model_copy(update={"n_shards": merged.rl_data.n_shards})
    assert merged.presets["published"] == Preset()
    assert [arm.preset for arm in merged.arms] == ["published"]
    for section in ("pools", "lvlm", "encoder", "evaluation", "baselines"):
        assert getattr(merged, section) == getattr(published, section), section
    assert merged.data == published.data.model_copy(update={"world": merged.data.world})


PLAN = ("--dry-run", "--quiet", "host", *CONFIG)


def dry_run(project: Project) -> subprocess.CompletedProcess[str]:
    return project.call(*PLAN)


def test_missing_raw_files_are_named(untouched: Project) -> None:
    """All that a run lacks, at once, and no text of Snakemake about rules."""
    done = dry_run(untouched)
    assert done.returncode != 0
    assert all(f"data/okvqa/{name}" in done.stdout for name in RAW)
    assert "encoder.model models/clip-vit-base-patch32: expected a whole model folder" in done.stdout
    assert "docs/production.md" in done.stdout
    assert "MissingInputException" not in done.stdout
    assert "affected files" not in done.stdout


def test_a_plan_assumes_raw_files_and_lists_them(untouched: Project) -> None:
    """The jobs and prompts of a plan with these files."""
    found = json.loads(untouched.tool("plan", "--json", *CONFIG))
    jobs = {rule["rule"]: rule["jobs"] for rule in found["rules"]}
    assert (jobs["prepare_examples"], jobs["train_rce_epoch"], jobs["answer_prompts"]) == (2, RCE, 5)
    prompts = {work["rule"]: work["prompts"] for work in found["lvlm"]["at_most"]}
    assert prompts["generate_rl_data"] == 800 * (5 + 2 * 2 + 5 + 1)  # beams, samples, retrieval, random
    assert all(any(name in text for text in found["missing"]) for name in RAW)


def test_other_files_that_are_missing_are_named_by_snakemake(with_raw_files: Project) -> None:
    """A plan assumes raw files only."""
    words = ["--config", "presets={published: {start_from: absent/selector.safetensors}}"]
    done = with_raw_files.call(*PLAN, *words)
    assert done.returncode != 0
    assert "absent/selector.safetensors" in done.stdout


@pytest.fixture
def with_raw_files(untouched: Project) -> Iterator[Project]:
    folder = untouched.folder / "data/okvqa"
    folder.mkdir(parents=True)
    for name in RAW:
        (folder / name).write_text("{}")
    yield untouched
    shutil.rmtree(untouched.folder / "data")


def test_the_whole_workflow_is_planned_once_the_raw_files_are_named(with_raw_files: Project) -> None:
    done = dry_run(with_raw_files)
    assert done.returncode == 0, done.stdout[-3000:]
    planned = {rule: int(n) for rule, n in JOB_COUNT.findall(done.stdout.split("\n\n")[0])}
    assert planned["train_rce_epoch"] == RCE
    assert planned["train_grpo_epoch"] == GRPO + LONG_ONLY
    assert planned["generate_rl_data"] == 8
    assert planned["answer_prompts"] == 5  # three seeds, the baselines and the emulation
    assert (planned["train_on_policy_epoch"], planned["train_distil_epoch"]) == (ON_POLICY, DISTIL)
    assert planned["select_demonstrations"] == RCE + GRPO + ON_POLICY + DISTIL
    assert planned["score_answers"] == 4  # `score_emulation` scores the fifth
    assert "generate_world" not in planned


def test_a_malformed_configuration_stops_before_any_job(untouched: Project) -> None:
    done = untouched.call("--dry-run", "--config", "pools={size: 0}", "lvml={}")
    assert done.returncode != 0
    assert "pools.size" in done.stdout
    assert "lvml:" in done.stdout
    assert "'lvlm'" in done.stdout  # the nearest key
    assert "Traceback" not in done.stdout
