"""The golden plan: the policies and jobs of two experiments, and the stages whose configuration an edit changes."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from lever_pipe.base import plugins
from lever_pipe.base.errors import ConfigError
from lever_pipe.base.policy_names import PolicyName, values_in
from lever_pipe.base.provenance import canonical_json, stages
from lever_pipe.experiment.configuration import read
from lever_pipe.experiment.emulation import EMULATED_ARMS
from lever_pipe.experiment.identities import config_of, plugins_of
from lever_pipe.experiment.plans import agents, grid, models, policies
from lever_pipe.experiment.studies import Experiment, parse_experiment

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/plan.json"
REWRITE = "LEVER_PIPE_REWRITE_PLAN"
ARM = {"preset": "world", "seeds": [0, 1], "sft_epochs": 2, "rce_epochs": 2, "base_rce_epochs": [1, 2]}
ARM |= {"grpo_epochs": 2, "kl_betas": [0, 0.145], "long_epochs": 3, "long_kl_betas": [0.145], "long_seeds": [0, 5]}
ARM |= {"long_evaluated": [3]}
ON_POLICY = {"seeds": [1], "epochs": 2, "kl_betas": [0, 0.3], "extra_objectives": ["reinforce", "distil", "continued"]}
SERVED = {"name": "gpt", "model": "m"}
OTHER = {"preset": "published", "seeds": [0], "rce_epochs": 1, "base_rce_epochs": [1], "grpo_epochs": 1}
LEVER: dict[str, Any] = {"arms": [ARM | {"on_policy": ON_POLICY}, OTHER], "intention.served": [SERVED]}
GRID: dict[str, Any] = {
    "studies": ["grid"],
    "grid": {
        "data": {"world": {}, "world_b": {"reader": "vqav2", "world": {"seed": 3, "layout": "vqav2"}}},
        "samplers": ["uniform", "mixture"],
        "lvlms": {"reader": {}, "greedy": {"decode": {"max_new_tokens": 2}}},
        "arms": [
            {"preset": "world", "seeds": [0, 1], "rce_epochs": 2, "base_rce_epochs": [2], "on_policy": {"seeds": [0]}},
            {"preset": "published", "seeds": [0], "rce_epochs": 1, "base_rce_epochs": [1], "kl_betas": [0.1]},
        ],
        "reference": "world",
        "policies": {"mine": {"selections": {"world": "mine.csv"}}, "code": {}},
        "exclude": [{"data": ["world_b"], "samplers": ["mixture"], "presets": ["published"], "why": "too dear"}],
        "transfer": ["world", "world_b"],
        "first_items": 2,
    },
}
EXPERIMENTS = {"lever": LEVER, "grid": GRID}


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lever/policies"
    folder.mkdir(parents=True)
    (folder / "code.py").write_text("def select(choice, shots): ...")
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path))
    monkeypatch.chdir(ROOT)


def experiment(*changes: dict[str, Any]) -> Experiment:
    """Return the default experiment with the values of dotted keys replaced; later changes win."""
    values = {key: value for change in changes for key, value in change.items()}
    words = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return parse_experiment(read([Path("config.yaml")], words).values)


def jobs(given: Experiment, place: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Return the jobs of a setting as stage and wildcards, whichever engine plays the agents."""
    by_split = [{"split": split} for split in ("train", "eval")]
    presets = [arm.preset for arm in given.arms]
    runs = [{"arm": run.arm, "seed": str(run.seed)} for run in agents.runs(given.intention)]
    evaluated = grid.policies_at(given, grid.setting_of(place)) if place else policies.evaluated(given)
    by_stage: dict[str, list[dict[str, str]]] = {
        "generate_world": [{"split": "train"}, {"split": "val"}],
        "prepare_examples": by_split,
        "embed_examples": [{"split": "eval", "embedded": of} for of in ("embeddings", "pool_embeddings")],
        "sample_pools": by_split,
        "generate_rl_data": [{"shard": "0"}],
        "reward_groups": [{"preset": p, "rewarded": r} for p in presets for r in ("groups", "grpo_groups")],
        "initialise_selector": [{"preset": preset, "seed": "1"} for preset in presets],
        "select_baseline": [{"baseline": name} for name in policies.baselines(given)],
        "select_own": [{"own": name} for name in given.grid.policies],
        "select_demonstrations": [{"selected": n} for n in evaluated if n.startswith(("preset~", "from~"))],
        "emulate_first_items": [{"trained": n.partition("/")[2], "offered": "2"} for n in evaluated if "items~" in n],
        "emulate_selections": [{"arm": arm} for arm in EMULATED_ARMS],
        "evaluate_served": [{"arm": agent.name} for agent in given.intention.served],
        **{f"train_{run}_epoch": [] for run in ("sft", "rce", "grpo", "on_policy", "distil", "continued")},
        "train_agent": runs,
        "evaluate_agent": runs,
        "render_verl": runs,
        "convert_verl": runs,
    }
    for name in map(PolicyName.parse, policies.trained(given)):
        stage = f"train_{'on_policy' if name.mode == 'on_policy' else name.kind}_epoch"
        by_stage[stage].append({"objective": name.kind, **values_in(str(name))})
    batches = [*policies.batches(given), *(("own", "transfer", "first_items") if place else ("emulation",))]
    by_stage["answer_prompts"] = by_stage["score_answers"] = [{"batch": batch} for batch in batches]
    return [(stage, wild | place) for stage in stages() for wild in by_stage.get(stage, [{}])]


