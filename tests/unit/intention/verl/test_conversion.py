from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from verl_examples import RECORDED, REWARD, console, convert_config

from lever_pipe.base.errors import RecordError
from lever_pipe.intention.verl.conversion import NAMES, Converted, convert, read_log

PUBLISHED = Path(__file__).parents[4] / "resources" / "reference" / "userrl-published.csv"
AS_LOGGED = {
    "val_reward": REWARD,
    "pg_loss": "actor/pg_loss",
    "kl_loss": "actor/kl_loss",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
    "mean_sequence_length_tokens_as_labelled": "global_seqlen/mean",
    "response_length_tokens": "response_length/mean",
}
"""The documents' names -> the keys that the numbers were read from."""


def converted(folder: Path, text: str, **changed: Any) -> Converted:
    path = folder / "console.log"
    path.write_text(text)
    return convert(read_log(path), convert_config(**changed))


def one_step(folder: Path, *, rounded: bool = True, **values: float) -> dict[str, float]:
    keys = {key.replace("__", "/"): value for key, value in values.items()}
    text = console([(1, keys | {REWARD: 1.8})], rounded=rounded)
    return converted(folder, text).metrics[0].values


def test_the_recorded_run_by_hand() -> None:
    found = convert(read_log(RECORDED), convert_config())
    assert [row.step for row in found.metrics] == [1, 2, 3, 4, 5]
    assert found.metrics[0].values == {
        "pg_loss": 0.280,
        "kl_loss": 0.003,
        "entropy_all": 0.214,
        "grad_norm": 1.098,
        "clip_fraction": 0,
        "dual_clip_fraction": 0,
        "reward": 1.584,
        "reward_max": 3.4,
        "reward_min": 0,
        "tokens_per_rank": 59839.333,
        "tokens_total": 179518,  # 59,839.333 x 3 = 179,517.999
        "prompt_length": 1030.646,
        "response_length": 2709.312,
        "seconds_step": 201.48,
        "tokens_per_second_per_device": 297,
        "tokens_per_second": 891,
        "mfu_update": 0.306,
        "seconds_rollout": 120.5,
        "seconds_log_probs": 21.25,
        "seconds_reference": 12.125,
        "seconds_update": 45.75,
    }
    # tokens a second x seconds x devices = tokens: 297 x 201.48 x 3 = 179,518.7
    assert found.metrics[0].values["tokens_per_second"] * 201.48 == pytest.approx(179518, rel=1e-5)
    assert [(row.step, row.values) for row in found.evaluations] == [
        (0, {"reward": 1.712}),
        (3, {"reward": 1.820}),
    ]
    row = found.evaluations[0]
    assert (row.split, row.mode, row.checkpoint, row.n_tasks, row.n_samples) == ("val", "greedy", "current", 40, 1)
    done = found.done
    assert (done.planned_steps, done.executed_steps, done.reason, done.best_step) == (6, 5, "log ended", 3)
    assert (done.engine, done.version, done.n_parameters) == ("verl", "UserRL cf55a30 (verl 0.4.0.dev)", 0)


def test_a_zero_that_measures_nothing_is_left_out(tmp_path: Path) -> None:
    assert "mfu_update" not in one_step(tmp_path, perf__mfu__actor=0.0, actor__pg_loss=0.1)  # an unknown GPU
    assert "learning_rate" not in one_step(tmp_path, actor__lr=1e-6, actor__pg_loss=0.1)
    assert one_step(tmp_path, actor__lr=1e-6, rounded=False)["learning_rate"] == 1e-6
    assert one_step(tmp_path, actor__lr=0.0, rounded=False)["learning_rate"] == 0  # the first step of a warm-up
    assert one_step(tmp_path, actor__lr=0.002)["learning_rate"] == 0.002


@pytest.mark.parametrize("key", ["actor/pg_loss", "perf/total_num_tokens", REWARD])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_a_number_that_is_none_is_named(tmp_path: Path, key: str, value: float) -> None:
    values = {"global_seqlen/mean": 100.0, REWARD: 1.8} | {key: value}
    with pytest.raises(RecordError, match=f"console.log:2: .*{key}"):
        converted(tmp_path, console([(1, {REWARD: 1.8}), (2, values)], rounded=False))


