"""The promise: edit X and exactly these rules rerun.

One file, because all tests share one smoke run and a worker takes whole files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from .conftest import Project, begin
from .counts import (
    AGENT_REPORT,
    AGENTS_AND_BELOW,
    ARMS,
    BASELINES,
    BELOW_RL_DATA,
    DISTIL_EPOCHS,
    EXTRA_OBJECTIVES,
    FROM_EVIDENCE,
    GRPO_AND_BELOW,
    GRPO_EPOCHS,
    K3_AND_BELOW,
    LONG_ONLY,
    ON_POLICY_EPOCHS,
    RCE_EPOCHS,
    REPORT,
    SCORED,
    SEED_EVALUATED,
    SFT_EPOCHS,
    TRAINED_AGENTS,
    WITHOUT_CONTROLS,
)
from .test_contents_decide import LONG_AGO, put_back

pytestmark = pytest.mark.workflow

SMOKE, LOSSES = "config/smoke.yaml", "lever_pipe/losses"
ON_POLICY_LOSS, DISTIL_LOSS = "mean_of_group_means(divergences_BG, valid_BG)", "torch.special.entr(shares_BK)"
EMULATE = "emulate: {kl_betas: [0.12, 0.145, 0.15], grpo_epochs: 1, base_rce_epoch: 2}"
OFFLINE_LOSS = "mean_of_group_means(k3(log_ratio_BG), valid_BG)"
RATE_SWEEP = "sweeps: [{name: rate, arm: world, over: {rce.learning_rate: [1.0e-4]}}]\n"
KL_SWEEP = "  sweeps: [{name: kl, arm: baseline, over: {kl: [0, 1]}}]\n"
AFTER_ANSWERS = {"answer_prompts": 1, "score_answers": 1, **WITHOUT_CONTROLS}
ANSWERED = AFTER_ANSWERS | REPORT
STAGE_MORE = (
    "from lever_pipe.base.sections import Counts, Section\n\n\n"
    'class FurtherConfig(Section):\n    """Configuration of a stage that is added."""\n\n    shots: Counts\n'
)
TRAIN_ANNOTATIONS = "mscoco_train2014_annotations.json"
FIRST_RCE = "lever/preset~world/rce/seed~0/epoch~1/selector.safetensors"


def test_a_finished_run_has_nothing_to_do(smoke: Project) -> None:
    assert "Nothing to be done" in smoke.snakemake("--cores", "1")


ARM_AND_SEED = ("{name: baseline}", "{name: baseline, seeds: [0, 1]}\n    - {name: other}")
COEFFICIENT = ("{name: bundle, kl: 0.01,", "{name: bundle, kl: 0.02,")
EDITS: dict[str, tuple[tuple[tuple[str, ...], ...], dict[str, int]]] = {
    "an on-policy beta more trains it only, an arm and a seed of agents more keep the finished runs": (
        ((SMOKE, "2, kl_betas: [0, 1]", "2, kl_betas: [0, 1, 2]"), (SMOKE, *ARM_AND_SEED)),
        {"train_on_policy_epoch": 2, "select_demonstrations": 2, **AFTER_ANSWERS, **TRAINED_AGENTS},
    ),
    "a beta fewer scores its batch alone, the warm start comes before every arm": (
        (
            (SMOKE, "kl_betas: [0, 0.15]", "kl_betas: [0.15]"),
            (SMOKE, "warm_start: {steps: 40, batch: 8}", "warm_start: {steps: 41, batch: 8}"),
        ),
        {**ANSWERED, **AGENTS_AND_BELOW, "warm_start_agent": 1},
    ),
    "an on-policy loss retrains its own mode, the agents' surrogate no selector": (
        (
            (f"{LOSSES}/on_policy.py", ON_POLICY_LOSS, f"0 * {ON_POLICY_LOSS}"),
            (f"{LOSSES}/tokens.py", ".clamp(max=LARGEST_PENALTY)", ".clamp(max=1.0)"),
        ),
        {
            "train_on_policy_epoch": ON_POLICY_EPOCHS,
            "select_demonstrations": ON_POLICY_EPOCHS,
            **ANSWERED,
            **TRAINED_AGENTS,
        },
    ),
    "a loss of distillation retrains its own mode, an arm's KL coefficient that arm": (
        ((f"{LOSSES}/distillation.py", DISTIL_LOSS, f"0 * {DISTIL_LOSS}"), (SMOKE, *COEFFICIENT)),
        {
            "train_distil_epoch": DISTIL_EPOCHS,
            "select_demonstrations": DISTIL_EPOCHS,
            **ANSWERED,
            **AGENT_REPORT,
            "train_agent": 1,
            "evaluate_agent": 1,
        },
    ),
    "the head seed of the emulation stays within it": (
        ((SMOKE, "emulate: {", "emulate: {head_seed: 7, "),),
        {"emulate_selections": 1, "answer_prompts": 1, "score_emulation": 1, **FROM_EVIDENCE},  # the arm `head`
    ),
    "without emulation nothing is computed but the report": (((SMOKE, EMULATE, "emulate: null"),), FROM_EVIDENCE),
    "a beta more and other cells score all": (
        (
            (SMOKE, "kl_betas: [0, 0.15]", "kl_betas: [0, 0.15, 0.3]"),
            (SMOKE, "n_random_subsets: 3", "n_random_subsets: 4"),
        ),
        {"train_grpo_epoch": 2, "select_demonstrations": 2, **AFTER_ANSWERS, "score_answers": SCORED},
    ),
    "a sweep runs the jobs of its cell: the runs of a whole arm of selectors, and one of the agent": (
        (
            (SMOKE, "baselines: {", f"{RATE_SWEEP}baselines: {{"),
            (SMOKE, "  arms:\n    -", f"{KL_SWEEP}  arms:\n    -"),
        ),
        {
            **dict.fromkeys(("initialise_selector", "reward_groups", "answer_prompts", "score_answers"), 1),
            "train_sft_epoch": SFT_EPOCHS,
            "train_rce_epoch": RCE_EPOCHS,
            "train_grpo_epoch": GRPO_EPOCHS + LONG_ONLY,
            "train_on_policy_epoch": ON_POLICY_EPOCHS,
            **EXTRA_OBJECTIVES,
            "select_demonstrations": SEED_EVALUATED,
            **dict.fromkeys(("train_agent", "evaluate_agent"), 1),
            **AGENT_REPORT,
            **WITHOUT_CONTROLS,
        },
    ),
    "the offline loss retrains offline runs": (
        ((f"{LOSSES}/grpo.py", OFFLINE_LOSS, f"0 * {OFFLINE_LOSS}"),),
        K3_AND_BELOW,
    ),
    "another default of GRPO does not touch RCE": (
        (("lever_pipe/experiment/grpo.py", "z_clamp: float = Field(3.0,", "z_clamp: float = Field(3.5,"),),
        K3_AND_BELOW | {"measure_rewards": 1},
    ),
    "the metric rescores RL data and all below": (
        (("lever_pipe/metrics/vqa_accuracy.py", "min(3, n_matches)", "min(2, n_matches)"),),
        BELOW_RL_DATA
        | {
            "generate_rl_data": 2,
            "merge_rl_data": 1,
            "select_baseline": BASELINES,  # the oracle ranks by the metric
            "answer_prompts": 3,
            "score_answers": SCORED,
            "measure_pools": 1,
        },
    ),
    "the prompt answers everything again": (
        (("lever_pipe/lvlms/qwen2_5_vl.py", 'BEGIN = "<|im_start|>', 'BEGIN = "<|im_start|>the '),),
        BELOW_RL_DATA
        | {
            **dict.fromkeys(("generate_rl_data", "answer_prompts"), 2),
            **dict.fromkeys(("merge_rl_data", "search_beams", "train_sft_epoch"), 1),
            "answer_prompts": 3,
            "score_answers": SCORED,
            "select_demonstrations": SEED_EVALUATED,
        },
    ),
    "another number of evaluated questions trains nothing": (
        ((SMOKE, "n_eval: 40", "n_eval: 41"),),
        {
            **dict.fromkeys(("generate_world", "prepare_examples", "embed_examples", "sample_pools"), 1),
            "select_demonstrations": SEED_EVALUATED,
            "select_baseline": BASELINES,
            "emulate_selections": ARMS,
            "answer_prompts": 3,
            "score_answers": SCORED,
            "score_emulation": 1,
            "measure_pools": 1,
            **REPORT,
        },
    ),
    "a seed more runs that seed": (
        ((SMOKE, "seeds: [0]\n    rce", "seeds: [0, 1]\n    rce"),),
        {
            "initialise_selector": 1,
            "train_sft_epoch": SFT_EPOCHS,
            "train_rce_epoch": RCE_EPOCHS,
            "train_grpo_epoch": GRPO_EPOCHS,
            "answer_prompts": 1,
            "score_answers": 1,
            "select_demonstrations": SFT_EPOCHS + RCE_EPOCHS + GRPO_EPOCHS,
            **WITHOUT_CONTROLS,
        },
    ),
    "another reward trains its preset": (
        (("config.yaml", "    rce:\n      learn", "    reward: {mode: soft_only}\n    rce:\n      learn"),),
        {
            "reward_groups": 1,
            "measure_rewards": 1,
            **EXTRA_OBJECTIVES,
            "train_rce_epoch": RCE_EPOCHS,
            **GRPO_AND_BELOW,
            "select_demonstrations": SEED_EVALUATED - SFT_EPOCHS,
        },
    ),
    "title and language rebuild the page only": (
        ((SMOKE, 'report: {title: "Smoke run', 'report: {language: zh, title: "Another run'),),
        {"build_report": 1},
    ),
}
"""Edits of files, of both studies if there are two, and all jobs that they plan."""


@pytest.mark.parametrize(("edits", "expected"), EDITS.values(), ids=EDITS)
def test_an_edit_plans_exactly_its_jobs(
    smoke: Project, edits: tuple[tuple[str, str, str], ...], expected: dict[str, int]
) -> None:
    with ExitStack() as changes:
        for edit in edits:
            changes.enter_context(smoke.edited(*edit))
        assert smoke.planned() == expected


def test_what_changes_no_number_reruns_nothing(smoke: Project) -> None:
    """All at once: times of files, how jobs are run and reached, a comment, an unused plugin and an unused preset."""
    touched = (
        "world/mscoco_val2014_annotations.json",
        "lever/embeddings/train.safetensors",
        "lever/rl_data/rl_data_k64_v3.jsonl",
        "lever/preset~world/rce/seed~0/epoch~1/selector.safetensors",
        "lever/preset~world/rce/seed~0/epoch~2/optimiser.safetensors",
    )
    resources = ("--set-threads", "train_rce_epoch=2", "--set-resources", "answer_prompts:mem_mb=9000")
    execution = "intention:\n  execution: {checkpoint_every: 1, connection: {timeout_seconds: 1, retries: 7}}\n"
    with ExitStack() as changes:
        for name in touched:
            changes.enter_context(another_time(smoke.folder / "results/smoke" / name))
        changes.enter_context(smoke.edited("profiles/default/config.yaml", "cores: all", "cores: 1"))
        changes.enter_context(smoke.edited("config/smoke.yaml", "intention:\n", execution))
        changes.enter_context(smoke.edited("config.yaml", "  published: {}", "  published: {train_share: 0.8}"))
        changes.enter_context(confirmed(smoke))
        changes.enter_context(smoke.edited("lever_pipe/losses/kl.py", "import torch\n", "# A remark.\nimport torch\n"))
        for name, text in (
            ("lever/samplers/nearest.py", '"""A further sampler."""\n'),
            ("experiment/further.py", STAGE_MORE),
        ):
            changes.enter_context(added(smoke.folder / "lever_pipe" / name, text))
        assert smoke.planned(*resources, "--config", "numerics=fastest", "forked_jobs=False") == {}


@contextmanager
def another_time(path: Path) -> Iterator[None]:
    stat = path.stat()
    path.touch()
    try:
        yield
    finally:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@contextmanager
def added(path: Path, content: str) -> Iterator[None]:
    path.write_text(content)
    try:
        yield
    finally:
        path.unlink()


def test_jobs_take_the_configured_path_and_their_manifests_tell_it(smoke: Project) -> None:
    """The configuration's mode reaches jobs whatever mode the process that called Snakemake is in."""
    manifest = next(smoke.folder.rglob("rl_data/run.json"))
    assert json.loads(manifest.read_text())["versions"]["numerics"].startswith("portable")
    forced = ("--forcerun", "merge_rl_data", "--until", "merge_rl_data")
    smoke.snakemake("--config", "numerics=fastest", *forced)
    assert json.loads(manifest.read_text())["versions"]["numerics"].startswith("fastest")
    smoke.snakemake(*forced)
    assert json.loads(manifest.read_text())["versions"]["numerics"].startswith("portable")


