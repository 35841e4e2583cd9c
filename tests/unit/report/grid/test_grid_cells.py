"""Cells, families and the page of the grid, on accuracies whose differences the test makes itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lever_pipe.base import storage
from lever_pipe.base.records import ExampleId, PolicyScores, QuestionScore
from lever_pipe.experiment.grid import BuildGridConfig, CompareCellsConfig, EvaluatedCell, MissingCell
from lever_pipe.report.grid import page
from lever_pipe.report.grid.cells import (
    AGAINST_RANDOM,
    AIMS,
    BASELINE_FAMILY,
    ITEM_SAMPLERS,
    ITEMS,
    OWN_BASELINES,
    OWNS,
    QUESTIONS,
    SAMPLERS,
    SELECTORS,
    TRANSFERS,
    GridCell,
    compare_cells,
)
from lever_pipe.stages.grid import build_grid
from lever_pipe.stages.grid import compare_cells as stage
from lever_pipe.statistics.comparison import holm

N = 200
ROOT = Path(__file__).parents[4]
RATES = {
    "baseline/zero_shot": 0.2,
    "baseline/random-0": 0.3,
    "baseline/random-1": 0.3,
    "baseline/oracle": 0.9,
    "baseline/similar_image": 0.45,
    "own/mine": 0.3,
    **{
        f"preset~world/{kind}/seed~{seed}/epoch~2": rate
        for kind, rate in (("sft", 0.5), ("rce", 0.7))
        for seed in (0, 1)
    },
    **{f"preset~gated/rce/seed~{seed}/epoch~1": 0.7 for seed in (0, 1)},
    **{f"items~2/preset~world/rce/seed~{seed}/epoch~2": 0.35 for seed in (0, 1)},
    **{f"from~other/preset~world/rce/seed~{seed}/epoch~2": 0.45 for seed in (0, 1)},
}


@pytest.fixture
def config() -> CompareCellsConfig:
    cells = [
        EvaluatedCell(data="world", sampler=sampler, lvlm="tiny", policy=policy, training_prompts=prompts_of(policy))
        for sampler in ("uniform", "mixture")
        for policy in RATES
    ]
    return CompareCellsConfig(
        evaluated=tuple(cells), reference="world", samples=(100, N), shots=(1, 2), seed=0, n_resamples=500
    )


def prompts_of(policy: str) -> int:
    return 1000 if "preset~" in policy else 0


@pytest.fixture
def paths(config: CompareCellsConfig, tmp_path: Path) -> list[Path]:
    """Correct if a question's own threshold is below the policy's rate, so that policies are ordered on each one."""
    thresholds = np.random.default_rng(0).permutation(N) / N
    found = []
    for number, cell in enumerate(config.evaluated):
        rate = RATES[cell.policy] + (
            0.1 if cell.sampler == "mixture" and cell.policy.startswith("baseline/random") else 0
        )
        rows = [
            QuestionScore(query_id=ExampleId(q), shots=k, accuracy=float(thresholds[q] < rate))
            for q in range(N)
            for k in (1, 2)
        ]
        path = tmp_path / f"{number}.jsonl"
        storage.write_rows(path, [PolicyScores(policy=cell.policy, questions=tuple(rows))])
        found.append(path)
    return found


def test_accuracies_and_shares_are_those_that_were_made(config: CompareCellsConfig, paths: list[Path]) -> None:
    rows, _ = compare_cells(paths, config)
    found = {(row.sampler, row.policy): row for row in rows if row.samples == N and row.shots == "mean"}
    rce = found["uniform", "preset~world/rce/epoch~2"]
    assert rce.accuracy == pytest.approx(70)
    assert rce.share_of_oracle == pytest.approx((70 - 30) / (90 - 30))
    assert found["mixture", "preset~world/rce/epoch~2"].share_of_oracle == pytest.approx((70 - 40) / (90 - 40))
    assert (rce.selector, rce.objective, rce.trained_on, rce.n_runs, rce.training_prompts) == (
        "world",
        "rce",
        "world",
        2,
        1000,
    )
    assert found["uniform", "from~other/preset~world/rce/epoch~2"].trained_on == "other"
    assert found["uniform", "baseline/random"].n_runs == 2
    assert len(found) == 2 * 10


def test_each_family_holds_its_pairs(config: CompareCellsConfig, paths: list[Path]) -> None:
    _, compared = compare_cells(paths, config)
    pairs: dict[str, set[tuple[str, str]]] = {}
    for row in compared["world"]:
        assert (row.samples, row.shots) == (N, "mean")
        left, right = GridCell.parse(row.left), GridCell.parse(row.right)
        pairs.setdefault(row.family.removesuffix("-one-run"), set()).add((str(left.policy), str(right.policy)))
        same = left.setting == right.setting
        assert same is (row.family.removesuffix("-one-run") not in (SAMPLERS, ITEM_SAMPLERS))
    sft, rce, gated = "preset~world/sft/epoch~2", "preset~world/rce/epoch~2", "preset~gated/rce/epoch~1"
    away = f"from~other/{rce}"
    assert pairs[AGAINST_RANDOM] == {(name, "baseline/random") for name in (sft, rce, gated, away, "own/mine")}
    assert pairs[BASELINE_FAMILY] == {
        (f"baseline/{name}", "baseline/random") for name in ("zero_shot", "oracle", "similar_image")
    }
    assert pairs[OWN_BASELINES] == {("own/mine", f"baseline/{name}") for name in ("zero_shot", "similar_image")}
    assert pairs[AIMS] == {(rce, sft)}
    assert pairs[SELECTORS] == {(gated, rce)}
    assert pairs[OWNS] == {("own/mine", sft), ("own/mine", rce)}
    assert pairs[TRANSFERS] == {(away, rce)}
    assert pairs[ITEMS] == {(f"items~2/{rce}", rce)}
    everyone = {sft, rce, gated, away, "baseline/random", "baseline/oracle", "baseline/similar_image"}
    assert pairs[SAMPLERS] == {(name, name) for name in everyone}
    assert pairs[ITEM_SAMPLERS] == {(f"items~2/{rce}", f"items~2/{rce}")}


def test_what_differs_is_separated_and_what_is_alike_is_not(config: CompareCellsConfig, paths: list[Path]) -> None:
    _, compared = compare_cells(paths, config)
    rows = {
        (row.family, GridCell.parse(row.left).sampler, str(GridCell.parse(row.left).policy)): row
        for row in compared["world"]
    }
    ahead = rows[AIMS, "uniform", "preset~world/rce/epoch~2"]
    assert ahead.difference == pytest.approx(20)
    assert ahead.p_holm < 0.001
    alike = rows[SELECTORS, "uniform", "preset~gated/rce/epoch~1"]
    assert (alike.difference, alike.p_holm) == (0, 1)


def test_the_page_says_counts_budgets_and_what_did_not_run(
    config: CompareCellsConfig, paths: list[Path], tmp_path: Path
) -> None:
    out = {name: tmp_path / name for name in ("leaderboard", "comparisons")}
    assert stage(per_question=tuple(paths), config=config, **out) == 20
    outputs = {name: tmp_path / name for name in ("page", "map_svg", "map_png")}
    templates = ROOT / "lever_pipe/report/templates"
    missing = MissingCell(data="world", sampler="uniform", lvlm="tiny", preset="huge", why="it <costs> 3 days")
    build_grid(
        **out,
        templates=tuple(templates / f"{name}.html.j2" for name in ("page", "blocks", "sentences", "grid")),
        style=templates / "report.css",
        script=templates / "report.js",
        **outputs,
        config=BuildGridConfig(
            title="",
            samples=config.samples,
            shots=config.shots,
            missing=(missing,),
            models={"tiny": "a model"},
            data={"world": "mine/questions.json"},
        ),
    )
    text = outputs["page"].read_text()
    # Own ties with random in uniform pools and is below it in the others; all eight trained cells are above.
    assert "better than random: 8, worse: 1, undecided: 1." in text
    assert (
        "own: mine against RICES (<code>similar_image</code>), 2 comparisons: better: 0, worse: 2, undecided: 0."
        in text
    )
    assert "except random and oracle: better: 2, worse: 0, undecided: 0." in text
    assert '<span class="verdict no">worse</span>' in text
    assert "separated</span>" not in text
    assert "mine/questions.json" in text
    assert "No answer of any policy was right" not in text
    assert "it &lt;costs&gt; 3 days" in text
    assert 'class="plot' in text
    assert outputs["map_png"].read_bytes().startswith(b"\x89PNG")
    displayed = page.primary(pd.read_csv(out["leaderboard"]), N)
    best = {row["Prompts at most"]: row["Policy"] for row in page.best_by_budget(displayed).rows}
    # The same accuracy in both pools, and of both selectors.
    equal = "and {} more with equal accuracy"
    assert best == {0: f"similar image (RICES) {equal.format(1)}", 1000: f"world: rce {equal.format(3)}"}


def test_an_own_selector_is_tested_against_every_usual_baseline(
    config: CompareCellsConfig, paths: list[Path], tmp_path: Path
) -> None:
    """In one setting: RICES (45 %) is better than the own selector (30 %), zero shot (20 %) is worse."""
    selected = [
        i for i, cell in enumerate(config.evaluated) if cell.sampler == "uniform" and "/preset" not in cell.policy
    ]
    selected = [i for i in selected if not config.evaluated[i].policy.startswith("preset")]
    alone = config.model_copy(update={"evaluated": tuple(config.evaluated[i] for i in selected), "reference": ""})
    out = {name: tmp_path / name for name in ("leaderboard", "comparisons")}
    stage(per_question=tuple(paths[i] for i in selected), config=alone, **out)
    compared = pd.read_csv(out["comparisons"])
    rows = compared[compared["family"] == OWN_BASELINES]
    assert [str(GridCell.parse(name).policy) for name in rows["right"]] == [
        "baseline/similar_image",
        "baseline/zero_shot",
    ]
    assert list(rows["difference"]) == pytest.approx([-15, 10])
    assert list(rows["p_holm"]) == pytest.approx(list(holm(list(rows["p"]))))
    (own,) = page.from_baselines(compared)
    assert (own["name"], own["row"]["Verdict"], str(own["row"]["Points"])[:5]) == ("own: mine", "worse", "-15.0")
    assert own["others"] == {"n": 1, "better": 1, "worse": 0, "undecided": 0}
    assert next(page.verdicts(compared)).rows[0]["Question"] == QUESTIONS[OWN_BASELINES]


@pytest.mark.parametrize(
    ("accuracies", "doubt"), [((0, 0), "wrong"), ((5, 5), "equal"), ((5, 6), ""), ((0, 2), ""), ((5,), "")]
)
def test_what_speaks_against_a_grid_is_found(accuracies: tuple[float, ...], doubt: str) -> None:
    rows = [
        ("d", 200, shots, accuracy + (accuracy > 0) * (shots == "mean"))
        for accuracy in accuracies
        for shots in ("1", "mean")
    ]
    assert page.doubts(pd.DataFrame(rows, columns=["data", "samples", "shots", "accuracy"]))["accuracies"] == doubt


def test_without_arms_own_selectors_stand_against_random_alone(
    config: CompareCellsConfig, paths: list[Path], tmp_path: Path
) -> None:
    selected = [i for i, cell in enumerate(config.evaluated) if cell.policy.startswith(("baseline/random", "own/"))]
    named = [config.evaluated[i] for i in selected]
    marks = [cell.model_copy(update={"policy": "baseline/similar_both"}) for cell in named if "own/" in cell.policy]
    cells = (*named, *marks)
    owns = [paths[i] for i in selected if "own/" in config.evaluated[i].policy]
    for path in owns:  # two policies of a batch that earn the same
        (own,) = storage.read_rows(path, PolicyScores)
        storage.write_rows(path, [own, own.model_copy(update={"policy": "baseline/similar_both"})])
    files = tuple(paths[i] for i in selected) + tuple(owns)
    alone = config.model_copy(update={"evaluated": cells, "reference": ""})
    _, compared = compare_cells(files, alone)
    assert all(row.left != row.right for row in compared["world"])
    families: dict[str, set[str]] = {}
    for row in compared["world"]:
        right = GridCell.parse(row.right)
        left = GridCell.parse(row.left).policy
        families.setdefault(row.family.removesuffix("-one-run"), set()).add(f"{left} - {right.policy}")
    assert families == {
        AGAINST_RANDOM: {"own/mine - baseline/random"},
        OWN_BASELINES: {"own/mine - baseline/similar_both"},
        BASELINE_FAMILY: {"baseline/similar_both - baseline/random"},
        SAMPLERS: {f"baseline/{name} - baseline/{name}" for name in ("similar_both", "random")},
    }
    out = {name: tmp_path / name for name in ("leaderboard", "comparisons")}
    stage(per_question=files, config=alone, **out)
    (own,) = page.from_baselines(pd.read_csv(out["comparisons"]))
    assert (own["rices"]["n"], own["row"], own["others"]["n"]) == (0, None, 2)  # two samplers, no RICES
    tables = page.verdicts(pd.read_csv(out["comparisons"]))
    assert not any("reference" in str(table.title) for table in tables)