def test_a_log_without_validation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"console.log:2: "):
        converted(tmp_path, console([(1, {"actor/pg_loss": 0.1}), (2, {"actor/pg_loss": 0.1})]))


@pytest.mark.parametrize(
    ("key", "mode", "n_samples"),
    [
        ("val-core/SOURCE/acc/mean@1", "greedy", 1),  # a reward function that returns `acc`
        ("val-core/openai/gsm8k/acc/mean@1", "greedy", 1),  # a data source with a slash
        ("val-core/interact_intention/reward/mean@8", "sampled", 8),  # val_kwargs.n: 8
        ("val-aux/interact_intention/reward/mean@1", "greedy", 1),  # verl before its fix of `val-core`
    ],
)
def test_validations_of_current_verl_are_read(tmp_path: Path, key: str, mode: str, n_samples: int) -> None:
    found = converted(tmp_path, console([(1, {key: 0.25, "actor/pg_loss": 0.1}), (2, {key: 0.5})]))
    assert [(row.step, row.mode, row.n_samples, row.values) for row in found.evaluations] == [
        (1, mode, n_samples, {"reward": 0.25}),
        (2, mode, n_samples, {"reward": 0.5}),
    ]
    assert found.done.best_step == 2
    assert any(key in note for note in found.notes) == ("/acc/" in key)


def test_more_steps_than_planned_are_another_run(tmp_path: Path) -> None:
    text = console([(6, {REWARD: 1.8}), (7, {REWARD: 1.8})])
    with pytest.raises(RecordError, match=r"console.log:2: "):
        converted(tmp_path, text)


def test_another_number_of_gpus_is_found_out(tmp_path: Path) -> None:
    values = {"global_seqlen/mean": 59839.333, "perf/total_num_tokens": 179518.0, REWARD: 1.8}
    assert converted(tmp_path, console([(1, values)])).metrics[0].values["tokens_total"] == 179518
    with pytest.raises(RecordError, match=r"intention.verl.n_gpus"):
        converted(tmp_path, console([(1, values)]), n_gpus=4)


def published() -> dict[str, dict[int, dict[str, float]]]:
    """Return the published numbers of both runs, by step and by the key that they were logged under."""
    found: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    with PUBLISHED.open(encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            if row["run"] in ("nokl", "kl") and row["step"] and row["metric"] in AS_LOGGED:
                found[row["run"]][int(row["step"])][AS_LOGGED[row["metric"]]] = float(row["value"])
    return found


@pytest.mark.parametrize(("run", "tokens"), [("nokl", {5: 179_517}), ("kl", {10: 178_632})])
def test_the_published_runs_come_back_from_their_log(tmp_path: Path, run: str, tokens: dict[int, int]) -> None:
    steps = dict(sorted(published()[run].items()))
    found = converted(tmp_path, console(steps.items()), planned_steps=465)
    assert {row.step: row.values["reward"] for row in found.evaluations} == {
        step: values[REWARD] for step, values in steps.items() if REWARD in values
    }
    assert [row.step for row in found.evaluations] == [5, 10, 15, 20, 25, 30, 35, 40, 45]
    ours = {row.step: row.values for row in found.metrics}
    for step, values in steps.items():
        for key, value in values.items():
            assert key == REWARD or ours[step][NAMES[key]] == value
    assert {step: values["tokens_total"] for step, values in ours.items() if "tokens_total" in values} == tokens
    assert (found.done.executed_steps, found.done.reason) == (45, "log ended")
    assert found.done.best_step == {"nokl": 45, "kl": 40}[run]
    assert found.notes[0] == "log ended: 45 of 465 planned steps"


def test_a_reward_is_read_before_an_accuracy(tmp_path: Path) -> None:
    values = {"val-core/SOURCE/acc/mean@1": 0.5, "val-aux/SOURCE/reward/mean@1": 1.8}
    assert converted(tmp_path, console([(1, values)])).evaluations[0].values == {"reward": 1.8}


def test_an_unknown_validation_is_named(tmp_path: Path) -> None:
    text = console([(1, {"val/test_score/SOURCE": 0.5, "val-core/SOURCE/acc/best@4/mean": 0.5})])
    with pytest.raises(RecordError, match="found val-core/SOURCE/acc/best@4/mean, val/test_score/SOURCE in 1 steps"):
        converted(tmp_path, text)
