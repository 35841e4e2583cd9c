from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from builders import shipped
from snakemake.utils import update_config

from lever_pipe.base.errors import ConfigError
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.base.provenance import stages as all_stages
from lever_pipe.base.records import PolicyRef
from lever_pipe.experiment.configuration import read_file
from lever_pipe.experiment.emulation import EMULATED_ARMS as ARMS
from lever_pipe.experiment.identities import config_of, plugins_of
from lever_pipe.experiment.on_policy import TrainOnPolicyEpochConfig
from lever_pipe.experiment.plans import agents, models, policies, training
from lever_pipe.experiment.reward import MeasureRewardsConfig
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime import plan

ROOT = Path(__file__).parents[3]
RULES = (ROOT / "workflow/rules/common.smk").read_text()
# Training reads the rewarded groups.
REWARDED = {"reward_groups", "measure_rewards"}
DRAWING = "train_on_policy_epoch"
CONTINUED = "train_continued_epoch"
SUPERVISED = "train_sft_epoch"
SMALL_ARM = {"preset": "world", "seeds": [0, 1], "rce_epochs": 2, "base_rce_epochs": [1, 2], "grpo_epochs": 2}

ON_POLICY = {"seeds": [1], "epochs": 2, "kl_betas": [0, 0.3]}
SIMILAR = ("similar_image", "similar_question", "similar_both")


def constraint(wildcard: str) -> str:
    """Return the regular expression of a wildcard in the workflow."""
    trained = re.search(r"^TRAINED = (\(.*?^\))", RULES, re.MULTILINE | re.DOTALL)
    found = re.search(rf"^    {wildcard}=(.+),$", RULES, re.MULTILINE)
    assert trained is not None
    assert found is not None
    return str(eval(found[1], {"TRAINED": ast.literal_eval(trained[1])}))


def experiment(**changed: Any) -> Experiment:
    """Return the shipped experiment with whole sections replaced by their update."""
    values = dict(shipped())
    for section, update in changed.items():
        values[section] = {**values.get(section, {}), **update} if isinstance(update, dict) else update
    return parse_experiment(values)


def shipped_with(name: str) -> Experiment:
    """Return the default experiment, or the one that results from a configuration file on top of it."""
    values = read_file(ROOT / "config.yaml")
    if name:
        update_config(values, read_file(ROOT / f"config/{name}.yaml"))
    return parse_experiment(values)


def small(**changed: Any) -> Experiment:
    arm = SMALL_ARM | {"kl_betas": [0, 0.145], "long_epochs": 3, "long_kl_betas": [0.145], "long_seeds": [0, 5]}
    arm |= {"on_policy": ON_POLICY}
    return experiment(**({"arms": [arm]} | changed))


def wildcards_of(name: str) -> dict[str, str]:
    return dict(part.split("~", 1) for part in name.split("/") if "~" in part)


OF_SPLIT = ("prepare_examples", "embed_examples", "sample_pools")


def jobs(given: Experiment) -> list[tuple[str, dict[str, str]]]:
    """Return every job of an experiment as stage and wildcards."""
    names: list[tuple[str, dict[str, str]]] = [
        ("generate_rl_data", {"shard": str(shard)}) for shard in range(given.rl_data.n_shards)
    ]
    for name in policies.trained(given):
        wild = wildcards_of(name)
        names += [("reward_groups", {"preset": wild["preset"], "rewarded": r}) for r in ("groups", "grpo_groups")]
        names.append(("initialise_selector", {"preset": wild["preset"], "seed": wild["seed"]}))
        run = name.split("/")[1]
        objective = {"objective": run} if PolicyName.parse(name).mode == "on_policy" else {}
        names.append((f"train_{'on_policy' if objective else run}_epoch", wild | objective))
    for name in policies.evaluated(given):
        if name.startswith("baseline/"):
            names.append(("select_baseline", {"baseline": name.removeprefix("baseline/")}))
        else:
            names.append(("select_demonstrations", {"selected": name}))
    of_batch = ("answer_prompts", "score_answers")
    names += [(stage, {"batch": batch}) for batch in policies.batches(given) for stage in of_batch]
    names += emulation_jobs(given) + agent_jobs(given)
    taken = {stage for stage, _ in names}
    emulated = set() if given.emulate else {"emulate_untouched", "score_emulation"}
    unplanned = {"emulate_selections", "train_distil_epoch", CONTINUED, DRAWING, SUPERVISED}
    absent = taken | emulated | unplanned | {"select_own", "emulate_first_items", "evaluate_served"}
    of_split = {"generate_world": ("train", "val")} | dict.fromkeys(OF_SPLIT, ("train", "eval"))
    names += [(stage, {"split": split}) for stage, splits in of_split.items() for split in splits]
    names += [(stage, {}) for stage in all_stages() if stage not in absent | of_split.keys()]
    return names