def test_confirmation_to_ask_again_reaches_the_jobs(smoke: Project) -> None:
    words = ("--dry-run", "--printshellcmds", "--forcerun", "answer_prompts", "--until", "answer_prompts")
    assert "--lvlm" not in smoke.snakemake(*words)
    with confirmed(smoke):
        assert "--lvlm" in smoke.snakemake(*words)


def confirmed(smoke: Project) -> AbstractContextManager[None]:
    results = "results: results/smoke\n"
    return smoke.edited("config/smoke.yaml", results, f"{results}lvlm: {{ask_again: true}}\n")


def test_other_pixels_and_raw_data_of_an_older_time_are_read_again(smoke: Project) -> None:
    """Pixels of the evaluation's images, and annotations of the train questions."""
    world = smoke.folder / "results/smoke/world"
    with put_back(world / "val.sha256") as listing, put_back(annotations := world / TRAIN_ANNOTATIONS) as content:
        (world / "val.sha256").write_bytes(listing.replace(b"0", b"1", 1))
        annotations.write_bytes(content + b"\n")
        os.utime(annotations, (LONG_AGO, LONG_AGO))
        planned = smoke.planned()
    assert planned["prepare_examples"] == 2
    assert "generate_world" not in planned


def test_one_study_alone_is_planned_without_the_other(smoke: Project) -> None:
    planned = smoke.planned("--config", "studies=[intention]", "results=results/agents")
    assert planned == AGENTS_AND_BELOW | {"prepare_tasks": 1, "warm_start_agent": 1}
    planned = smoke.planned("--config", "studies=[lever]", "results=results/selectors")
    assert not planned.keys() & {"prepare_tasks", *AGENTS_AND_BELOW} - FROM_EVIDENCE.keys()


