from __future__ import annotations

from pathlib import Path

import pytest
from builders import shipped

from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime import lvlm_work as work
from lever_pipe.runtime import plan


def experiment(**changes: object) -> Experiment:
    values = shipped()
    return parse_experiment({**values, "emulate": None, **changes})


def test_rl_data_are_counted_by_their_proposals() -> None:
    # 1,600 queries of 2 beams, 20 samples of one temperature, 2 retrieved and 2 random pairs; each shows 3 images.
    found = work.lvlm_work(experiment(), {"generate_rl_data": 2})
    assert found.prompts == 1600 * 26
    assert found.tokens == 1600 * 26 * (80 + 3 * (391 + 30))


def test_evaluation_asks_every_policy_at_every_number_of_shots() -> None:
    given = experiment()
    policies, batches = len(plan.evaluated(given)), len(plan.batches(given))
    found = work.lvlm_work(given, {"answer_prompts": batches})
    assert found.prompts == policies * 800 * 4
    assert found.tokens == policies * 800 * sum(80 + (shots + 1) * 421 for shots in (1, 2, 3, 4))


def test_on_policy_runs_draw_a_group_a_query_and_take_the_lengths_in_turn() -> None:
    # 3 seeds at 3 betas and REINFORCE of one seed, 3 epochs each, 8 selections of 0.8 x 1,600 queries.
    epochs = (3 * 3 + 1) * 3
    found = work.lvlm_work(experiment(), {"train_on_policy_epoch": epochs})
    assert found.prompts == epochs * 1280 * 8
    assert found.tokens == epochs * 1280 * 8 * (80 + 3.5 * 421)
    one = work.lvlm_work(experiment(), {"train_on_policy_epoch": 1})
    assert one.prompts == 1280 * 8


def test_beam_search_asks_each_beam_with_each_candidate() -> None:
    # 800 anchors: nothing and 64 candidates, then 5 beams alone and with 63 candidates each.
    arms = [{"preset": "world", "sft_epochs": 1, "grpo_epochs": 1}]
    found = work.lvlm_work(experiment(arms=arms), {"search_beams": 1})
    assert found.prompts == 800 * 385
    assert found.tokens == 800 * (385 * (80 + 421) + (64 + 5) * 421 + 5 * 63 * 2 * 421)
    assert work.lvlm_work(experiment(), {"search_beams": 1}) == work.LvlmWork(0, 0)


@pytest.mark.parametrize("jobs", [{}, {"train_grpo_epoch": 5}])
def test_rules_that_ask_nothing_count_nothing(jobs: dict[str, int]) -> None:
    assert work.lvlm_work(experiment(), jobs) == work.LvlmWork(0, 0)
    assert work.lvlm_work(experiment(studies=["intention"]), {"answer_prompts": 3}) == work.LvlmWork(0, 0)


def test_imported_rl_data_ask_nothing_unless_rescored(tmp_path: Path) -> None:
    values = shipped()
    values["rl_data"]["import_from"] = str(tmp_path / "rl.json")
    given = parse_experiment({**values, "emulate": None})
    assert work.lvlm_work(given, {"generate_rl_data": 2}).prompts == 0
    values["rl_data"]["rescore"] = True
    again = parse_experiment({**values, "emulate": None})
    assert work.lvlm_work(again, {"generate_rl_data": 2}).prompts > 0


def test_operations_are_two_a_parameter_and_token() -> None:
    assert work.LvlmWork(1, 1000).flop(3_750_000_000) == 7.5e12