def emulation_jobs(given: Experiment) -> list[tuple[str, dict[str, str]]]:
    """Return the jobs of the emulation that have wildcards."""
    if given.emulate is None:
        return []
    names: list[tuple[str, dict[str, str]]] = [("answer_prompts", {"batch": "emulation"})]
    return names + [("emulate_selections", {"arm": arm}) for arm in ARMS]


def agent_jobs(given: Experiment) -> list[tuple[str, dict[str, str]]]:
    """Return the jobs of study `intention` that have wildcards, whichever engine runs them."""
    runs = [{"arm": run.arm, "seed": str(run.seed)} for run in agents.runs(given.intention)]
    return [(s, run) for run in runs for s in ("train_agent", "evaluate_agent", "render_verl", "convert_verl")]


Specs = dict[tuple[str, tuple[tuple[str, str], ...]], str]
KNOWN: dict[str, Specs] = {}
"""Cached by experiment: most tests compare a change with the same one."""


def specs(given: Experiment) -> Specs:
    key = given.model_dump_json()
    if key not in KNOWN:
        KNOWN[key] = {(s, tuple(sorted(w.items()))): plan.spec_of(given, s, w) for s, w in jobs(given)}
    return KNOWN[key]


COLLECTING = {
    *("collect_results", "collect_lineage", "compare_policies", "measure_drift", "collect_samples"),
    *("score_answers", "answer_controls"),
}
"""Stages that read the files of all policies, or of a batch of them; they need the names to detect missing ones."""
PAGE = {"build_report"}
"""It prints the settings of every preset."""
SHOWING = PAGE | {"plot_figures"}
"""Stages that depend on the arms because they display them."""


def changed_stages(one: Experiment, other: Experiment) -> set[str]:
    """Return the stages with a job that both experiments have under different identities."""
    first, second = specs(one), specs(other)
    return {key[0] for key in first.keys() & second.keys() if first[key] != second[key]}


def test_every_policy_name_is_read_back() -> None:
    given = small(arms=[SMALL_ARM | {"on_policy": ON_POLICY}])
    names = [*policies.evaluated(given), *policies.trained(given)]
    assert [PolicyRef.of(name).name for name in names] == names
    refs = {(ref.stage, ref.mode) for ref in map(PolicyRef.of, names)}
    on_policy_refs = {("grpo", "on_policy"), ("reinforce", "on_policy")}
    assert refs == {("baseline", ""), ("rce", ""), ("grpo", "offline"), ("distil", "")} | on_policy_refs


def test_names_fit_the_wildcards_of_the_workflow() -> None:
    for wildcard, names in (("policy", policies.evaluated(experiment())), ("trained", policies.trained(experiment()))):
        assert [name for name in names if not re.fullmatch(constraint(wildcard), name)] == []
        assert not re.fullmatch(constraint(wildcard), "preset~p/on_policy/base~5/seed~0/epoch~1")  # it has no beta


