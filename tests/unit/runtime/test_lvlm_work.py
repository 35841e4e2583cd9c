"""A plan's number of LVLM requests, against numbers counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lever_pipe.base.artefacts import Call
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime.lvlm_work import LvlmWork, hours, lvlm_work, text
from lever_pipe.runtime.snakemake_adapter import PlannedJob

ROOT = Path(__file__).parents[3]
PRODUCTION = {"model": "models/Qwen2.5-VL-3B-Instruct", "decode": {"num_beams": 3, "max_new_tokens": 5}}
PARAMETERS = 3.75e9


def experiment(**lvlm: Any) -> Experiment:
    """Return 10 RL queries in 3 shards of 2 + 1 x 3 + 4 + 5 selections and 6 more, and 8 questions at 1 and 3 shots."""
    rl_data = {"n_queries": 10, "n_shards": 3, "shots": 2, "diversity_budget": 6, "n_random": 5}
    rl_data |= {"n_beams": 2, "temperatures": [1.0], "n_samples_per_temperature": 3, "n_retrieval": 4}
    values = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    values["data"] |= {"n_eval": 8, "world": values["data"]["world"] | {"n_eval": 8}}
    values["evaluation"] |= {"shots": [1, 3], "samples": [8]}
    values |= {"rl_data": rl_data, "lvlm": values["lvlm"] | lvlm, "pools": {"size": 16}}
    values["beams"] = {"anchors": 4, "size": 5, "shots": 2}
    values["presets"]["world"]["on_policy"] = {"group": 4, "shots": [1, 2]}
    values["presets"]["world"]["train_share"] = 0.8
    return parse_experiment(values)


def job(rule: str, inputs: dict[str, list[str]] | None = None, **wildcards: str) -> PlannedJob:
    call = Call(rule, {}, "", inputs or {}, {}, Path("run.json"))
    return PlannedJob(rule, wildcards, reason="", threads=1, resources={}, call=call)


RULES = {
    # 10 queries of 20 selections; each shows 2 demonstrations and the query.
    "generate_rl_data": ([job("generate_rl_data", shard=str(shard)) for shard in range(3)], 200, 200 * 3),
    # 4 anchors: no demonstration 4, then 4 x 16; of 5 beams each 4 x 5 with one and 4 x 5 x 15 with two.
    "search_beams": ([job("search_beams")], 4 + 64 + 20 + 300, 4 * 1 + 64 * 2 + 20 * 2 + 300 * 3),
    # 8 queries train, 4 draws each, of 1 or 2 demonstrations as often.
    "train_on_policy_epoch": ([job("train_on_policy_epoch", preset="world")], 32, 80),
    # 2 policies, 8 questions, twice.
    "answer_prompts": ([job("answer_prompts", {"selections": ["a", "b"]})], 32, 16 * 2 + 16 * 4),
}


@pytest.mark.parametrize("rule", RULES)
def test_prompts_tokens_and_operations_are_those_counted_by_hand(rule: str) -> None:
    """An example has 460 tokens; each of 10 given answers is one more prompt; 15 tokens of a prompt are generated."""
    jobs, prompts, examples = RULES[rule]
    given = 0 if rule == "answer_prompts" else 10
    (found,) = lvlm_work(jobs, experiment(**PRODUCTION))
    tokens = (1 + given) * 460 * examples + 15 * prompts
    assert found == LvlmWork(
        "Qwen2.5-VL-3B-Instruct", rule, prompts, given * prompts, tokens, pytest.approx(2 * PARAMETERS * tokens)
    )
    # 30 % of 989e12 operations a second.
    assert hours([found])["H100"] == pytest.approx(2 * PARAMETERS * tokens / (0.3 * 989e12) / 3600)


def test_what_is_skipped_and_what_asks_nothing_is_left_out() -> None:
    skipped = [each._replace(skipped="in the store") for each in RULES["search_beams"][0]]
    assert lvlm_work([*skipped, job("build_report")], experiment()) == []
    assert text([]) == ""
