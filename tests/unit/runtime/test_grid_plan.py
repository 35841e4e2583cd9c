"""The grid as a plan: its cells, their shared jobs, and identities that cover all inputs of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import shipped

from lever_pipe.base import plugins
from lever_pipe.base.errors import ConfigError
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


def test_of_each_run_the_last_epoch_is_evaluated_and_of_other_data_what_was_trained_there() -> None:
    names = grid.policies_at(experiment(), GridSetting("world", "uniform", "reader"))
    trained = [name for name in names if name.startswith("preset~")]
    assert trained == [
        "preset~world/rce/seed~0/epoch~2",
        *(
            f"preset~world/on_policy/base~2/beta~{beta}/seed~0/epoch~3"
            for beta in ("0", "0.12", "0.145", "0.15", "0.155", "0.18")
        ),
        *(f"preset~world/{kind}/seed~0/epoch~3" for kind in ("reinforce/base~2/beta~0", "distil/base~2")),
        "preset~world/rce/seed~1/epoch~2",
        "preset~published/rce/seed~0/epoch~1",
        "preset~published/grpo/base~1/beta~0.1/seed~0/epoch~3",
    ]
    assert [name for name in names if name.startswith("from~")] == [f"from~world_b/{name}" for name in trained]
    assert [name for name in names if name.startswith("items~2/")] == [f"items~2/{name}" for name in trained]
    assert [name for name in names if name.startswith("own/")] == ["own/mine", "own/code"]
    assert "own/mine" not in grid.policies_at(experiment(), GridSetting("world_b", "uniform", "reader"))


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


def test_a_value_more_leaves_every_other_cell_as_it_is() -> None:
    more = experiment(samplers=["uniform", "mixture", "text_similarity"])
    setting = GridSetting("world", "uniform", "reader")
    for stage, others in (("sample_pools", {"split": "eval"}), ("answer_prompts", {"batch": "baseline"})):
        assert spec(experiment(), stage, setting, **others) == spec(more, stage, setting, **others)
    before = set(map(str, grid.evaluated_cells(experiment())))
    assert before < set(map(str, grid.evaluated_cells(more)))


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


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"samplers": ["uniform", "text_similar"]}, r"samplers\[1\]: must "),
        ({"samplers": []}, "grid.samplers: must "),
        ({"reference": "worldly"}, "grid.reference: must "),
        ({"exclude": [{"samplers": ["mixtur"], "why": "x"}]}, r"exclude\[0\].samplers\[0\]: .*Did you mean 'mixture'"),
        ({"data": {"world": {"reader": "okvqa2"}}}, r"grid.data.world.reader: must "),
        ({"lvlms": {"reader": {"engine": "qwen"}}}, "grid.lvlms.reader.engine: must "),
        ({"data": {"world": {"rl_data": {"n_queries": 3000}}}}, "world.rl_data.n_queries: must "),
        ({"baselines": {"names": ["oracle"]}}, r"grid.baselines.names: must "),
        ({"policies": {"nobody": {}}}, r"grid.policies.nobody: must "),
        ({"data": {"world": {"world": {"n_train": 64}}}}, "must be below grid.data.world.world.n_train=64"),
        ({"arms": [{"preset": "world", "base_rce_epochs": [1, 2]}]}, r"base_rce_epochs: must "),
        ({"arms": [*GRID["arms"], GRID["arms"][0]]}, r"grid.arms\[2\].preset: must "),
        ({"policies": {"mine": {"selections": {"worlds": "f.csv"}}}}, "policies.mine.selections.worlds: must "),
        ({"data": {"world": {"rl_data": {"n_shards": 5}}}}, "grid.data.world.rl_data.n_shards: must "),
        ({"transfer": ["world_b", "wrld"]}, r"grid.transfer\[1\]: must "),
        ({"transfer": ["world"], "lvlms": {"world": {}}}, "grid.transfer: must "),
        ({"lvlm": {}}, "grid.lvlm: unknown key. Did you mean 'lvlms'"),
    ],
)
def test_a_problem_names_its_key_and_the_remedy(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        experiment(**{"transfer": [], "policies": {}, **changed})