def configurations(given: Experiment) -> dict[str, dict[str, Any]]:
    """Return the configuration of each job by stage and wildcards."""
    places = map(grid.folders_of, given.grid.settings) if "grid" in given.studies else [{}]
    all_jobs = [job for place in places for job in jobs(grid.at(given, place), place)]
    named = {" ".join([stage, *(f"{k}={v}" for k, v in wild.items())]): (stage, wild) for stage, wild in all_jobs}
    return {name: config_of(given, *job).model_dump(mode="json") for name, job in named.items()}


def recorded(given: Experiment) -> dict[str, Any]:
    """Return the policies, the first configuration of each stage, and a digest of all configurations of each stage."""
    by_stage: dict[str, dict[str, Any]] = {}
    for name, config in configurations(given).items():
        by_stage.setdefault(name.partition(" ")[0], {})[name] = config
    selections = ("trained", "sampled", "controlled", "starts", "batches")
    is_grid = "grid" in given.studies
    shown = ("build_grid", "select_own", "emulate_first_items") if is_grid else tuple(by_stage)
    return {
        "evaluated": grid.policies_at(given, given.grid.settings[0]) if is_grid else policies.evaluated(given),
        **{name: getattr(policies, name)(given) for name in selections if not is_grid},
        "configurations": {name: config for stage in shown for name, config in [*by_stage[stage].items()][:1]},
        "jobs": {stage: [len(configs), digest(configs)] for stage, configs in by_stage.items()},
    }


def digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:12]


def test_the_plan_is_the_recorded_one() -> None:
    found = {name: recorded(experiment(changes)) for name, changes in EXPERIMENTS.items()}
    if os.environ.get(REWRITE) == "1":
        GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        pytest.fail(f"{GOLDEN.name} is written: commit it with the reason, and run this test without the variable")
    golden = json.loads(GOLDEN.read_text())
    for name, parts in found.items():
        for part, values in parts.items():
            assert values == golden[name][part], f"{name}: {part} differ; on purpose: {REWRITE}=1 pytest {__file__}"


