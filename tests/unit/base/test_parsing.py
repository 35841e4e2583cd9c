from __future__ import annotations

from typing import Any

import pytest

from lever_pipe.base import plugins
from lever_pipe.base.errors import ConfigError, UnknownNameError
from lever_pipe.base.plugins import plugin
from lever_pipe.experiment.studies import Experiment, parse_experiment


def lines(values: Any) -> list[str]:
    """Return the lines of the ConfigError, one for each problem."""
    with pytest.raises(ConfigError) as problem:
        parse_experiment(values)
    head, *messages = str(problem.value).split("\n  ")
    assert f"found {len(messages)} problem" in head
    return messages


def test_all_problems_are_told_at_once() -> None:
    values = {
        "data": {"n_eval": 0, "reader": "okvqas"},
        "presets": {"published": {"selector": {"dropout": 2}}},
        "arms": [{"preset": "published", "kl_betas": [0.1, -0.2], "seeds": [1, 1]}, {"seeds": [2, 2]}],
        "evaluation": {"samples": [0]},
        "lvlm": {"engine": "zzz"},
    }
    assert [line.partition(":")[0] for line in lines(values)] == [
        *("data.reader", "data.n_eval", "lvlm.engine", "presets.published.selector.dropout"),
        *("arms[0].seeds", "arms[0].kl_betas[1]", "arms[1].preset", "arms[1].seeds", "evaluation.samples[0]"),
    ]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"evaluatoin": {}}, "evaluatoin: unknown key. Did you mean 'evaluation'?"),
        ({"presets": {"a": {"grpo": {"adaptive_kl": {"lo": 1}}}}},
         "presets.a.grpo.adaptive_kl.lo: unknown key. Did you mean 'low'?"),
        ({"n_eval": 30},
         "n_eval: unknown key. It belongs to a section: data.n_eval, data.world.n_eval, grid.data.NAME.n_eval."),
        ({"kl_betas": [0]}, "kl_betas: unknown key. It belongs to a section: arms[].kl_betas, "),
        ({"report": {"language": "en_"}}, "report.language: must"),
        ({"presets": {"published": {"reward": {"mode": "hard_plus_sft"}}}}, "presets.published.reward.mode: must"),
        ({"arms": [{"preset": "a", "seeds": []}]}, "arms[0].seeds: must"),
        ({"presets": {"published": {}, "a/b": {}}}, "presets.a/b.[key]: must"),
        (3, "(whole file): must"),
        ({"data": {"n_eval": "1e3"}}, "data.n_eval: must"),
        ({"studies": "lever"}, "studies: must"),
        ({"arms": {"preset": None}}, "arms: must"),
        ({"presets": [True]}, "presets: must"),
        ({"emulate": 5}, "emulate: must"),
        ({"report": {"language": None}}, "report.language: must"),
        ({"results": None}, "results: must"),
        ({"forked_jobs": 1}, "forked_jobs: must"),
        ({"lvlm": {"member": "hf"}}, "lvlm.member: unknown key. It is called 'engine' now."),
        ({"encoder": {"member": "clip"}}, "encoder.member: unknown key. It is called 'plugin' now."),
        ({"arms": [{"preset": "a", "on_policy": {"marks": []}}]},  # an old name
         "arms[0].on_policy.marks: unknown key. It is called 'ex"),
        ({"numerics": "same_everywhere"},  # an old name
         "numerics: must"),
        ({"data": {"world": {"skew": True}}}, "data.world.skew: must"),
    ],
)  # fmt: skip
def test_a_problem_names_its_key_what_it_is_and_what_is_meant(values: Any, line: str) -> None:
    (found,) = lines(values)
    assert found.startswith(line)


ARM = {"preset": "published"}
NO_PROPOSER = {"n_beams": 0, "temperatures": [], "n_retrieval": 0, "n_random": 0}
WORLD = {"source": "world"}
ON_POLICY = "presets.published.on_policy"


def drawing(on_policy: dict[str, Any]) -> dict[str, Any]:
    """Return an experiment whose arm has on-policy runs with these settings."""
    return {"presets": {"published": {"on_policy": on_policy}}, "arms": [ARM | {"on_policy": {}}]}


