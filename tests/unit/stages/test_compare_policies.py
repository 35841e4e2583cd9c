"""The whole stage on synthetic scores: the cells, the comparisons and their agreement with the data."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import example
from scipy import stats
from sentences import messages

from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.base.policy_names import group_of
from lever_pipe.base.records import ExampleId, PolicyScores, QuestionScore
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.collected import ComparePoliciesConfig
from lever_pipe.experiment.report import ReportedRun, ShownStudy
from lever_pipe.experiment.sweeps import Sweep, SweptCell
from lever_pipe.report import sources
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence
from lever_pipe.report.sweeps import tables, views_of
from lever_pipe.stages.compare_policies import compare_policies
from lever_pipe.statistics.comparison import holm, sign_flip_p

RELATIONS = ("material", "team", "count")


@dataclass(frozen=True)
class Size:
    betas: tuple[str, ...] = ("0", "0.12", "0.15", "0.18")
    epochs: tuple[int, ...] = (1, 2)
    seeds: tuple[int, ...] = (0, 1, 2)
    samples: tuple[int, ...] = (20, 60)
    shots: tuple[int, ...] = (1, 2)
    presets: tuple[str, ...] = ("main",)
    baselines: tuple[str, ...] = ("zero_shot", "random-0", "random-1", "similar_both", "oracle")
    gain: float = 0.0
    """By how much more often the last of the betas answers right."""
    unread: int = 0
    """Questions beyond the largest sample count."""
    on_policy_betas: tuple[str, ...] = ()
    """Of on-policy runs, next to the offline ones with the extra objectives, seed 1 and epochs 1 to 3."""


FULL = Size()


def policies_of(size: Size) -> list[str]:
    names = [f"baseline/{name}" for name in size.baselines]
    for preset in size.presets:
        for seed in size.seeds:
            names += [f"preset~{preset}/rce/seed~{seed}/epoch~{e}" for e in (4, 5)]
            names += [
                f"preset~{preset}/grpo/base~5/beta~{beta}/seed~{seed}/epoch~{e}"
                for beta in size.betas
                for e in size.epochs
            ]
    return names + on_policy_policies_of(size)


def on_policy_policies_of(size: Size) -> list[str]:
    runs = [f"on_policy/base~5/beta~{beta}" for beta in size.on_policy_betas]
    runs += ["reinforce/base~5/beta~0", "distil/base~5"] if runs else []
    return [f"preset~main/{run}/seed~1/epoch~{e}" for run in runs for e in (1, 2, 3)]


def accuracies(name: str, size: Size, n: int) -> np.ndarray:
    """Return [N, K] answers, right or wrong; zero-shot answers the same at every shot count."""
    if "zero_shot" in name:
        return np.repeat(generator(0, name).random((n, 1)) < 0.2, len(size.shots), axis=1)
    difficulty = generator(0, "difficulty").random((n, 1))
    skill = {"oracle": 0.95, "random": 0.4}.get(name.split("/")[-1].split("-")[0], 0.6)
    if any(f"/grpo/base~5/beta~{beta}/" in name for beta in size.betas[-1:]):
        skill += size.gain
    return difficulty + 0.1 * generator(0, name).normal(size=(n, len(size.shots))) < skill


def write_inputs(folder: Path, size: Size) -> dict[str, Any]:
    n = max(size.samples) + size.unread
    examples = [example(i, question_type=f"{RELATIONS[i % 3]}:key") for i in range(n)]
    storage.write_rows(folder / "eval.jsonl", examples)
    paths = []
    for index, name in enumerate(policies_of(size)):
        values = accuracies(name, size, max(size.samples))
        values = np.concatenate([values, np.ones((size.unread, len(size.shots)))])
        rows = [
            QuestionScore(query_id=ExampleId(i), shots=k, accuracy=float(values[i, column]))
            for column, k in enumerate(size.shots)
            for i in range(n)
        ]
        paths.append(folder / "scores" / f"{index}.jsonl")
        storage.write_rows(paths[-1], [PolicyScores(policy=name, questions=tuple(rows))])
    return {"per_question": tuple(paths), "eval_examples": folder / "eval.jsonl"}


def config_of(size: Size, **changes: Any) -> ComparePoliciesConfig:
    values: dict[str, Any] = {"main_preset": "main", "data": "world", "seed": 1, "n_resamples": 500}
    values |= {"policies": policies_of(size), "samples": size.samples, "shots": size.shots}
    return ComparePoliciesConfig(**values | changes)


OUTPUTS = ("intervals", "comparisons")


def run(folder: Path, size: Size, inputs: dict[str, Any] | None = None, **changes: Any) -> dict[str, Path]:
    outputs = {name: folder / "out" / name for name in OUTPUTS}
    compare_policies(**(inputs or write_inputs(folder, size)), **outputs, config=config_of(size, **changes))
    return outputs


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return run(tmp_path_factory.mktemp("full"), FULL)


def test_every_cell_has_an_interval_around_its_mean(full: dict[str, Path]) -> None:
    found = rows(full["intervals"])
    cells = [(row["group"], row["samples"], row["shots"]) for row in found]
    groups = list(dict.fromkeys(map(group_of, policies_of(FULL))))
    assert cells == [(g, str(n), k) for n in FULL.samples for g in groups for k in ("1", "2", "mean")]
    for row in found:
        runs = [name for name in policies_of(FULL) if group_of(name) == row["group"]]
        values = np.mean([accuracies(name, FULL, 60)[: int(row["samples"])] for name in runs], axis=0)
        expected = values.mean() if row["shots"] == "mean" else values[:, int(row["shots"]) - 1].mean()
        assert float(row["accuracy"]) == pytest.approx(100 * expected, abs=1e-6)
        assert 0 <= float(row["low"]) < float(row["accuracy"]) < float(row["high"]) <= 100
        assert (row["n_runs"], row["n_questions"]) == (str(len(runs)), row["samples"])


def test_the_families_hold_what_they_promise(full: dict[str, Path]) -> None:
    found = rows(full["comparisons"])
    families = {
        name: [row for row in found if row["family"] == name] for name in dict.fromkeys(r["family"] for r in found)
    }

    def pairs(family: str) -> list[tuple[str, ...]]:
        short = ("left", "right")
        return list(dict.fromkeys(tuple(beta_or_name(row[side]) for side in short) for row in families[family]))

    primary = ["grpo-over-betas", "grpo-against-rce", "grpo-betas"]
    assert list(families) == [
        *primary,
        *(f"document-00{d}/epoch~{e}" for e in (1, 2) for d in (1, 2)),
        "learning",
        "grpo-against-rce-by-shots",
    ]
    assert pairs("grpo-over-betas") == [("all", "preset~main/rce/epoch~5")]
    assert pairs("grpo-betas") == [(beta, "0") for beta in FULL.betas[1:]]
    for name, of_family in families.items():
        assert {row["role"] for row in of_family} == {"primary" if name in primary else "secondary"}
        shots = {"mean"} if name in primary else {"1", "2"} if name.endswith("-by-shots") else {"1", "2", "mean"}
        assert {row["shots"] for row in of_family} == shots
        assert len(of_family) == len(shots) * len(pairs(name))
    assert pairs("document-001/epoch~1") == [("0", "0.15"), ("0.12", "0.15"), ("0.18", "0.15")]
    assert pairs("document-002/epoch~2") == [("0.18", "0.15"), ("0.12", "0.15"), ("0.18", "0.12")]
    assert pairs("grpo-against-rce") == [(beta, "preset~main/rce/epoch~5") for beta in FULL.betas]
    others = ("zero_shot", "random", "similar_both", "oracle")
    assert pairs("learning") == [("preset~main/rce/epoch~5", f"baseline/{name}") for name in others]
    assert {row["samples"] for row in families["document-001/epoch~1"]} == {"60"}  # nearest to 200


def beta_or_name(group: str) -> str:
    return group.split("beta~")[1].split("/")[0] if "beta~" in group else group


def test_differences_are_left_minus_right_and_lie_in_their_interval(full: dict[str, Path]) -> None:
    accuracy = {(r["group"], r["samples"], r["shots"]): float(r["accuracy"]) for r in rows(full["intervals"])}
    for row in rows(full["comparisons"]):
        left, right = (float(row[f"{side}_value"]) for side in ("left", "right"))
        for side, level in (("left", left), ("right", right)):
            names = [row[side]]
            if "beta~all" in row[side]:
                names = [row[side].replace("~all", f"~{beta}") for beta in FULL.betas]
            levels = [accuracy[name, row["samples"], row["shots"]] for name in names]
            assert level == pytest.approx(np.mean(levels), abs=1e-6)
        assert float(row["difference"]) == pytest.approx(left - right, abs=1e-6)
        assert float(row["low"]) <= float(row["difference"]) <= float(row["high"])
        assert float(row["detectable"]) >= (float(row["high"]) - float(row["low"])) / 2 - 1e-6
        assert 0 <= float(row["p"]) <= float(row["p_holm"]) <= 1


def test_p_values_are_adjusted_for_their_family(full: dict[str, Path]) -> None:
    found = rows(full["comparisons"])
    families = {name: [r for r in found if r["family"] == name] for name in dict.fromkeys(r["family"] for r in found)}
    for of_family in families.values():
        adjusted = holm([float(row["p"]) for row in of_family])
        assert [float(row["p_holm"]) for row in of_family] == pytest.approx(list(adjusted), rel=1e-6)


def test_families_of_several_presets_are_adjusted_as_one(tmp_path: Path) -> None:
    size = Size(presets=("main", "other", "third"), samples=(20, 60), shots=(1,), gain=0.05)
    inputs, together = write_inputs(tmp_path, size), {"grpo-against-rce": ("main", "third")}
    apart, joint = (
        rows(run(tmp_path / name, size, inputs, families=of)["comparisons"])
        for name, of in (("apart", {}), ("joint", together))
    )
    own = [row for row in joint if row["family"].endswith("-together")]
    assert {row["family"] for row in own} == {"grpo-against-rce-together", "preset~third/grpo-against-rce-together"}
    assert len(own) == 2 * len(size.betas)
    oracle = holm([float(row["p"]) for row in own])
    assert [float(row["p_holm"]) for row in own] == pytest.approx(list(oracle), rel=1e-6)
    # every comparison is once at a cell of the endpoint, and all else is unchanged
    cells = [(row["left"], row["right"], row["samples"], row["shots"]) for row in joint if row["role"] == "primary"]
    assert len(set(cells)) == len(cells)
    others = [row for row in joint if row not in own]
    assert others == [
        row for row in apart if row["family"] not in ("grpo-against-rce", "preset~third/grpo-against-rce")
    ]


def test_one_run_a_side_is_tested_exactly(tmp_path: Path) -> None:
    size = replace(FULL, seeds=(0,))
    outputs = run(tmp_path, size)
    for row in rows(outputs["comparisons"]):
        if "beta~all" in row["left"]:
            continue
        runs = [[n for n in policies_of(size) if group_of(n) == row[side]] for side in ("left", "right")]
        if row["shots"] != "mean" and len(runs[1]) == 1:
            left, right = (accuracies(names[0], size, 60)[:, int(row["shots"]) - 1] for names in runs)
            p = sign_flip_p(left.astype(float) - right, generator=generator(0))
            assert float(row["p"]) == pytest.approx(p, rel=1e-6)
            wins, losses = int((left & ~right).sum()), int((right & ~left).sum())
            exact = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
            assert p == pytest.approx(exact, abs=1e-9)  # right or wrong: McNemar's exact test
        assert row["n_runs"] == "1"


def test_removing_a_beta_leaves_the_other_cells_as_they_are(tmp_path: Path, full: dict[str, Path]) -> None:
    smaller = replace(FULL, betas=("0", "0.15", "0.18"))
    outputs = run(tmp_path, smaller)
    before = full["intervals"].read_text().splitlines()
    assert outputs["intervals"].read_text().splitlines() == [line for line in before if "beta~0.12" not in line]
    # seed effects are estimated from all betas, and p_holm changes with the family
    selected = {tuple(row.values())[:6] for row in rows(full["comparisons"])}
    documents = [row for row in rows(outputs["comparisons"]) if row["family"].startswith("document")]
    assert documents
    assert all(tuple(row.values())[:6] in selected for row in documents)


def test_a_real_gain_is_told(tmp_path: Path) -> None:
    found = rows(run(tmp_path, replace(FULL, gain=0.35, presets=("main", "other")))["comparisons"])
    highest = next(row for row in found if row["family"] == "grpo-betas" and "beta~0.18" in row["left"])
    assert float(highest["p_holm"]) < 0.05 < float(highest["difference"])
    assert "preset~other/grpo-betas" in {row["family"] for row in found}


WITH_ON_POLICY = replace(FULL, on_policy_betas=("0", "0.15", "1"))


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the comparisons of on-policy runs."""
    return run(tmp_path_factory.mktemp("drawn"), WITH_ON_POLICY)