def test_batches_hold_every_evaluated_policy_once() -> None:
    arms = [{"preset": "published"}, {"preset": "world", "seeds": [0], "kl_betas": [0, 0.15]}]
    given = experiment(arms=arms, baselines={"n_random_draws": 3})
    names = policies.evaluated(given)
    assert len(names) == len(set(names))
    for batch in policies.batches(given):
        assert all(PolicyName.parse(name).batch == batch for name in policies.policies_of(given, batch))
    assert sorted(n for b in policies.batches(given) for n in policies.policies_of(given, b)) == sorted(names)
    # 5 RCE epochs and 6 betas x 3 epochs for 3 seeds; 5 and 2 x 3 for one; zero-shot, 3 draws, 3 similarities, oracle
    assert len(names) == 3 * (5 + 18) + (5 + 6) + 8
    with pytest.raises(KeyError):
        policies.policies_of(given, "preset~none/seed~0")


def test_long_runs_share_their_first_epochs_with_the_evaluated_ones() -> None:
    given = small()
    long, names = policies.long_runs(given.arms[0]), policies.evaluated(given)
    assert len(long) == 2 * 1 * 2 * 3  # bases, betas, seeds, epochs
    shared = [name for name in long if name in names]
    assert {PolicyRef.of(name).epoch for name in shared} == {1, 2}
    assert {PolicyRef.of(name).seed for name in shared} == {0}
    trained = policies.trained(given)
    assert len(trained) == len(set(trained))
    assert set(long) <= set(trained)
    assert not [name for name in trained if name.startswith("baseline/")]


def test_chosen_epochs_of_long_runs_are_evaluated_once() -> None:
    long = {"long_epochs": 5, "long_kl_betas": [0.145], "long_seeds": [1, 5], "long_evaluated": [2, 3, 5]}
    arm = small(arms=[SMALL_ARM | {"kl_betas": [0, 0.145]} | long]).arms[0]
    assert policies.grpo_policies(arm, 0) == policies.grpo_policies(small().arms[0], 0)
    more = [f"preset~world/grpo/base~{b}/beta~0.145/seed~1/epoch~{e}" for b in (1, 2) for e in (3, 5)]
    assert sorted({*policies.grpo_policies(arm, 1)} - {*policies.grpo_policies(small().arms[0], 1)}) == more
    assert len(policies.grpo_policies(arm, 1)) == len(set(policies.grpo_policies(arm, 1)))
    assert set(more) <= set(policies.long_runs(arm))