REPLAYED = {"presets": {"published": {"grpo": {"replays": True}, "on_policy": {"shots": [2]}}}}
RULES: list[tuple[dict[str, Any], str]] = [
    ({"arms": [ARM | {"base_rce_epochs": [7, 2]}]}, "arms[0].base_rce_epochs"),
    *(
        ({"arms": [ARM | {key: [1, 2, 1]}]}, f"arms[0].{key}")
        for key in ("seeds", "base_rce_epochs", "long_seeds", "long_evaluated")
    ),
    *(
        ({"arms": [ARM | {key: [0, 0.0]}]}, f"arms[0].{key}")
        for key in ("kl_betas", "long_kl_betas")
    ),
    ({"evaluation": {"shots": [2, 1]}}, "evaluation.shots"),
    ({"evaluation": {"samples": [5, 5]}}, "evaluation.samples"),
    ({"presets": {"published": {"selector": {"heads": 3}}}}, "presets.published.selector.heads"),
    ({"arms": [{"preset": "worl"}]}, "arms[0].preset"),
    ({"arms": [ARM, ARM]}, "arms[1].preset"),
    ({"evaluation": {"primary": {"shots": 5}}}, "evaluation.primary.shots"),
    ({"evaluation": {"primary": {"samples": 300}}}, "evaluation.primary.samples"),
    ({"data": {"n_eval": 799}}, "evaluation.samples"),
    ({"pools": {"size": 3}}, "evaluation.shots"),
    ({"pools": {"size": 4}, "rl_data": {"shots": 5}}, "rl_data.shots"),
    ({"lvlm": {"prompt": {"query": "What?"}}}, "lvlm.prompt.query"),
    ({"lvlm": {"prompt": {"query": "{question} {answer}"}}}, "lvlm.prompt.query"),
    ({"lvlm": {"prompt": {"query": "{question} {"}}}, "lvlm.prompt.query"),
    ({"lvlm": {"prompt": {"query": "{question:d}"}}}, "lvlm.prompt.query"),
    ({"lvlm": {"prompt": {"demonstration": "{question}"}}}, "lvlm.prompt.demonstration"),
    ({"data": {"train_image_name": "a.jpg"}}, "data.train_image_name"),
    ({"data": {"eval_image_name": "{id}.jpg"}}, "data.eval_image_name"),
    ({"data": {"eval_image_name": "{image_id!s:.0}"}}, "data.eval_image_name"),
    ({"data": {"eval_image_name": "{image_id"}}, "data.eval_image_name"),
    ({"data": WORLD | {"n_eval": 801}}, "data.n_eval"),
    ({"data": WORLD | {"world": {"n_train": 799}}}, "rl_data.n_queries"),
    ({"rl_data": NO_PROPOSER}, "rl_data"),
    ({"rl_data": NO_PROPOSER | {"temperatures": [1.0], "n_samples_per_temperature": 0}}, "rl_data"),
    ({"rl_data": {"n_queries": 3}}, "rl_data.n_shards"),
    ({"rl_data": {"rescore": True}}, "rl_data.rescore"),
    ({"rl_data": {"rescore": True, "import_from": "x.json", "diversity_budget": 2}}, "rl_data.diversity_budget"),
    ({"arms": [ARM | {"seeds": [0, 1], "on_policy": {"seeds": [1, 2]}}]}, "arms[0].on_policy.seeds[1]"),
    ({"arms": [ARM | {"long_epochs": 5, "long_evaluated": [5, 6]}]}, "arms[0].long_evaluated"),
    ({"arms": [ARM | {"on_policy": {"epochs": 2, "evaluated": [3]}}]}, "arms[0].on_policy.evaluated"),
    (REPLAYED | {"arms": [ARM]}, "arms[0].on_policy"),
    (REPLAYED | {"arms": [ARM | {"seeds": [0, 1], "on_policy": {"seeds": [0]}}]}, "arms[0].on_policy"),
    (REPLAYED | {"arms": [ARM | {"seeds": [0], "on_policy": {"kl_betas": [0.1]}}]}, "arms[0].on_policy"),
    (REPLAYED | {"arms": [ARM | {"seeds": [0], "on_policy": {"epochs": 2}}]}, "arms[0].grpo_epochs"),
    ({"presets": {"published": {"grpo": {"replays": True}}}, "arms": [ARM | {"seeds": [0], "on_policy": {}}]},
     "presets.published.on_policy.shots"),
    *(
        ({"arms": [ARM | {"on_policy": {key: values}}]}, f"arms[0].on_policy.{key}")
        for key, values in (("seeds", [0, 0]), ("kl_betas", [0, 0.0]), ("extra_objectives", ["distil", "distil"]))
    ),
    (drawing({"shots": [2, 1]}), f"{ON_POLICY}.shots"),
    (drawing({"shots": [1, 1]}), f"{ON_POLICY}.shots"),
    (drawing({"group": 1}), f"{ON_POLICY}.group"),
    (drawing({"shots": [1, 16]}) | {"pools": {"size": 15}}, f"{ON_POLICY}.shots"),
    ({"presets": {"published": {"selector": {"head": "gru"}}}}, "emulate.preset"),
    ({"store": {"folder": "~nobody at all/x"}}, "store.folder"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "key"), RULES, ids=[key for _, key in RULES])
def test_a_broken_rule_is_the_one_problem_and_names_its_key(values: dict[str, Any], key: str) -> None:
    (message,) = lines(values)
    assert message.startswith(f"{key}: must ")
    with pytest.raises(ValueError, match=r"(rules_broken|value_error)"):  # built directly, an experiment is guarded too
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
        {"presets": {"published": {"on_policy": {"shots": [16]}}}, "pools": {"size": 15}},  # no policy samples
        {"presets": {"published": {"selector": {"head": "gru"}}}, "emulate": None},
        {"presets": {"published": {}, "gru": {"selector": {"head": "gru"}}}},
        {"arms": [ARM | {"seeds": [3, 4], "on_policy": {"seeds": [4], "extra_objectives": []}}]},
    ],
    ids=str,
)
def test_what_a_rule_allows(values: dict[str, Any]) -> None:
    parse_experiment(values)


def test_a_plugin_that_is_none_is_refused_before_it_is_imported() -> None:
    with pytest.raises(UnknownNameError, match="zzz"):
        plugin("lvlms", "zzz")


def test_the_old_environment_variable_is_refused_with_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.RENAMED_VARIABLE, "somewhere")
    with pytest.raises(ConfigError, match=f"{plugins.VARIABLE}=FOLDER"):
        plugins.require_current_name()
