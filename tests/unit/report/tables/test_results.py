from __future__ import annotations

import math

import pandas as pd
import pytest
from lever_pipe.report.tables.documents.document_000 import curve_of, long_runs, statistics_of
from lever_pipe.report.tables.policies import baselines, grpo_epochs, label_of, last_grpo
from lever_pipe.report.tables.results import Results, choose_base, keep, means, standard_error

from lever_pipe.report.columns import SCORES_COLUMNS, TRAINING_COLUMNS


def score(accuracy: float, **changes: object) -> dict[str, object]:
    row = dict.fromkeys(SCORES_COLUMNS)
    row |= {
        "policy": f"p{changes}",
        "stage": "grpo",
        "mode": "offline",
        "base_rce_epoch": 5,
        "kl_beta": 0.15,
        "seed": 0,
        "epoch": 1,
    }
    row |= {"subset": "prefix", "samples": 200, "shots": 1, "accuracy": accuracy, "preset": "main"}
    row |= {"n_questions": 200, "n_distinct_prompts": 10}
    return row | changes


def metric(value: float, **changes: object) -> dict[str, object]:
    row = dict.fromkeys(TRAINING_COLUMNS)
    row |= {
        "stage": "grpo",
        "mode": "offline",
        "base_rce_epoch": 5,
        "kl_beta": 0.15,
        "seed": 0,
        "epoch": 1,
        "metric": "kl",
    }
    return row | {"value": value, "preset": "main"} | changes


def results(scores: list[dict[str, object]], training: list[dict[str, object]], base: int | None = 5) -> Results:
    return Results(
        pd.DataFrame(scores, columns=list(SCORES_COLUMNS)), pd.DataFrame(training, columns=list(TRAINING_COLUMNS)), base
    )


def test_accuracy_is_the_mean_over_seeds_of_the_prefix_of_one_base() -> None:
    found = results(
        [
            score(40.0, seed=0),
            score(43.0, seed=1),
            score(90.0, subset="random-0"),
            score(80.0, base_rce_epoch=2),
            score(70.0, stage="rce", base_rce_epoch=None, kl_beta=None),
        ],
        [],
    )
    assert found.accuracy(0.15, 1, 200, 1) == 41.5
    assert found.accuracy(0.15, 2, 200, 1) is None
    assert (found.epochs, found.betas, found.samples, found.shots) == ([1], [0.15], [200], [1])
    assert found.seeds_sentence() == "Ours: mean over 2 seeds (0 and 1)."


def test_grpo_is_the_published_objective_alone() -> None:
    """On-policy GRPO has the same stage, base, beta, seed and epoch; other objectives have what they have of these."""
    others: list[dict[str, object]] = [
        {"mode": "on_policy"},
        {"mode": "on_policy", "stage": "reinforce", "kl_beta": 0.0},
        {"mode": "", "stage": "distil", "kl_beta": None},
    ]
    scores = [score(40.0), *(score(90.0, **other) for other in others)]
    training = [metric(0.1), *(metric(9.0, **other) for other in others)]
    training += [metric(9.0, **{**other, "epoch": 50}) for other in others]
    found = results(scores, training)
    assert (found.accuracy(0.15, 1, 200, 1), found.metric(0.15, 1, "kl"), found.betas) == (40.0, 0.1, [0.15])
    assert [len(group.rows) for group in grpo_epochs(found.scores)] == [1]
    assert [group.epoch for group in last_grpo(found.scores)] == [1]
    (run,) = long_runs(found).values()
    assert curve_of(run, "kl").to_dict() == {1: 0.1}


@pytest.mark.parametrize(
    ("group", "label"),
    [
        ("preset~p/grpo/base~5/beta~0.15/epoch~3", "GRPO, KL_BETA=0.15, epoch 3"),
        ("preset~p/on_policy/base~5/beta~0.15/epoch~3", "On-policy GRPO, KL_BETA=0.15, epoch 3"),
        ("preset~p/reinforce/base~5/beta~0/epoch~3", "REINFORCE, epoch 3"),
        ("preset~p/distil/base~5/epoch~3", "Oracle distillation, epoch 3"),
        ("preset~p/rce/epoch~5", "RCE epoch 5"),
        ("published/grpo/beta~0.15/epoch~3", "GRPO, KL_BETA=0.15, epoch 3"),
        ("baseline/oracle", "Pool oracle (knows the answers)"),
    ],
)
def test_a_group_is_called_by_what_it_was_trained_by(group: str, label: str) -> None:
    assert label_of(group) == label