def test_a_configuration_parses_back_and_names_the_plugins_of_its_stage() -> None:
    given, loaded = experiment(LEVER), dict[str, tuple[str, ...]]()
    for stage, wildcards in jobs(given, {}):
        config = config_of(given, stage, wildcards)
        assert type(config).model_validate_json(config.model_dump_json()) == config, stage
        loaded[stage] = plugins_of(config)
    lvlm, selector = ("lvlms.qwen2_5_vl",), ("lever.networks.cross_attention", "lever.heads.static")
    simulator, codec = ("intention.simulators.rule",), ("intention.codecs.word",)
    selecting = ("initialise_selector", "select_demonstrations", "emulate_untouched", "emulate_selections")
    epochs = [f"train_{objective}_epoch" for objective in ("sft", "rce", "grpo", "distil", "continued")]
    assert {stage: modules for stage, modules in loaded.items() if modules} == {
        "prepare_examples": ("lever.datasets.okvqa",),
        "embed_examples": ("lever.encoders.clip",),
        "sample_pools": ("lever.samplers.uniform",),
        **dict.fromkeys(("generate_rl_data", "search_beams", "answer_prompts", "answer_controls"), lvlm),
        "train_on_policy_epoch": lvlm + selector,
        **dict.fromkeys((*selecting, *epochs), selector),
        "prepare_tasks": ("intention.sources.synthetic",),
        "warm_start_agent": codec,
        **dict.fromkeys(("train_agent", "evaluate_agent", "evaluate_start"), simulator + codec),
        "evaluate_served": simulator,
    }


SCORING = ("generate_rl_data", "search_beams", "answer_prompts", "answer_controls", "train_on_policy_epoch")
SHOWING = ("build_report", "plot_figures")
COLLECTING = ("collect_results", "collect_lineage", "compare_policies", "measure_drift", "collect_samples")
COLLECTING += ("score_answers", "answer_controls")
CELLS = ("collect_samples", "answer_controls", "compare_policies", "score_answers", "score_emulation", "build_grid")
CELLS += ("compare_cells",)
OF_ARMS = ("compare_arms", "collect_dialogues", *SHOWING)
PLAYED = ("train_agent", "evaluate_agent", "evaluate_start", "evaluate_served")
WORLD = "presets.world"
CENTRED = {f"{WORLD}.on_policy.advantages": "centred"}
EDITS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "results": ({"results": "elsewhere"}, ()),
    "title": ({"report.title": "Another"}, ("build_report", "build_grid")),
    "world": ({"data.world.seed": 12345}, ("generate_world", "collect_samples")),
    "size of the evaluated world": ({"data.world.n_eval": 900}, ("generate_world", "collect_samples")),
    "answers": ({"data.answers": "raw"}, ("prepare_examples", "collect_samples")),
    "evaluated queries": ({"data.eval_subset": "random"}, ("prepare_examples",)),
    "encoder": ({"encoder.batch_size": 8}, ("embed_examples",)),
    "pools": ({"pools.seed": 12345}, ("sample_pools", "import_rl_data")),
    "proposals": ({"rl_data.n_random": 63}, ("propose_trajectories",)),
    "beams": ({"beams.rank": "last_gain"}, ("search_beams",)),
    "LVLM": ({"lvlm.wave_tokens": 12345}, SCORING),
    "references": (
        {"evaluation.normalise_references": "always"},
        (
            *("generate_rl_data", "train_distil_epoch", "train_on_policy_epoch", "select_baseline", "score_answers"),
            *("score_emulation", "measure_pools", "answer_controls", "collect_samples"),
        ),
    ),
    "random subsets": ({"evaluation.n_random_subsets": 997}, ("score_answers",)),
    "primary cell": ({"evaluation.primary": {"shots": 1}}, ("compare_policies",)),
    "samples": ({"evaluation.samples": [100]}, CELLS),
    "baselines": ({"baselines.seed": 12345}, ("select_baseline",)),
    "a draw more": (
        {"baselines.n_random_draws": 9},
        ("collect_lineage", "compare_policies", "measure_drift", "collect_samples", "score_answers"),
    ),
    "another preset": ({"presets.published.rce.learning_rate": 0.5}, ("train_rce_epoch", "build_report")),
    "reward": ({f"{WORLD}.reward.mode": "hard_only"}, ("reward_groups", "measure_rewards", "build_report")),
    "reward of GRPO": (
        {f"{WORLD}.grpo.reward": {"mode": "soft_only"}},
        ("reward_groups", "train_grpo_epoch", "train_continued_epoch", "measure_rewards", "build_report"),
    ),
    "SFT": ({f"{WORLD}.sft.passes": 7}, ("train_sft_epoch", "build_report")),
    "RCE": ({f"{WORLD}.rce.temperature_start": 3.0}, ("train_rce_epoch", "build_report")),
    "start of RCE": ({f"{WORLD}.rce_from_sft_epoch": 2}, ("train_rce_epoch", "build_report")),
    "clip of GRPO": ({f"{WORLD}.grpo.clip_epsilon": 0.1}, ("train_grpo_epoch", "build_report")),
    "distillation": ({f"{WORLD}.distil.passes": 7}, ("train_distil_epoch", "build_report")),
    "on-policy group": ({f"{WORLD}.on_policy.group": 5}, ("train_on_policy_epoch", "build_report")),
    "limits that centred advantages lack": (CENTRED | {f"{WORLD}.on_policy.advantage_clamp": 2.0}, ("build_report",)),
    "betas, epochs and seeds": (
        {"arms": [ARM | {"kl_betas": [0, 0.05], "seeds": [0, 1, 2], "rce_epochs": 4, "on_policy": ON_POLICY}, OTHER]},
        (*COLLECTING[1:], *SHOWING),
    ),
    "emulated head": ({"emulate.head_seed": 12345}, ("emulate_selections", "build_report")),
    "an arm": ({"intention.arms.1.kl": 0.02}, ("train_agent", "render_verl", *OF_ARMS)),
    "a seed of an arm": ({"intention.arms.1.seeds": [0, 1, 2, 3]}, ("collect_agents", *OF_ARMS)),
    "tests of agents": (
        {"intention.evaluation.test_samples": 7},
        ("evaluate_agent", "evaluate_start", "evaluate_served", "compare_arms", "render_verl", *SHOWING),
    ),
    "validation of agents": (
        {"intention.evaluation.samples": 7},
        ("train_agent", "compare_arms", "render_verl", *SHOWING),
    ),
    "checkpoint of agents": (
        {"intention.evaluation.primary.checkpoint": "best"},
        ("compare_arms", "collect_dialogues", "render_verl", *SHOWING),
    ),
    "environment": ({"intention.environment.max_turns": 3}, ("warm_start_agent", "render_verl", *PLAYED)),
    "execution of agents": ({"intention.execution.checkpoint_every": 1}, ()),
    "no served agent": ({"intention.served": []}, ("collect_agents",)),
    "a greedy served agent": ({"intention.served": [SERVED | {"modes": ["greedy"]}]}, ("evaluate_served",)),
}
"""Edit -> changed values and the stages with a job whose configuration changes."""


