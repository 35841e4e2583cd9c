"""The grid as a plan: its cells, their shared jobs, and identities that cover all inputs of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import shipped

from lever_pipe.base import plugins
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.experiment.grid import GridSetting
from lever_pipe.experiment.plans import grid, policies
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime import plan

GRID: dict[str, Any] = {
    "data": {"world": {}, "world_b": {"reader": "vqav2", "world": {"seed": 3, "layout": "vqav2"}}},
    "samplers": ["uniform", "mixture"],
    "lvlms": {"reader": {}, "greedy": {"decode": {"max_new_tokens": 2}}},
    "arms": [
        {"preset": "world", "seeds": [0, 1], "rce_epochs": 2, "base_rce_epochs": [2], "on_policy": {"seeds": [0]}},
        {"preset": "published", "seeds": [0], "rce_epochs": 1, "base_rce_epochs": [1], "kl_betas": [0.1]},
    ],
    "reference": "world",
    "policies": {"mine": {"selections": {"world": "mine.csv"}}, "code": {}},
    "transfer": ["world", "world_b"],
    "first_items": 2,
}


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lever/policies"
    folder.mkdir(parents=True)
    (folder / "code.py").write_text("def select(choice, shots): ...")
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path))


def experiment(**changed: Any) -> Experiment:
    return parse_experiment({**shipped(), "studies": ["grid"], "grid": {**GRID, **changed}})


def spec(given: Experiment, stage: str, setting: GridSetting, **others: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan.spec_of(given, stage, {**grid.folders_of(setting), **others}))
    return found


def test_a_data_set_lies_over_the_experiments_own() -> None:
    given = experiment()
    world_b = given.grid.data["world_b"]
    assert (world_b.reader, world_b.world.seed) == ("vqav2", 3)
    assert world_b.world.n_train == given.data.world.n_train
    assert world_b.train_image_name == given.data.train_image_name
    assert given.grid.lvlms["greedy"].model == given.lvlm.model


def test_an_exclusion_removes_its_cells_alone_with_their_transfers() -> None:
    why = "it costs more than it tells"
    left = experiment(exclude=[{"data": ["world_b"], "presets": ["published"], "why": why}])
    before, after = ({(c.data, c.policy) for c in grid.evaluated_cells(of)} for of in (experiment(), left))
    gone = before - after
    assert gone
    assert all(
        "published" in policy and (data == "world_b" or policy.startswith("from~world_b/")) for data, policy in gone
    )
    assert {(cell.data, cell.preset, cell.why) for cell in grid.missing_cells(left)} == {("world_b", "published", why)}
    assert len(grid.missing_cells(left)) == 4  # samplers x LVLMs


@pytest.mark.parametrize(
    ("stage", "others", "axes"),
    [
        ("prepare_examples", {"split": "eval"}, {"data"}),
        ("sample_pools", {"split": "eval"}, {"sampler"}),
        ("answer_prompts", {"batch": "baseline"}, {"lvlm"}),
        ("train_rce_epoch", {"preset": "world", "seed": "0", "epoch": "1"}, set()),
        ("select_baseline", {"baseline": "oracle"}, set()),
        ("embed_examples", {"embedded": "embeddings"}, set()),
    ],
)
def test_an_identity_holds_what_its_job_reads(stage: str, others: dict[str, str], axes: set[str]) -> None:
    """Data and pools reach the other stages as contents of their inputs."""
    given, here = experiment(), GridSetting("world", "uniform", "reader")
    there = {"data": "world_b", "sampler": "mixture", "lvlm": "greedy"}
    changed = {
        axis
        for axis, value in there.items()
        if spec(given, stage, here, **others) != spec(given, stage, here._replace(**{axis: value}), **others)
    }
    assert changed == axes


def test_the_documents_study_knows_nothing_of_the_grid() -> None:
    plain = parse_experiment(shipped())
    with_grid = parse_experiment({**shipped(), "studies": ["lever", "grid"], "grid": GRID})
    assert policies.evaluated(plain) == policies.evaluated(with_grid)
    for stage, others in (
        ("sample_pools", {"split": "eval"}),
        ("answer_prompts", {"batch": "baseline"}),
        ("generate_world", {"split": "val"}),
    ):
        wildcards = {**grid.DOCUMENTS, "raw": "world", **others}
        assert plan.spec_of(plain, stage, wildcards) == plan.spec_of(with_grid, stage, wildcards)


def test_two_ways_of_making_rl_data_differ_in_what_reads_them_alone() -> None:
    balanced = {"rl_data": {"balance": {"low": 0.1}, "n_beams": 1}}
    given = experiment(data={"world": {}, "balanced": balanced}, transfer=[])
    own = given.grid.data["balanced"].rl_data
    assert own is not None
    assert (own.n_beams, own.n_queries) == (1, given.rl_data.n_queries)
    settings = [GridSetting(name, "uniform", "reader") for name in ("world", "balanced")]
    split = {"split": "train"}
    stages = {"prepare_examples": split, "sample_pools": split, "propose_trajectories": {}, "merge_rl_data": {}}
    same = {
        stage: len({str(spec(given, stage, setting, **of)) for setting in settings}) for stage, of in stages.items()
    }
    assert same == {"prepare_examples": 1, "sample_pools": 1, "propose_trajectories": 2, "merge_rl_data": 2}
    carried = experiment(data={"world": {}, "balanced": balanced}, transfer=["world", "balanced"])
    by_home = [
        (cell.data, PolicyName.parse(cell.policy).origin or cell.data, cell) for cell in grid.evaluated_cells(carried)
    ]
    prompts = {(data, home): cell.training_prompts for data, home, cell in by_home if "/rce/" in cell.policy}
    fewer = given.rl_data.n_queries * (given.rl_data.n_beams - 1)
    for there in ("world", "balanced"):
        assert prompts[there, "world"] - prompts[there, "balanced"] == fewer  # wherever it is evaluated


def test_a_setting_excluded_with_all_presets_does_not_run_and_is_told_for_each_arm() -> None:
    given = experiment(exclude=[{"data": ["world_b"], "samplers": ["mixture"], "why": "too dear"}])
    settings = {(cell.data, cell.sampler, cell.lvlm) for cell in grid.evaluated_cells(given)}
    assert settings == {tuple(setting) for setting in given.grid.combinations if setting[:2] != ("world_b", "mixture")}
    assert {cell[:2] for cell in settings} == {("world", "uniform"), ("world", "mixture"), ("world_b", "uniform")}
    assert [cell.preset for cell in grid.missing_cells(given)] == ["world", "published"] * 2  # LVLMs


def test_selectors_are_carried_over_from_one_lvlm_to_the_other_within_a_setting() -> None:
    lvlms = {"small": {}, "large": {"model": "resources/world/lvlm_four_layers"}}
    given = experiment(lvlms=lvlms, transfer=["small", "large"])
    here, there = GridSetting("world", "mixture", "large"), GridSetting("world", "mixture", "small")
    trained = [name for name in grid.policies_at(given, there) if name.startswith("preset~")]
    carried = [name for name in grid.policies_at(given, here) if name.startswith("from~")]
    assert carried == [f"from~small/{name}" for name in trained]
    assert PolicyName.parse(carried[0]).batch == "transfer"
    location, name = grid.trained_at(given, grid.folders_of(here) | {"selected": carried[0]})
    assert (location, name) == (grid.folders_of(there), trained[0])
    own = grid.trained_at(given, grid.folders_of(here) | {"selected": trained[0]})
    assert own == (grid.folders_of(here), trained[0])
    assert not [name for name in grid.policies_at(experiment(), here._replace(lvlm="greedy")) if "from~world/" in name]