def test_unequal_seed_counts_are_said() -> None:
    found = results([score(40.0, seed=0), score(41.0, seed=1), score(42.0, seed=0, epoch=2)], [])
    assert found.seeds_sentence() == "Ours: mean over 1 to 2 seeds (0 and 1)."


def test_metrics_of_grpo_and_rce() -> None:
    rows = [metric(0.1), metric(0.3, seed=1), metric(9.0, stage="rce", metric="val_loss", base_rce_epoch=None)]
    found = results([], rows)
    assert found.metric(0.15, 1, "kl") == pytest.approx(0.2, abs=1e-15)  # one rounding
    assert found.metric(0.15, 1, "val_loss") is None
    assert found.rce_metric(1, "val_loss") == 9.0
    assert found.rce_metric(2, "val_loss") is None


def test_the_base_is_the_named_one_or_the_latest() -> None:
    both = results([score(1.0, base_rce_epoch=2), score(1.0, base_rce_epoch=5)], [])
    assert choose_base(both.scores, both.training, None) == 5
    assert choose_base(both.scores, both.training, 2) == 2


def test_long_runs_hold_the_longest_runs_only() -> None:
    rows = [metric(float(e), epoch=e, seed=s) for s, last in ((0, 4), (1, 2)) for e in range(1, last + 1)]
    rows += [metric(7.0, kl_beta=0.12, epoch=e) for e in (1, 2)]
    runs = long_runs(results([], rows))
    assert list(runs) == [0.15]
    assert set(runs[0.15]["seed"]) == {0}
    assert curve_of(runs[0.15], "kl").tolist() == [1.0, 2.0, 3.0, 4.0]


def test_statistics_of_a_curve() -> None:
    found = statistics_of(pd.Series([4.0, 1.0, 3.0], index=[1, 2, 3]))
    values = {name: statistic.value for name, statistic in found.items()}
    assert values == {"Mean": pytest.approx(8 / 3), "First": 4.0, "Last": 3.0, "Change": -25.0, "Minimum": 1.0}
    assert found["Minimum"].epoch == "2"
    assert statistics_of(pd.Series([], dtype=float)) == {}


def test_keep_says_what_is_missing() -> None:
    assert keep((1, 2), [2, 3], "epoch") == ([2], "Without epoch 1: not part of this configuration.")
    assert keep((1,), [1], "epoch") == ([1], "")
    kept, sentence = keep((0.12,), [0.3], "KL_BETA")
    assert kept == [0.3]
    assert sentence.endswith("Every KL_BETA of this configuration is shown instead.")
    assert keep((1,), [], "epoch")[0] == []


def test_means_have_unbiased_spread() -> None:
    found = means(pd.DataFrame({"k": [1, 1, 2], "v": [1.0, 3.0, 5.0]}), ["k"], "v")
    assert found[1] == (2.0, pytest.approx(math.sqrt(2)), 2)
    assert found[2].value == 5.0
    assert math.isnan(found[2].sd)


def test_standard_error_is_in_points() -> None:
    # 100 sqrt(0.5 * 0.5 / 100) = 5
    assert standard_error(50.0, 100) == pytest.approx(5.0)
    assert standard_error(None, 100) is None


def test_draws_of_a_baseline_are_one_group() -> None:
    rows = [score(30.0, stage="baseline", policy=name) for name in ("random-0", "random-10", "oracle", "own_idea")]
    groups = baselines(results(rows, []).scores)
    assert [(group.label, group.runs) for group in groups] == [
        ("Random from the pool", 2),
        ("Pool oracle (knows the answers)", 1),
        ("own idea", 1),
    ]


def test_a_policy_without_shots_fills_every_shot() -> None:
    group = baselines(results([score(12.0, stage="baseline", policy="zero_shot", shots=0)], []).scores)[0]
    assert {k: entry.value for k, entry in group.by_shots(200, [1, 2]).items()} == {1: 12.0, 2: 12.0}


def test_the_last_grpo_epoch_is_one_that_every_beta_has() -> None:
    rows = [score(1.0, epoch=e) for e in (1, 2, 3)] + [score(1.0, epoch=e, kl_beta=0.18) for e in (1, 2)]
    assert {group.epoch for group in last_grpo(results(rows, []).scores)} == {2}


def test_the_base_is_named_where_there_are_several() -> None:
    rows = [score(1.0, base_rce_epoch=base) for base in (2, 5)]
    assert grpo_epochs(results(rows, []).scores)[0].label == "GRPO from RCE epoch 2, KL_BETA=0.15, epoch 1"
    assert grpo_epochs(results(rows[:1], []).scores)[0].label == "GRPO, KL_BETA=0.15, epoch 1"