def test_on_policy_runs_leave_every_other_comparison_as_it_is(full: dict[str, Path], sampled: dict[str, Path]) -> None:
    own = (*map(group_of, on_policy_policies_of(WITH_ON_POLICY)), "/on_policy/")
    for name in ("intervals", "comparisons"):
        selected = [line for line in sampled[name].read_text().splitlines() if not any(group in line for group in own)]
        assert selected == full[name].read_text().splitlines()
    kinds = ("against-rce", "against-offline", "betas")
    families = {
        "extra_objectives",
        "on-policy-over-betas",
        *(f"on-policy-{kind}{s}" for kind in kinds for s in ("", "-by-shots")),
    }
    before, after = ({row["family"] for row in rows(files["comparisons"])} for files in (full, sampled))
    assert after - before == families


def test_on_policy_runs_are_compared_over_the_seeds_that_both_sides_have(sampled: dict[str, Path]) -> None:
    found = [row for row in rows(sampled["comparisons"]) if row["family"].startswith(("on-policy", "extra_objectives"))]
    (over,) = (row for row in found if row["family"] == "on-policy-over-betas")
    found.remove(over)
    assert len(found) == (3 + 2 + 2 + 5) * 3
    each = [row["difference"] for row in found if row["family"] == "on-policy-against-rce"]
    assert float(over["difference"]) == pytest.approx(np.mean([float(value) for value in each]), abs=1e-6)
    assert (over["left"], over["n_runs"]) == ("preset~main/on_policy/base~5/beta~all/epoch~3", "1")
    for row in found:
        names = [
            [n for n in policies_of(WITH_ON_POLICY) if group_of(n) == row[side] and ("seed~1" in n or "seed~" not in n)]
            for side in ("left", "right")
        ]
        (left,), (right,) = names
        gap = (accuracies(left, WITH_ON_POLICY, 60).astype(float) - accuracies(right, WITH_ON_POLICY, 60)).mean(axis=0)
        expected = gap.mean() if row["shots"] == "mean" else gap[int(row["shots"]) - 1]
        assert float(row["difference"]) == pytest.approx(100 * expected, abs=1e-6)
        assert (row["n_runs"], row["test"], row["samples"]) == ("1", "sign flip", "60")
        assert float(row["left_value"]) - float(row["right_value"]) == pytest.approx(100 * expected, abs=1e-6)
        assert row["left"].endswith("epoch~3")
    assert {row["right"] for row in found if row["family"] == "on-policy-against-offline"} == {
        f"preset~main/grpo/base~5/beta~{beta}/epoch~2" for beta in ("0", "0.15")
    }