def test_exported_rl_data_import_to_the_same_selector(smoke: Project, tmp_path: Path) -> None:
    rl_data = smoke.folder / "results/smoke/lever/rl_data/rl_data_k64_v3.jsonl"
    project = begin(tmp_path, smoke)
    smoke.tool("export_rl_data", str(rl_data), str(project.folder / "rl_data_k64_v3.json"))
    words = ("--config", "rl_data={import_from: rl_data_k64_v3.json}")
    planned = project.planned(*words)
    assert planned["import_rl_data"] == 1
    assert not planned.keys() & {"generate_rl_data", "propose_trajectories", "merge_rl_data"}
    project.snakemake("--cores", "2", *words, "--", f"results/smoke/{FIRST_RCE}")
    imported, generated = (of.folder / "results/smoke" / FIRST_RCE for of in (project, smoke))
    assert imported.read_bytes() == generated.read_bytes()


def test_rescored_rl_data_are_what_the_lvlm_said_before(smoke: Project, tmp_path: Path) -> None:
    """The same selections out of the same pools are the same prompts: new scores are the old ones."""
    rl_data = "results/smoke/lever/rl_data/rl_data_k64_v3.jsonl"
    project = begin(tmp_path, smoke)
    smoke.tool("export_rl_data", str(smoke.folder / rl_data), str(project.folder / "rl_data_k64_v3.json"))
    words = ("--config", "rl_data={import_from: rl_data_k64_v3.json, rescore: true}")
    planned = project.planned(*words)
    assert (planned["import_rl_data"], planned["generate_rl_data"], planned["merge_rl_data"]) == (1, 2, 1)
    assert "propose_trajectories" not in planned
    project.snakemake("--cores", "2", *words, "--", rl_data)
    generated, rescored = ((of.folder / rl_data).read_bytes() for of in (smoke, project))
    imported = (project.folder / "results/smoke/lever/rl_data/imported.jsonl").read_bytes()
    assert generated == rescored
    assert generated == imported
