from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from builders import shipped

from lever_pipe.base.errors import ConfigError, UnknownMemberError
from lever_pipe.base.members import available
from lever_pipe.base.parsing import parse_model, require_member
from lever_pipe.base.sections import nearest
from lever_pipe.experiment.config import ArmSettings, Reward, RewardModeName
from lever_pipe.experiment.data_config import Data, Pools
from lever_pipe.experiment.evaluation_config import EvaluationSettings
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.lever.rewards import REWARD_MODES

ROOT = Path(__file__).parents[3]


def lines(values: Any) -> list[str]:
    """Return the lines of the ConfigError, one for each fault."""
    with pytest.raises(ConfigError) as fault:
        parse_experiment(values)
    head, *told = str(fault.value).split("\n  ")
    assert f"found {len(told)} fault" in head
    return told


def faults(values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as fault:
        parse_model(Experiment, values, source="config.yaml")
    return str(fault.value)


def test_all_faults_are_told_at_once() -> None:
    text = faults(
        {
            "data": {"n_eval": 0},
            "presets": {"published": {"selector": {"dropout": 2}}},
            "arms": [{"preset": "published", "kl_betas": [0.1, -0.2]}],
            "evaluation": {"samples": "many"},
        }
    )
    assert "found 4 faults. " in text
    assert "\n  data.n_eval: input should be greater than or equal to 1, got 0." in text
    assert "\n  presets.published.selector.dropout: input should be less than 1, got 2." in text
    assert "\n  arms[0].kl_betas[1]: input should be greater than or equal to 0, got -0.2. Drop the sign." in text
    assert "\n  evaluation.samples: " in text
    assert "got 'many'" in text


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"evaluatoin": {}}, "evaluatoin: unknown key; did you mean 'evaluation'?"),
        ({"lvlm": {"decode": {"num_beam": 3}}}, "lvlm.decode.num_beam: unknown key; did you mean 'num_beams'?"),
        ({"arms": [{"preset": "published", "sedes": [1]}]}, "arms[0].sedes: unknown key; did you mean 'seeds'?"),
        (
            {"presets": {"published": {"rce": {"learnin_rate": 1.0}}}},
            "presets.published.rce.learnin_rate: unknown key; did you mean 'learning_rate'?",
        ),
        ({"report": {"zzzzzz": 1}}, "report.zzzzzz: unknown key; known keys: guard, language, title."),
    ],
)
def test_the_nearest_key_is_suggested_at_every_depth(values: dict[str, Any], line: str) -> None:
    text = faults(values)
    assert "found 1 fault. " in text
    assert f"\n  {line}" in text


def test_a_missing_key_has_no_value_to_show() -> None:
    assert "\n  arms[0].preset: field required. Add it." in faults({"arms": [{}]})


def test_numbers_that_yaml_reads_as_text() -> None:
    # YAML 1.1 wants a point and a sign: 1e-5 and 1e3 arrive as text. A number field takes the first all the same.
    values = {"presets": {"published": {"rce": {"learning_rate": "1e-5"}}}}
    assert parse_model(Experiment, values, source="x").presets["published"].rce.learning_rate == 1e-5
    text = faults({"presets": {"published": {"rce": {"batch_queries": "1e3", "learning_rate": "tiny"}}}})
    for key, seen in (("batch_queries", "1e3"), ("learning_rate", "tiny")):
        line = next(line for line in text.splitlines() if key in line)
        assert f"got '{seen}'" in line
        assert "Write a number; YAML reads" in line


def test_the_sign_is_dropped_only_where_that_helps() -> None:
    assert faults({"data": {"world": {"seed": -1}}}).count("Drop the sign.") == 1
    assert "Drop the sign." not in faults({"lvlm": {"decode": {"length_penalty": -7}}})  # its bound is -5


ARM = {"preset": "published"}
NO_PROPOSER = {"n_beams": 0, "temperatures": [], "n_retrieval": 0, "n_random": 0}
WORLD = {"source": "world"}
DRAWN = "presets.published.on_policy"