def test_questions_beyond_the_largest_count_are_not_read(tmp_path: Path, full: dict[str, Path]) -> None:
    outputs = run(tmp_path, replace(FULL, unread=6))
    for name in OUTPUTS:
        assert outputs[name].read_bytes() == full[name].read_bytes()


def test_scores_of_other_questions_are_refused(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path, FULL)
    path = inputs["per_question"][3]
    (selected,) = storage.read_rows(path, PolicyScores)
    few = tuple(row for row in selected.questions if row.query_id != 7)
    storage.write_rows(path, [selected.model_copy(update={"questions": few})])
    with pytest.raises(RecordError, match="expected scores of 60 questions") as error:
        run(tmp_path, FULL, inputs)
    assert "59 questions" in error.value.found
    storage.write_rows(path, [selected.model_copy(update={"questions": selected.questions[:-1]})])
    with pytest.raises(RecordError, match="expected a score of each question at each shot count"):
        run(tmp_path, FULL, inputs)


@pytest.mark.parametrize(
    ("betas", "last", "text"),
    [
        (FULL.betas, "grpo/base~5/beta~0.15/epoch~2", "the last epoch of offline GRPO"),
        ((), "rce/epoch~5", "the last RCE epoch"),
    ],
)
def test_a_sweep_is_compared_apart_and_moves_nothing(
    tmp_path: Path, betas: tuple[str, ...], last: str, text: str
) -> None:
    """Its cells are presets without families of their own; the main one is compared and shown as without them."""
    size = Size(presets=("main", "s__a_1", "s__a_2"), samples=(20, 60), shots=(1,), gain=0.2, betas=betas)
    cells = tuple(SweptCell(arm=arm, values={"a": i}) for i, arm in enumerate(size.presets))
    sweep = Sweep(name="s", arm="main", over={"a": (1, 2)}, cells=cells)
    both = run(tmp_path / "both", size, sweeps=(sweep,))
    alone = run(tmp_path / "alone", replace(size, presets=("main",)))
    found = {name: rows(path) for name, path in both.items()}
    own = [row for row in found["comparisons"] if row["family"] == "sweep~s"]
    assert [row for row in found["comparisons"] if row not in own] == rows(alone["comparisons"])
    assert [row for row in found["intervals"] if "s__a" not in row["group"]] == rows(alone["intervals"])
    assert [(row["left"], row["right"]) for row in own] == [
        (f"preset~{arm}/{last}", f"preset~main/{last}") for arm in size.presets[1:]
    ]
    levels = {row["group"]: float(row["accuracy"]) for row in found["intervals"] if row["samples"] == "60"}
    for row in own:
        gap = levels[row["left"]] - levels[row["right"]]
        assert (row["samples"], row["shots"], row["role"]) == ("60", "mean", "secondary")
        assert float(row["difference"]) == pytest.approx(gap, abs=1e-6)
    assert [float(row["p_holm"]) for row in own] == pytest.approx(list(holm([float(row["p"]) for row in own])))
    study = ShownStudy(name="lever", is_world=True, model="tiny")
    config = ReportedRun(studies=(study,), main_preset="main", sweeps=(sweep,))
    evidence = Evidence([*sources.intervals(both["intervals"]), *sources.comparisons(both["comparisons"])])
    (view,), (table,) = (list(of(ReportContext(evidence, config))) for of in (views_of, tables))
    assert text in messages(table)
    assert {arm: row.subject for (_, arm), row in view.scores.items()} == {
        arm: f"preset~{arm}/{last}" for arm in size.presets
    }
    assert [arm.preset for arm in ReportContext(evidence, config).presets] == ["main"]


def test_questions_of_one_image_are_resampled_and_exchanged_together(tmp_path: Path) -> None:
    size = replace(FULL, seeds=(0,), samples=(60,))
    inputs = write_inputs(tmp_path, size)
    apart = rows(run(tmp_path, size, inputs)["comparisons"])
    examples = storage.read_examples(inputs["eval_examples"])
    shared = [each.model_copy(update={"image_id": i // 3}) for i, each in enumerate(examples)]
    storage.write_rows(inputs["eval_examples"], shared)
    together = rows(run(tmp_path, size, inputs)["comparisons"])
    for plain, clustered in zip(apart, together, strict=True):
        assert plain["difference"] == clustered["difference"]
        assert (plain["low"], plain["high"]) != (clustered["low"], clustered["high"])
    assert [row["p"] for row in apart] != [row["p"] for row in together]