@pytest.mark.parametrize(
    ("changed", "stages"),
    [
        ({"emulate": {"head_seed": 12345}}, {"emulate_selections"} | PAGE),
        ({"emulate": None}, PAGE),
        ({"report": {"title": "Another"}}, {"build_report", "build_grid"}),
        ({"results": "elsewhere"}, set()),
        ({"data": {"world": shipped()["data"]["world"] | {"seed": 12345}}}, {"generate_world", "collect_samples"}),
        ({"baselines": {"seed": 12345}}, {"select_baseline"}),
        ({"baselines": {"n_random_draws": 9}}, COLLECTING - {"collect_results", "answer_controls"}),
        ({"pools": {"seed": 12345}}, {"sample_pools", "import_rl_data"}),  # an import fills its pools up
        ({"evaluation": {"n_random_subsets": 997}}, {"score_answers"}),
        ({"evaluation": {"primary": {"shots": 1}}}, {"compare_policies"}),
        (
            {"evaluation": {"normalise_references": "always"}},
            {"generate_rl_data", "train_distil_epoch", "select_baseline", "score_answers", "score_emulation", DRAWING}
            | {"measure_pools", "answer_controls", "collect_samples"},
        ),
        ({"data": {"answers": "raw"}}, {"prepare_examples", "collect_samples"}),
        ({"encoder": {"batch_size": 8}}, {"embed_examples"}),
        (
            {"lvlm": {"wave_tokens": 12345}},
            {"generate_rl_data", "search_beams", "answer_prompts", "answer_controls", DRAWING},
        ),
        ({"rl_data": {"n_random": 63}}, {"propose_trajectories"}),
        ({"beams": {"rank": "last_gain"}}, {"search_beams"}),
        ({"presets": {"world": shipped()["presets"]["world"] | {"reward": {"mode": "hard_only"}}}}, REWARDED | PAGE),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_change_reaches_the_stages_that_read_it_and_no_other(changed: dict[str, Any], stages: set[str]) -> None:
    assert changed_stages(small(), small(**changed)) == stages & set(all_stages())


@pytest.mark.parametrize(
    "changed",
    [
        {"data": {"n_eval": 300}, "evaluation": {"samples": [100]}},
        {"data": {"world": shipped()["data"]["world"] | {"n_eval": 900}}},
        {"data": {"eval_subset": "random", "eval_seed": 1}},
        {"evaluation": {"shots": [1]}},
        {"evaluation": {"samples": [100]}},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_what_is_asked_in_the_evaluation_is_in_no_identity_of_training(changed: dict[str, Any]) -> None:
    first, second = specs(small()), specs(small(**changed))
    differing = {key for key in first if first[key] != second[key]}
    assert differing
    training = ("train_", "initialise_", "reward_", "propose_", "generate_rl_", "merge_rl_", "search_", "emulate_g")
    assert not [key for key in differing if key[0].startswith(training) or ("split", "train") in key[1]]


def test_a_preset_reaches_its_own_epochs_only() -> None:
    arms = [
        {"preset": p, "seeds": [0], "rce_epochs": 1, "base_rce_epochs": [1], "grpo_epochs": 1} for p in ("world", "b")
    ]
    presets = {"world": shipped()["presets"]["world"], "b": {}}
    base = small(arms=arms, presets=presets, emulate=None)
    other = small(arms=arms, presets=presets | {"b": {"grpo": {"clip_epsilon": 0.1}}}, emulate=None)
    first, second = specs(base), specs(other)
    differing = {key for key in first if first[key] != second[key]}
    assert {stage for stage, _ in differing} == {"train_grpo_epoch"} | PAGE
    assert all(("preset", "b") in wildcards for stage, wildcards in differing if stage not in PAGE)


def test_answers_are_told_of_last_epochs_and_of_what_they_start_from() -> None:
    trained = [name for name in policies.sampled(small()) if not name.startswith("baseline/")]
    assert [name.removeprefix("preset~world/") for name in trained if "seed~0" in name] == [
        "rce/seed~0/epoch~1",
        "rce/seed~0/epoch~2",
        *(f"grpo/base~{base}/beta~{beta}/seed~0/epoch~2" for base in (1, 2) for beta in ("0", "0.145")),
    ]
    assert {name.split("/")[1] for name in trained} == {"rce", "grpo", "on_policy", "reinforce", "distil"}
    assert set(policies.sampled(small())) >= {f"baseline/{name}" for name in policies.baselines(small())}


def test_more_betas_epochs_and_seeds_change_only_what_collects() -> None:
    grown = SMALL_ARM | {"kl_betas": [0, 0.05, 0.145], "seeds": [0, 1, 2], "rce_epochs": 4, "grpo_epochs": 5}
    base, more = specs(small()), specs(small(arms=[grown, {"preset": "published"}]))
    assert len(more) > len(base)
    differing = {key[0] for key in base.keys() & more.keys() if base[key] != more[key]}
    assert differing == COLLECTING | SHOWING


SELECTOR = ("lever.networks.cross_attention", "lever.heads.static")
SELECTING = {
    *("initialise_selector", "select_demonstrations", "emulate_untouched", "emulate_selections"),
    *(f"train_{objective}_epoch" for objective in ("sft", "rce", "grpo", "on_policy", "distil", "continued")),
}
"""Stages that build a selector."""


def test_plugins_belong_to_the_code_of_the_stages_that_load_them() -> None:
    given = small()
    plugins = {stage: plugins_of(config_of(given, stage, wild)) for stage, wild in jobs(given)}
    assert {stage: value for stage, value in plugins.items() if value} == {
        stage: value
        for stage, value in {
            "prepare_examples": ("lever.datasets.okvqa",),
            "embed_examples": ("lever.encoders.clip",),
            "sample_pools": ("lever.samplers.uniform",),
            "generate_rl_data": ("lvlms.qwen2_5_vl",),
            "search_beams": ("lvlms.qwen2_5_vl",),
            "answer_prompts": ("lvlms.qwen2_5_vl",),
            "answer_controls": ("lvlms.qwen2_5_vl",),
            "prepare_tasks": ("intention.sources.synthetic",),
            "warm_start_agent": ("intention.codecs.word",),
            "train_on_policy_epoch": ("lvlms.qwen2_5_vl", *SELECTOR),
            **dict.fromkeys(SELECTING & {stage for stage, _ in jobs(given)} - {"train_on_policy_epoch"}, SELECTOR),
            "train_agent": ("intention.simulators.rule", "intention.codecs.word"),
            "evaluate_agent": ("intention.simulators.rule", "intention.codecs.word"),
            "evaluate_start": ("intention.simulators.rule", "intention.codecs.word"),
        }.items()
        if stage in all_stages()
    }


def test_the_spec_parses_back_into_the_stage_config() -> None:
    given = small()
    for stage, wild in jobs(given):
        config = config_of(given, stage, wild)
        values = json.loads(plan.spec_of(given, stage, wild))["config"]
        assert type(config).model_validate(values) == config, stage


def test_emulated_policies_are_apart_from_the_study() -> None:
    given = small()
    names = policies.emulated(given)
    assert len(names) == len(set(names)) == 3 * 5 * 3  # arms, betas, epochs
    assert not set(names) & {*policies.evaluated(given), *policies.trained(given)}
    assert "emulation" not in policies.batches(given)
    assert policies.policies_of(given, "emulation") == names
    assert {PolicyName.parse(name).batch for name in names} == {"emulation"}
    assert policies.emulated(given, "head") == [name for name in names if name.split("/")[1] == "head"]
    assert re.fullmatch(constraint("batch"), "emulation")


def test_an_arm_has_its_own_problems_and_no_other() -> None:
    configs = {arm: config_of(small(), "emulate_selections", {"arm": arm}).model_dump() for arm in ARMS}
    switched_on = {arm: (c["head_seed"] is not None, c["pool_items"] is not None) for arm, c in configs.items()}
    assert switched_on == {"none": (False, False), "head": (True, False), "pool": (False, True)}


def test_on_policy_runs_stand_next_to_the_offline_ones() -> None:
    given = small()
    arm = given.arms[0]
    betas, extra_objectives = (
        ["on_policy/base~{b}/beta~0", "on_policy/base~{b}/beta~0.3"],
        ["reinforce/base~{b}/beta~0"],
    )
    runs = [*betas, *extra_objectives, "distil/base~{b}"]
    expected = [
        f"preset~world/{run.format(b=base)}/seed~1/epoch~{epoch}" for base in (1, 2) for run in runs for epoch in (1, 2)
    ]
    assert policies.on_policy_policies(arm, 1) == expected
    assert policies.on_policy_policies(arm, 0) == []
    assert policies.policies_of(given, "preset~world/seed~1")[-len(expected) :] == expected
    assert set(expected) <= set(policies.trained(given)) & set(policies.evaluated(given))
    stepped = [name for name in expected if "distil" not in name]
    assert sorted(policies.stepped(given)) == sorted(stepped)  # the policy draws what they learn from


def test_extra_objectives_and_their_absence() -> None:
    for extra_objectives, runs in (([], {"on_policy"}), (["distil"], {"on_policy", "distil"})):
        given = small(arms=[SMALL_ARM | {"on_policy": ON_POLICY | {"extra_objectives": extra_objectives}}])
        assert {name.split("/")[1] for name in policies.on_policy_policies(given.arms[0], 1)} == runs
    without = small(arms=[SMALL_ARM])
    assert policies.on_policy_policies(without.arms[0], 1) == policies.stepped(without) == []
    assert {ref.mode for ref in map(PolicyRef.of, policies.trained(without))} == {"", "offline"}
    with_runs = small(arms=[SMALL_ARM | {"on_policy": ON_POLICY}])
    others = [
        name for name in policies.trained(with_runs) if name not in policies.on_policy_policies(with_runs.arms[0], 1)
    ]
    assert others == policies.trained(without)
    first, second = specs(without), specs(with_runs)
    assert {key[0] for key in first.keys() & second.keys() if first[key] != second[key]} <= COLLECTING | SHOWING


def presets_with(section: str, **changed: Any) -> dict[str, Any]:
    world = shipped()["presets"]["world"]
    return shipped()["presets"] | {"world": world | {section: world.get(section, {}) | changed}}


@pytest.mark.parametrize(
    ("section", "changed", "stages"),
    [
        ("on_policy", {"group": 5}, [DRAWING]),
        ("on_policy", {"shots": [1, 2]}, [DRAWING]),
        ("on_policy", {"learning_rate": 1e-5}, [DRAWING]),
        ("on_policy", {"reward": {"mode": "soft_only", "soft": 0.3}}, [DRAWING, "measure_rewards"]),
        ("distil", {"passes": 7}, ["train_distil_epoch"]),
        ("grpo", {"clip_epsilon": 0.1}, ["train_grpo_epoch"]),
        ("grpo", {"learning_rate": 1e-5}, ["train_grpo_epoch", CONTINUED]),
        ("rce", {"temperature_start": 3.0}, ["train_rce_epoch"]),
        ("sft", {"passes": 7}, [SUPERVISED]),
    ],
)
def test_settings_of_one_objective_rerun_its_epochs_alone(
    section: str, changed: dict[str, Any], stages: list[str]
) -> None:
    arm = SMALL_ARM | {
        "on_policy": ON_POLICY | {"extra_objectives": ["reinforce", "distil", "continued"]},
        "sft_epochs": 2,
    }
    base, other = (specs(small(arms=[arm], **more)) for more in ({}, {"presets": presets_with(section, **changed)}))
    differing = {key for key in base if base[key] != other[key]}
    assert {stage for stage, _ in differing} == set(stages) | PAGE
    for stage in (stage for stage in stages if stage.endswith("_epoch")):
        every_epoch = {key for key in base if key[0] == stage and ("preset", "world") in key[1]}
        assert {key for key in differing if key[0] == stage} == every_epoch


def test_controls_are_asked_of_a_draw_and_of_a_run_of_each_kind_with_its_least_beta() -> None:
    arm = SMALL_ARM | {"kl_betas": [0.3, 0.1], "on_policy": ON_POLICY | {"seeds": [0], "kl_betas": [0.2, 1]}}
    found = policies.controlled(small(arms=[arm, {"preset": "published"}]))
    untrained = [name for name in found if name.startswith("baseline/")]
    trained = [name for name in found if "~" in name]
    assert untrained == [f"baseline/{name}" for name in ("random-0", *SIMILAR, "oracle")]
    assert all(name.startswith("preset~world/") and "/seed~0/" in name for name in trained)
    assert {(of.kind, of.base, of.beta) for of in map(PolicyName.parse, trained)} == {
        ("rce", None, None),
        *(("grpo", base, 0.1) for base in (1, 2)),
        *(("on_policy", base, 0.2) for base in (1, 2)),
        *(("reinforce", base, 0.0) for base in (1, 2)),
        *(("distil", base, None) for base in (1, 2)),
    }


def test_of_supervised_epochs_all_are_trained_and_the_last_is_evaluated() -> None:
    given = small(arms=[SMALL_ARM | {"sft_epochs": 3}])
    names = [f"preset~world/sft/seed~{seed}/epoch~{epoch}" for seed in (0, 1) for epoch in (1, 2, 3)]
    assert [name for name in policies.trained(given) if "/sft/" in name] == [
        names[2],
        names[5],
        *names[:2],
        *names[3:5],
    ]
    assert [name for name in policies.evaluated(given) if "/sft/" in name] == [names[2], names[5]]
    assert {name for name in policies.sampled(given) if "/sft/" in name} == {names[2], names[5]}
    assert PolicyName.parse(names[2]).batch == "preset~world/seed~0"
    assert names[2] in policies.policies_of(given, "preset~world/seed~0")
    assert not [name for name in policies.trained(small()) if "/sft/" in name]
    base, more = specs(small(arms=[SMALL_ARM])), specs(given)
    assert {key[0] for key in base.keys() & more.keys() if base[key] != more[key]} <= COLLECTING | SHOWING


def test_rce_may_start_from_a_supervised_epoch() -> None:
    world = shipped()["presets"]["world"] | {"rce_from_sft_epoch": 2}
    presets = shipped()["presets"] | {"world": world}
    arms = [SMALL_ARM | {"sft_epochs": 2}]
    base, other = specs(small(arms=arms)), specs(small(arms=arms, presets=presets))
    assert {key[0] for key in base if base[key] != other[key]} == {"train_rce_epoch"} | PAGE


def test_beams_are_searched_for_queries_that_have_pools() -> None:
    few = {"rl_data": {"n_queries": 300}}
    assert small(**few).beams.anchors == 800  # without supervised learning there is no search
    with pytest.raises(ConfigError, match=r"beams\.anchors: must be at most rl_data\.n_queries=300, got 800"):
        small(**few, arms=[SMALL_ARM | {"sft_epochs": 1}])


def test_grpo_may_have_a_reward_of_its_own_and_keeps_its_base() -> None:
    own = presets_with("grpo", reward={"mode": "soft_only"})
    arms = [SMALL_ARM | {"on_policy": ON_POLICY | {"extra_objectives": ["continued"]}}]
    given, other = small(arms=arms), small(arms=arms, presets=own)
    base, more = specs(given), specs(other)
    differing = {key for key in base if base[key] != more[key]}
    used = {"reward_groups", "train_grpo_epoch", CONTINUED, "measure_rewards", *PAGE}
    assert {stage for stage, _ in differing} == used
    assert [dict(key[1])["rewarded"] for key in differing if key[0] == "reward_groups"] == ["grpo_groups"]
    assert [training.grpo_groups(one, "world") for one in (given, other)] == ["groups", "grpo_groups"]


def test_what_a_run_does_not_read_reruns_nothing() -> None:
    """REINFORCE has no clip, and only standardised advantages are divided and limited."""
    clip = {"clip_epsilon": 0.3}
    base, other = (specs(one) for one in (small(), small(presets=presets_with("on_policy", **clip))))
    differing = {dict(key[1])["objective"] for key in base if key[0] == DRAWING and base[key] != other[key]}
    assert differing == {"on_policy"}
    limits = {"advantage_std_floor": 0.3, "advantage_clamp": 2.0}
    centred = (presets_with("on_policy", advantages="centred", **more) for more in ({}, limits))
    one, other = (specs(small(presets=presets)) for presets in centred)
    assert {key[0] for key in one if one[key] != other[key]} <= PAGE  # it prints them all the same


def epoch_config(given: Experiment, objective: str, **wildcards: str) -> TrainOnPolicyEpochConfig:
    wild = {"preset": "world", "base": "2", "beta": "0.3", "seed": "1", "epoch": "2", "objective": objective}
    config = config_of(given, DRAWING, wild | wildcards)
    assert isinstance(config, TrainOnPolicyEpochConfig)
    return config


def test_an_on_policy_epoch_is_what_its_name_and_preset_say() -> None:
    given = small(presets=presets_with("on_policy", updates=3, advantages="leave_one_out"))
    grpo, score = epoch_config(given, "on_policy"), epoch_config(given, "reinforce", beta="0")
    assert grpo.on_policy == given.presets["world"].on_policy
    named = (grpo.objective, grpo.preset, grpo.base_rce_epoch, grpo.kl_beta, grpo.seed, grpo.epoch)
    assert named == ("on_policy", "world", 2, 0.3, 1, 2)
    assert grpo.lvlm.model_identity
    assert grpo.selector == given.presets["world"].selector
    # REINFORCE: one step on the samples, and a baseline without the query's own samples; the rest is shared.
    own = {"updates": 1, "batch_queries": 10, "advantages": "batch"}
    assert score.on_policy.model_dump() == grpo.on_policy.model_dump() | own
    assert (score.objective, score.kl_beta) == ("reinforce", 0.0)


@pytest.mark.parametrize(
    "name", ["", "smoke", "findings", "world_b", "grid", "okvqa_qwen2_5_vl_3b", "vqav2_qwen2_5_vl_3b"]
)
def test_reinforce_takes_as_many_optimiser_steps_as_grpo_next_to_it(name: str) -> None:
    given = shipped_with(name)
    for arm in given.arms:
        if arm.on_policy is None:
            continue
        n_train = int(given.presets[arm.preset].train_share * given.rl_data.n_queries)
        both = [epoch_config(given, objective, preset=arm.preset).on_policy for objective in ("on_policy", "reinforce")]
        grpo, score = (math.ceil(n_train / each.batch_queries) * each.updates for each in both)
        assert score == grpo > 0
        assert both[1].updates == 1


def test_the_rewards_that_are_measured_are_those_in_use_and_the_dense_ones() -> None:
    given = small()
    config = config_of(given, "measure_rewards", {})
    assert isinstance(config, MeasureRewardsConfig)
    preset = given.presets["world"]
    assert config.rewards[:2] == (preset.reward, preset.on_policy.reward)
    assert len(set(map(repr, config.rewards))) == len(config.rewards)
    assert {"soft_only", "expected_only", "accuracy_plus_expected"} <= {reward.mode for reward in config.rewards}
    assert config.selected == tuple(sorted({preset.grpo.top_k_first_epoch, preset.grpo.top_k}))
    assert config.z_clamp == preset.grpo.z_clamp


@pytest.mark.parametrize(
    ("kind", "named", "expected"),
    [
        ("qwen2_5_vl", "auto", "qwen2_5_vl"),
        ("internvl", "auto", "hf"),
        (None, "auto", "hf"),
        ("qwen2_5_vl", "hf", "hf"),
        ("internvl", "vllm", "vllm"),
    ],
)
def test_a_small_folders_family_answers_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, named: str, expected: str
) -> None:
    monkeypatch.setattr(models, "parameters_of", lambda _: 1000)
    if kind:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    values = shipped() | {"lvlm": shipped()["lvlm"] | {"model": str(tmp_path), "engine": named}}
    experiment = parse_experiment(values)
    assert models.lvlm_config(experiment.lvlm).engine == expected
    config = config_of(experiment, "generate_rl_data", {"shard": "0"})
    assert f"lvlms.{expected}" in plugins_of(config)


@pytest.mark.parametrize(("is_there", "expected"), [(True, "vllm"), (False, "hf")])
def test_vllm_answers_on_a_gpu_if_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, is_there: bool, expected: str
) -> None:
    monkeypatch.setattr(models, "find_spec", lambda _: is_there or None)
    monkeypatch.setattr(models, "parameters_of", lambda _: models.EMBEDDED_PARAMETERS + 1)
    experiment = parse_experiment(shipped())
    assert models.lvlm_config(experiment.lvlm).engine == expected
    assert models.asks_vllm(experiment) == is_there