def drawing(on_policy: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment whose arm has on-policy runs with these settings."""
    return {"presets": {"published": {"on_policy": on_policy}}, "arms": [ARM | {"on_policy": {}}]}


RULES: list[tuple[dict[str, Any], str]] = [
    ({"arms": [ARM | {"base_rce_epochs": [7, 2]}]}, "arms[0].base_rce_epochs: must be at most rce_epochs=5, got [7]."),
    *(
        ({"arms": [ARM | {key: [1, 2, 1]}]}, f"arms[0].{key}: must not repeat a value, got [1, 2, 1].")
        for key in ("seeds", "base_rce_epochs", "long_seeds", "long_evaluated")
    ),
    *(
        ({"arms": [ARM | {key: [0, 0.0]}]}, f"arms[0].{key}: must not repeat a value, got [0.0, 0.0].")
        for key in ("kl_betas", "long_kl_betas")
    ),
    ({"evaluation": {"shots": [2, 1]}}, "evaluation.shots: must rise without repeats, got [2, 1]. Write [1, 2]."),
    ({"evaluation": {"samples": [5, 5]}}, "evaluation.samples: must rise without repeats, got [5, 5]. Write [5]."),
    (
        {"presets": {"published": {"selector": {"heads": 3}}}},
        "presets.published.selector.heads: must divide width=256, got 3.",
    ),
    ({"arms": [{"preset": "worl"}]}, "arms[0].preset: must be one of ['published'], got 'worl'."),
    ({"arms": [ARM, ARM]}, "arms[1].preset: must differ from the presets of earlier arms, got 'published'."),
    (
        {"presets": {"published": {}, "a/b": {}}},
        "presets.a/b: must be named by 1 to 64 letters, digits and _ (a folder), got",
    ),
    (
        {"evaluation": {"primary": {"shots": 5}}},
        "evaluation.primary.shots: must be one of evaluation.shots=[1, 2, 3, 4], got 5.",
    ),
    (
        {"evaluation": {"primary": {"samples": 300}}},
        "evaluation.primary.samples: must be one of evaluation.samples=[100, 200, 400, 800], got 300.",
    ),
    ({"data": {"n_eval": 799}}, "evaluation.samples: must be at most data.n_eval=799, got 800."),
    ({"pools": {"size": 3}}, "evaluation.shots: must be at most pools.size=3, got 4."),
    ({"pools": {"size": 4}, "rl_data": {"shots": 5}}, "rl_data.shots: must be at most pools.size=4, got 5."),
    ({"lvlm": {"prompt": {"query": "What?"}}}, "lvlm.prompt.query: must hold {question} and no other field, got"),
    ({"lvlm": {"prompt": {"query": "{question} {answer}"}}}, "lvlm.prompt.query: must hold {question} and no other"),
    ({"lvlm": {"prompt": {"query": "{question} {"}}}, "lvlm.prompt.query: must hold {question} and no other field"),
    ({"lvlm": {"prompt": {"query": "{question} {}"}}}, "lvlm.prompt.query: must hold {question} and no other field"),
    ({"lvlm": {"prompt": {"query": "{question:d}"}}}, "lvlm.prompt.query: must hold {question} and no other field"),
    (
        {"lvlm": {"prompt": {"demonstration": "{question}"}}},
        "lvlm.prompt.demonstration: must hold {question} and {answer} and no other field, got '{question}'.",
    ),
    ({"data": {"train_image_name": "a.jpg"}}, "data.train_image_name: must be a file name with the one field image_id"),
    ({"data": {"eval_image_name": "{id}.jpg"}}, "data.eval_image_name: must be a file name with the one field"),
    ({"data": {"eval_image_name": "{image_id[0]}"}}, "data.eval_image_name: must be a file name with the one field"),
    ({"data": {"eval_image_name": "{image_id"}}, "data.eval_image_name: must be a file name with the one field"),
    ({"data": WORLD | {"n_eval": 801}}, "data.n_eval: must be at most data.world.n_eval=800, got 801."),
    (
        {"data": WORLD | {"world": {"n_train": 799}}},
        "rl_data.n_queries: must be at most data.world.n_train=799, got 800.",
    ),
    ({"rl_data": NO_PROPOSER}, "rl_data: must propose some selection, got n_beams=0"),
    (
        {"rl_data": NO_PROPOSER | {"temperatures": [1.0], "n_samples_per_temperature": 0}},
        "rl_data: must propose some selection, got n_beams=0",
    ),
    ({"rl_data": {"n_queries": 3}}, "rl_data.n_shards: must be at most rl_data.n_queries=3, got 4."),
    (
        {"arms": [ARM | {"seeds": [0, 1], "on_policy": {"seeds": [1, 2]}}]},
        "arms[0].on_policy.seeds: must be some of the arm's seeds=[0, 1], got [2]. Drop these or add them",
    ),
    (
        {"arms": [ARM | {"long_epochs": 5, "long_evaluated": [5, 6]}]},
        "arms[0].long_evaluated: must be at most long_epochs=5, got [6]. Drop these or train longer.",
    ),
    (
        {"arms": [ARM | {"on_policy": {"seeds": [0, 1], "mark_seeds": [1, 2]}}]},
        "arms[0].on_policy.mark_seeds: must be some of seeds=[0, 1], got [2]. Drop these or add them to seeds.",
    ),
    *(
        ({"arms": [ARM | {"on_policy": {key: values}}]}, f"arms[0].on_policy.{key}: must not repeat a value, got")
        for key, values in (("seeds", [0, 0]), ("kl_betas", [0, 0.0]), ("marks", ["distil", "distil"]))
    ),
    (drawing({"shots": [2, 1]}), f"{DRAWN}.shots: must rise without repeats, got [2, 1]. Write [1, 2]."),
    (drawing({"shots": [1, 1]}), f"{DRAWN}.shots: must rise without repeats, got [1, 1]. Write [1]."),
    (drawing({"group": 1}), f"{DRAWN}.group: must be at least 2 with advantages='standardised', got 1. Raise it"),
    (drawing({"shots": [1, 16]}) | {"pools": {"size": 15}}, f"{DRAWN}.shots: must be at most pools.size=15, got 16."),
    (
        {"presets": {"published": {"selector": {"head": "gated"}}}},
        "emulate.preset: must name a preset with selector.head: static, got 'published'.",
    ),
    ({"store": {"folder": "~nobody at all/x"}}, "store.folder: must begin with a known home, got ~nobody at all/x."),
]


@pytest.mark.parametrize(("values", "line"), RULES, ids=[line.split(":")[0] for _, line in RULES])
def test_a_broken_rule_is_the_one_fault_and_says_what_to_do(values: dict[str, Any], line: str) -> None:
    (told,) = lines(values)
    assert told.startswith(line)
    assert told.endswith(".")
    assert told.count(". ") >= 1  # a remedy follows
    with pytest.raises(ValueError, match=r"(rule|value)_fault"):  # built directly, an experiment is guarded too
        Experiment(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"data": WORLD},
        {"data": {"world": {"n_eval": 8, "n_train": 64}}},  # files do not look at the world's size
        {"rl_data": NO_PROPOSER | {"n_random": 1}},
        {"rl_data": NO_PROPOSER | {"temperatures": [1.0], "n_samples_per_temperature": 1}},
        {"rl_data": NO_PROPOSER | {"import_from": "rl.json", "n_queries": 2}},  # imported data are not proposed
        {"rl_data": {"n_queries": 4, "n_shards": 4}},
        {"lvlm": {"prompt": {"query": "{{{question}}}"}}},
        {"store": {"folder": "~/store"}},
        {"pools": {"size": 4}},
        {"data": {"train_image_name": "{image_id}"}},
        drawing({"shots": [1, 16]}) | {"pools": {"size": 16}},
        drawing({"group": 1, "advantages": "batch"}),
        {"presets": {"published": {"on_policy": {"shots": [16]}}}, "pools": {"size": 15}},  # nobody draws
        {"presets": {"published": {"selector": {"head": "gated"}}}, "emulate": None},
        {"presets": {"published": {}, "gated": {"selector": {"head": "gated"}}}},
        {"arms": [ARM | {"seeds": [3, 4], "on_policy": {"seeds": [4], "marks": []}}]},
    ],
    ids=str,
)
def test_what_a_rule_allows(values: dict[str, Any]) -> None:
    parse_experiment(values)


def test_faults_of_fields_rules_and_members_come_together() -> None:
    told = lines(
        {
            "data": {"source": "world", "n_eval": 900, "n_answers": 0, "reader": "okvqas"},
            "pools": {"size": 3},
            "presets": {"published": {"selector": {"heads": 3, "dropout": 2}}},
            "arms": [
                ARM | {"seeds": [1, 1], "base_rce_epochs": [9], "kl_betas": [-0.1]},
                {"seeds": [2, 2]},
                {"preset": "other", "rce_epochs": 0, "base_rce_epochs": [9]},
            ],
            "evaluation": {"samples": [1000], "seed": -1},
            "lvlm": {"member": "zzz"},
        }
    )
    assert [line.split(":")[0] for line in told] == [
        "data.n_answers",
        "presets.published.selector.dropout",
        "arms[0].seeds",
        "arms[0].kl_betas[0]",
        "arms[1].preset",
        "arms[1].seeds",
        "arms[2].rce_epochs",  # unknown, so base_rce_epochs=9 is not judged by it
        "evaluation.seed",
        "data.n_eval",
        "presets.published.selector.heads",
        "arms[0].base_rce_epochs",
        "arms[2].preset",
        "evaluation.samples",
        "evaluation.shots",
        "data.reader",
        "lvlm.member",
    ]


@pytest.mark.parametrize(
    ("values", "paths"),
    [
        (3, ["(whole file)"]),
        ({"arms": 3}, ["arms"]),
        ({"arms": [3, {"preset": "a"}]}, ["arms[0]", "arms[1].preset"]),
        ({"presets": [1]}, ["presets"]),
        ({"presets": {"a": 3}, "arms": [{"preset": "a"}], "emulate": None}, ["presets.a"]),
        ({"data": 3, "pools": None}, ["data", "pools"]),
    ],
)
def test_values_of_another_shape_hide_no_fault_and_invent_none(values: Any, paths: list[str]) -> None:
    assert [line.split(":")[0] for line in lines(values)] == paths


def test_sections_built_directly_are_guarded() -> None:
    for build in (
        lambda: ArmSettings(preset="a", seeds=(1, 1)),
        lambda: EvaluationSettings(shots=(2, 1)),
        lambda: Experiment(data=Data(n_eval=5)),
        lambda: Experiment(pools=Pools(size=2)),
    ):
        with pytest.raises(ValueError, match="got "):
            build()


def test_the_readme_shows_the_real_message() -> None:
    values = shipped()
    values["lvlm"] = values["lvlm"] | {"wave_token": 1}
    values["pools"] = values["pools"] | {"size": 0}
    with pytest.raises(ConfigError) as fault:
        parse_experiment(values)
    assert f"\n```\n{fault.value}\n```\n" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_an_empty_list_is_too_short_and_a_bad_element_is_told_once() -> None:
    assert "arms[0].seeds: tuple should have at least 1 item" in faults({"arms": [{"preset": "a", "seeds": []}]})
    text = faults({"evaluation": {"samples": [0]}})
    assert "found 1 fault. " in text
    assert "evaluation.samples[0]: input should be greater than or equal to 2, got 0." in text


def test_a_reward_mode_is_one_of_the_functions() -> None:
    assert set(get_args(RewardModeName)) == set(REWARD_MODES)
    assert Reward().mode in REWARD_MODES
    text = faults({"presets": {"published": {"reward": {"mode": "hard_plus_sft"}}}})
    assert "presets.published.reward.mode: must be one of hard_plus_soft, hard_plus_soft_v2, " in text
    assert "got 'hard_plus_sft'. Did you mean 'hard_plus_soft'?" in text


def test_defaults_parse_and_are_frozen() -> None:
    experiment = parse_model(Experiment, {}, source="x")
    assert experiment == Experiment()
    with pytest.raises(ValueError, match="frozen"):
        experiment.data.n_eval = 3  # type: ignore[misc]


def test_an_unknown_member_is_suggested() -> None:
    reader, member = lines({"data": {"reader": "okvqas"}, "lvlm": {"member": "zzz"}})
    assert reader == (
        "data.reader: must be a module of lever_pipe/lever/datasets, got 'okvqas' (did you mean 'okvqa'?), "
        "which is none of okvqa, vqav2. Name one of them, or add the module."
    )
    assert member.startswith("lvlm.member: must be a module of lever_pipe/lvlms, got 'zzz', which is none of ")
    with pytest.raises(UnknownMemberError, match=r"'zzz', which is none of .* Name one of them, or add the module\."):
        require_member("lvlms", "zzz")
    require_member("lvlms", "hf")


def test_keys_of_an_optional_section_are_suggested() -> None:
    (line,) = lines({"presets": {"published": {"grpo": {"adaptive_kl": {"lo": 1}}}}})
    assert line == "presets.published.grpo.adaptive_kl.lo: unknown key; did you mean 'low'?"


def test_members_are_the_public_modules_of_a_folder() -> None:
    members = available("lever/datasets")
    assert {"okvqa", "vqav2"} <= set(members)
    assert not [name for name in members if name.startswith("_") or name == "protocol"]


def test_nothing_is_suggested_when_nothing_is_near() -> None:
    assert nearest("sedes", ["seeds", "title"]) == "seeds"
    assert nearest("zzz", ["seeds", "title"]) is None