@pytest.mark.parametrize(("changes", "expected"), EDITS.values(), ids=EDITS)
def test_an_edit_changes_the_stages_that_read_it_alone(changes: dict[str, Any], expected: tuple[str, ...]) -> None:
    base = CENTRED if changes.items() > CENTRED.items() else {}
    before, after = configurations(experiment(LEVER, base)), configurations(experiment(LEVER, changes))
    changed = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    assert {name.partition(" ")[0] for name in changed} == set(expected)
    preset = next(iter(changes), "").split(".")[1] if "presets." in str(changes) else ""
    assert all(f"preset={preset}" in name for name in changed if preset and name.startswith("train_"))
    if next(iter(changes)).startswith("data.eval"):
        assert not any("split=train" in name for name in changed)


def test_an_edit_keeps_the_jobs_of_a_stage_that_do_not_read_it() -> None:
    """REINFORCE has no clip, and a reward of offline GRPO makes groups of its own."""
    edits = {f"{WORLD}.on_policy.clip_epsilon": 0.3, f"{WORLD}.grpo.reward": {"mode": "soft_only"}}
    before, after = configurations(experiment(LEVER)), configurations(experiment(LEVER, edits))
    changed = [name for name in before if before[name] != after[name]]
    assert all("objective=on_policy" in name for name in changed if name.startswith("train_on_policy_epoch"))
    assert all("rewarded=grpo_groups" in name for name in changed if name.startswith("reward_groups"))


