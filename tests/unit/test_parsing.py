from __future__ import annotations

from typing import Any, get_args

import pytest

from lever_pipe.config import Experiment, Reward, RewardModeName
from lever_pipe.errors import ConfigError, UnknownMemberError
from lever_pipe.parsing import available, nearest, parse_experiment, parse_model, require_member
from lever_pipe.rewards import REWARD_MODES


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
    assert "found 4 faults:" in text
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
        ({"report": {"zzzzzz": 1}}, "report.zzzzzz: unknown key; known keys: title."),
    ],
)
def test_the_nearest_key_is_suggested_at_every_depth(values: dict[str, Any], line: str) -> None:
    text = faults(values)
    assert "found 1 fault:" in text
    assert f"\n  {line}" in text


def test_a_missing_key_has_no_value_to_show() -> None:
    assert "\n  arms[0].preset: field required.\n" in faults({"arms": [{}]})


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


def test_model_validators_speak_without_echoing_the_section() -> None:
    base = {"preset": "published"}
    cases = [
        (
            {"arms": [base | {"base_rce_epochs": [7]}]},
            "arms[0]: base_rce_epochs must be at most rce_epochs=5, got [7].",
        ),
        ({"arms": [base | {"seeds": [1, 2, 1]}]}, "arms[0]: seeds must not repeat a value, got [1, 2, 1]."),
        ({"arms": [base | {"kl_betas": [0, 0.0]}]}, "arms[0]: kl_betas must not repeat a value, got [0.0, 0.0]."),
        ({"evaluation": {"shots": [2, 1]}}, "evaluation: shots must rise without repeats, got [2, 1]."),
        ({"presets": {"published": {"selector": {"heads": 3}}}}, "presets.published.selector: heads must divide width"),
        ({"arms": [{"preset": "worl"}]}, "(whole file): arms[0].preset must be one of ['published'], got 'worl'."),
        ({"arms": [base, base]}, "(whole file): arms must name distinct presets"),
        ({"data": {"n_eval": 700}}, "(whole file): evaluation.samples must be at most data.n_eval=700, got 800."),
        ({"pools": {"size": 3}}, "(whole file): evaluation.shots and rl_data.shots must be at most pools.size."),
        ({"presets": {"published": {}, "a/b": {}}}, "(whole file): presets must be named by letters, digits and _"),
    ]
    for values, line in cases:
        text = faults(values)
        assert f"\n  {line}" in text
        assert text.count("got ") <= 1, text


def test_an_empty_list_is_too_short_and_a_bad_element_is_told_once() -> None:
    assert "arms[0].seeds: tuple should have at least 1 item" in faults({"arms": [{"preset": "a", "seeds": []}]})
    text = faults({"evaluation": {"samples": [0]}})
    assert "found 1 fault:" in text
    assert "evaluation.samples[0]: input should be greater than or equal to 1, got 0." in text


def test_a_reward_mode_is_one_of_the_functions() -> None:
    assert set(get_args(RewardModeName)) == set(REWARD_MODES)
    assert Reward().mode in REWARD_MODES
    text = faults({"presets": {"published": {"reward": {"mode": "hard_plus_sft"}}}})
    assert "presets.published.reward.mode: input should be 'hard_plus_soft'" in text
    assert "got 'hard_plus_sft'. Did you mean 'hard_plus_soft'?" in text


def test_defaults_parse_and_are_frozen() -> None:
    experiment = parse_model(Experiment, {}, source="x")
    assert experiment == Experiment()
    with pytest.raises(ValueError, match="frozen"):
        experiment.data.n_eval = 3  # type: ignore[misc]


def test_an_unknown_member_is_suggested() -> None:
    with pytest.raises(UnknownMemberError) as fault:
        parse_experiment({"data": {"reader": "okvqas"}, "lvlm": {"member": "zzz"}})
    text = str(fault.value)
    assert "data.reader: 'okvqas' is none of okvqa, vqav2; did you mean 'okvqa'?" in text
    assert "lvlm.member: 'zzz' is none of qwen2_5_vl\n" in text
    with pytest.raises(UnknownMemberError, match=r"'zzz' is none of .* Name one of them, or add the module\."):
        require_member("lvlms", "zzz")
    require_member("stages", "score_answers")


def test_members_are_the_public_modules_of_a_folder() -> None:
    members = available("datasets")
    assert {"okvqa", "vqav2"} <= set(members)
    assert not [name for name in members if name.startswith("_") or name == "protocol"]


def test_nothing_is_suggested_when_nothing_is_near() -> None:
    assert nearest("sedes", ["seeds", "title"]) == "seeds"
    assert nearest("zzz", ["seeds", "title"]) is None
