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
        ({"report": {"language": "en_"}}, "report.language: must be 'en' or 'zh', got 'en_'. Did you mean"),
        ({"presets": {"published": {"reward": {"mode": "hard_plus_sft"}}}},
         "presets.published.reward.mode: must be a module of lever_pipe/lever/rewards, got 'hard_plus_sft'. Did you"),
        ({"arms": [{"preset": "a", "seeds": []}]}, "arms[0].seeds: must have at least 1 entry, got []."),
        ({"presets": {"published": {}, "a/b": {}}}, "presets.a/b.[key]: must match pattern"),
        (3, "(whole file): must be a mapping, KEY: VALUE, got 3."),
        ({"data": {"n_eval": "1e3"}}, "data.n_eval: must be a whole number, got '1e3'."),
        ({"studies": "lever"}, "studies: must be a list, got 'lever'."),
        ({"arms": {"preset": None}}, "arms: must be a list, got {preset: null}."),
        ({"presets": [True]}, "presets: must be a mapping, KEY: VALUE, got [true]."),
        ({"emulate": 5}, "emulate: must be a mapping, KEY: VALUE, got 5."),
        ({"report": {"language": None}}, "report.language: must be 'en' or 'zh', got null."),
        ({"results": None}, "results: must be a text, got null."),
        ({"forked_jobs": 1}, "forked_jobs: must be true or false, got 1."),
        ({"lvlm": {"member": "hf"}}, "lvlm.member: unknown key. It is called 'engine' now."),
        ({"encoder": {"member": "clip"}}, "encoder.member: unknown key. It is called 'plugin' now."),
        ({"arms": [{"preset": "a", "on_policy": {"marks": []}}]},  # an old name
         "arms[0].on_policy.marks: unknown key. It is called 'ex"),
        ({"numerics": "same_everywhere"},  # an old name
         "numerics: must be 'portable' or 'fastest', got 'same_everywhere'. It is called 'p"),
        ({"data": {"world": {"skew": True}}}, "data.world.skew: must be a number or a text, got true."),
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
    ({"arms": [ARM | {"base_rce_epochs": [7, 2]}]}, "arms[0].base_rce_epochs: must be at most rce_epochs=5, got 7."),
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
    ({"presets": {"published": {"selector": {"heads": 3}}}},
     "presets.published.selector.heads: must divide width=256, got 3."),
    ({"arms": [{"preset": "worl"}]}, "arms[0].preset: must be one of ['published'], got 'worl'."),
    ({"arms": [ARM, ARM]}, "arms[1].preset: must differ from that of earlier arms, got 'published'."),
    ({"evaluation": {"primary": {"shots": 5}}},
     "evaluation.primary.shots: must be one of evaluation.shots=[1, 2, 3, 4], got 5."),
    ({"evaluation": {"primary": {"samples": 300}}},
     "evaluation.primary.samples: must be one of evaluation.samples=[100, 200, 400, 800], got 300."),
    ({"data": {"n_eval": 799}}, "evaluation.samples: must be at most data.n_eval=799, got 800."),
    ({"pools": {"size": 3}}, "evaluation.shots: must be at most pools.size=3, got 4."),
    ({"pools": {"size": 4}, "rl_data": {"shots": 5}}, "rl_data.shots: must be at most pools.size=4, got 5."),
    ({"lvlm": {"prompt": {"query": "What?"}}}, "lvlm.prompt.query: must hold {question} and no other field, got"),
    ({"lvlm": {"prompt": {"query": "{question} {answer}"}}}, "lvlm.prompt.query: must hold {question} and no other"),
    ({"lvlm": {"prompt": {"query": "{question} {"}}}, "lvlm.prompt.query: must hold {question} and no other field"),
    ({"lvlm": {"prompt": {"query": "{question:d}"}}}, "lvlm.prompt.query: must hold {question} and no other field"),
    ({"lvlm": {"prompt": {"demonstration": "{question}"}}},
     "lvlm.prompt.demonstration: must hold {question} and {answer} and no other field, got '{question}'."),
    ({"data": {"train_image_name": "a.jpg"}}, "data.train_image_name: must be a file name with the one field image_id"),
    ({"data": {"eval_image_name": "{id}.jpg"}}, "data.eval_image_name: must be a file name with the one field"),
    ({"data": {"eval_image_name": "{image_id!s:.0}"}}, "data.eval_image_name: must be a file name with the one field"),
    ({"data": {"eval_image_name": "{image_id"}}, "data.eval_image_name: must be a file name with the one field"),
    ({"data": WORLD | {"n_eval": 801}}, "data.n_eval: must be at most data.world.n_eval=800, got 801."),
    ({"data": WORLD | {"world": {"n_train": 799}}},
     "rl_data.n_queries: must be at most data.world.n_train=799, got 800."),
    ({"rl_data": NO_PROPOSER}, "rl_data: must propose some selection, got n_beams=0"),
    ({"rl_data": NO_PROPOSER | {"temperatures": [1.0], "n_samples_per_temperature": 0}},
     "rl_data: must propose some selection, got n_beams=0"),
    ({"rl_data": {"n_queries": 3}}, "rl_data.n_shards: must be at most rl_data.n_queries=3, got 4."),
    ({"arms": [ARM | {"seeds": [0, 1], "on_policy": {"seeds": [1, 2]}}]},
     "arms[0].on_policy.seeds[1]: must be one of the arm's seeds=[0, 1], got 2. Drop it or add it"),
    ({"arms": [ARM | {"long_epochs": 5, "long_evaluated": [5, 6]}]},
     "arms[0].long_evaluated: must be at most long_epochs=5, got 6. Lower it or raise long_epochs."),
    ({"arms": [ARM | {"on_policy": {"epochs": 2, "evaluated": [3]}}]},
     "arms[0].on_policy.evaluated: must be at most epochs=2, got 3."),
    (REPLAYED | {"arms": [ARM]}, "arms[0].on_policy: must have runs of KL_BETA 0 for each seed of the arm"),
    (REPLAYED | {"arms": [ARM | {"seeds": [0, 1], "on_policy": {"seeds": [0]}}]},
     "arms[0].on_policy: must have runs of KL_BETA 0 for each seed of the arm"),
    (REPLAYED | {"arms": [ARM | {"seeds": [0], "on_policy": {"kl_betas": [0.1]}}]},
     "arms[0].on_policy: must have runs of KL_BETA 0 for each seed of the arm"),
    (REPLAYED | {"arms": [ARM | {"seeds": [0], "on_policy": {"epochs": 2}}]},
     "arms[0].grpo_epochs: must be at most on_policy.epochs=2, got 3."),
    ({"presets": {"published": {"grpo": {"replays": True}}}, "arms": [ARM | {"seeds": [0], "on_policy": {}}]},
     "presets.published.on_policy.shots: must be one length with grpo.replays: true, got [1, 2, 3, 4]."),
    *(
        ({"arms": [ARM | {"on_policy": {key: values}}]}, f"arms[0].on_policy.{key}: must not repeat a value, got")
        for key, values in (("seeds", [0, 0]), ("kl_betas", [0, 0.0]), ("extra_objectives", ["distil", "distil"]))
    ),
    (drawing({"shots": [2, 1]}), f"{ON_POLICY}.shots: must rise without repeats, got [2, 1]. Write [1, 2]."),
    (drawing({"shots": [1, 1]}), f"{ON_POLICY}.shots: must rise without repeats, got [1, 1]. Write [1]."),
    (drawing({"group": 1}), f"{ON_POLICY}.group: must be at least 2 with advantages='standardised', got 1. Raise it"),
    (drawing({"shots": [1, 16]}) | {"pools": {"size": 15}}, f"{ON_POLICY}.shots: must be at most pools.size=15, got"),
    ({"presets": {"published": {"selector": {"head": "gru"}}}},
     "emulate.preset: must name a preset with selector.head: static, got 'published'."),
    ({"store": {"folder": "~nobody at all/x"}},
     "store.folder: must name a folder for it alone, got '~nobody"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "line"), RULES, ids=[line.split(":")[0] for _, line in RULES])
def test_a_broken_rule_is_the_one_problem_and_says_what_to_do(values: dict[str, Any], line: str) -> None:
    (message,) = lines(values)
    assert message.startswith(line)
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