@pytest.mark.parametrize("name", ["smoke", "findings", "world_b", "grid", "okvqa_qwen2_5_vl_3b", "vqav2_qwen2_5_vl_3b"])
def test_reinforce_takes_as_many_optimiser_steps_as_grpo(name: str) -> None:
    given = parse_experiment(read([Path("config.yaml"), Path(f"config/{name}.yaml")]).values)
    for arm in (arm for arm in given.arms if arm.on_policy):
        n_train = int(given.presets[arm.preset].train_share * given.rl_data.n_queries)
        wild = {"preset": arm.preset, "base": "2", "beta": "0", "seed": "1", "epoch": "2"}
        runs = [
            config_of(given, "train_on_policy_epoch", wild | {"objective": of}) for of in ("on_policy", "reinforce")
        ]
        grpo, score = (math.ceil(n_train / run.on_policy.batch_queries) * run.on_policy.updates for run in runs)
        assert score == grpo > 0


def test_a_value_of_an_axis_more_leaves_every_cell_as_it_is() -> None:
    more = {"grid": GRID["grid"] | {"samplers": ["uniform", "mixture", "text_similarity"]}}
    before, after = configurations(experiment(GRID)), configurations(experiment(GRID, more))
    assert {name.partition(" ")[0] for name in before if before[name] != after[name]} == {"compare_cells"}


def test_the_training_setting_of_a_transferred_policy() -> None:
    given, here = experiment(GRID), grid.folders_of(grid.GridSetting("world", "mixture", "greedy"))
    name = "preset~world/rce/seed~0/epoch~2"
    there = here | {"data": "grid/data~world_b"}
    assert grid.trained_at(given, here | {"selected": f"from~world_b/{name}"}) == (there, name)
    assert grid.trained_at(given, here | {"selected": name}) == (here, name)


def test_training_prompts_count_the_stored_and_the_drawn_selections() -> None:
    given = experiment(GRID)
    stored = given.rl_data.n_queries * given.rl_data.per_query
    assert grid.training_prompts(given, "baseline/oracle") == 0
    assert grid.training_prompts(given, "preset~world/rce/seed~0/epoch~2") == stored
    on_policy = given.presets["world"].on_policy
    drawn = (on_policy.queries or 0) * on_policy.group * 3
    assert (
        grid.training_prompts(given, "preset~world/on_policy/base~2/beta~0/seed~0/epoch~3") == stored + drawn > stored
    )


@pytest.mark.parametrize(
    ("family", "named", "parameters", "has_vllm", "expected"),
    [
        ("qwen2_5_vl", "auto", 1000, True, "qwen2_5_vl"),
        ("internvl", "auto", 1000, True, "hf"),
        ("", "auto", 1000, True, "hf"),
        ("qwen2_5_vl", "hf", 1000, True, "hf"),
        ("internvl", "vllm", 1000, False, "vllm"),
        ("qwen2_5_vl", "auto", models.EMBEDDED_PARAMETERS + 1, True, "vllm"),
        ("qwen2_5_vl", "auto", models.EMBEDDED_PARAMETERS + 1, False, "hf"),
    ],
)
def test_the_engine_follows_the_size_and_family_of_a_model_unless_it_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    named: str,
    parameters: int,
    has_vllm: bool,
    expected: str,
) -> None:
    monkeypatch.setattr(models, "parameters_of", lambda _: parameters)
    monkeypatch.setattr(models, "find_spec", lambda _: has_vllm or None)
    if family:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    lvlm = experiment({"lvlm.model": str(tmp_path), "lvlm.engine": named}).lvlm
    assert models.lvlm_config(lvlm).engine == expected


def test_a_model_folder_enters_by_its_content(tmp_path: Path) -> None:
    def policy() -> Any:
        models.identity_of_model.cache_clear()  # a workflow reads a folder once; the next call reads it again
        found = experiment({"intention.model.folder": str(tmp_path), "intention.model.codec": "hf"})
        return config_of(found, "warm_start_agent", {}).model_dump()["policy"]

    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = policy()
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert first["model"]["folder"] == ""
    assert first["model_identity"] not in (policy()["model_identity"], models.EMBEDDED)


PROBLEMS: dict[str, dict[str, Any]] = {
    "beams.anchors": {"arms": [ARM], "rl_data.n_queries": 300},
    "intention.arms[2].name": {"intention.arms.1.name": "bundle"},
    "intention.arms[3].name": {"intention.arms.3.name": "start"},
    "intention.arms[2].schedule.kind": {"intention.arms.2.schedule": {"kind": "adaptive", "target": 1, "horizon": 64}},
    "intention.arms[2].kl_schedule.horizon": {"intention.arms.2.kl_schedule": {"kind": "adaptive", "target": 0.05}},
    "intention.arms[2].seeds": {"intention.arms.2.seeds": [1, 1]},
    "intention.reference_arm": {"intention.reference_arm": "none"},
    "intention.document_arm": {"intention.document_arm": "none"},
    "intention.grpo.minibatches": {"intention.grpo.prompts": 9},
    "intention.grpo.prompts": {"intention.grpo.prompts": 400},
    "intention.simulator.kind": {"intention.tasks.source": "intentiongym"},  # a rule plays the embedded tasks alone
    "intention.served[0].name": {"intention.served": [SERVED | {"name": "kl_only"}]},
    "intention.execution.served.gpt": {"intention.execution.served": {"gpt": {}}},
    "intention.served": {"intention.served": [SERVED], "intention.engine": "verl"},
    "intention.evaluation.temperatures": {"intention.evaluation.temperatures": [0.5], "intention.engine": "verl"},
    "intention.model.tiny.kv_heads": {"intention.model.tiny.kv_heads": 3},
    "grid.samplers": {"grid.samplers": [], "grid.exclude": []},
    "grid.samplers[1]": {"grid.samplers": ["uniform", "text_similar"]},
    "grid.reference": {"grid.reference": "worldly"},
    "grid.exclude[0].samplers[0]": {"grid.exclude": [{"samplers": ["mixtur"], "why": "x"}]},
    "grid.data.world.reader": {"grid.data.world": {"reader": "okvqa2"}},
    "grid.data.world.rl_data.n_queries": {"grid.data.world": {"rl_data": {"n_queries": 3000}}},
    "grid.data.world.rl_data.n_shards": {"grid.data.world": {"rl_data": {"n_shards": 5}}},
    "pools.size": {"grid.data.world": {"world": {"n_train": 64}}},
    "grid.lvlms.reader.engine": {"grid.lvlms.reader": {"engine": "qwen"}},
    "grid.baselines.names": {"grid.baselines": {"names": ["oracle"]}},
    "grid.policies.nobody": {"grid.policies.nobody": {}},
    "grid.policies.mine.selections.worlds": {"grid.policies.mine": {"selections": {"worlds": "f.csv"}}},
    "grid.arms[0].base_rce_epochs": {"grid.arms.0.base_rce_epochs": [1, 2]},
    "grid.arms[1].preset": {"grid.arms.1.preset": "world", "grid.exclude": []},
    "grid.transfer[1]": {"grid.transfer": ["world_b", "wrld"]},
    "grid.transfer": {"grid.lvlms.world": {}},
    "grid.lvlm": {"grid.lvlm": {}},
}
"""Key of a problem -> the changed values that cause it."""


@pytest.mark.parametrize(("key", "changes"), PROBLEMS.items(), ids=PROBLEMS)
def test_a_problem_names_its_key(key: str, changes: dict[str, Any]) -> None:
    base = GRID if key.startswith(("grid", "pools")) else {}
    with pytest.raises(ConfigError) as raised:
        experiment(base, changes)
    assert f"\n  {key}: " in f"\n  {raised.value}"
