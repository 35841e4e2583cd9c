"""Trace a number to its sources: the artifacts on the way, no others, and their presentation."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import manifest_tree as tree
import pytest

from lever_pipe.__main__ import main
from lever_pipe.base import contents
from lever_pipe.base.errors import LeverPipeError, UnknownNameError
from lever_pipe.base.policy_names import PolicyName
from lever_pipe.commands import trace
from lever_pipe.report.evidence import BETWEEN, DERIVED, EvidenceRow, write_evidence

RESULTS = Path("results")
STUDY = "results/lever"
TABLES = f"{STUDY}/tables"
SEEDS, BETAS = (0, 1), ("0", "0.15")
REFERENCE = "resources/reference/lever-plus-published.csv"


def rce(seed: int) -> str:
    return f"preset~world/rce/seed~{seed}/epoch~1"


def grpo(beta: str, seed: int) -> str:
    return f"preset~world/grpo/base~1/beta~{beta}/seed~{seed}/epoch~1"


POLICIES = [*map(rce, SEEDS), *(grpo(beta, seed) for beta in BETAS for seed in SEEDS)]
GROUPS = ["preset~world/rce/epoch~1", *(f"preset~world/grpo/base~1/beta~{beta}/epoch~1" for beta in BETAS)]
ACCURACIES = dict(zip(GROUPS, (40.125, 51.0, 62.5), strict=True))


@pytest.fixture(scope="module")
def made_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a study of three policies with two seeds, from raw data to a table."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tree.write("raw/train.json", "{}")
        examples = {name: (f"{STUDY}/examples/{name}.jsonl", name) for name in ("eval", "train")}
        reads: dict[str, tree.Paths] = {"train_questions": "raw/train.json"}
        tree.make(f"{STUDY}/examples/run.json", "prepare_examples", examples, inputs=reads)
        for policy in POLICIES:
            train(policy)
        answer_and_score()
        collect()
    return folder


@pytest.fixture(autouse=True)
def _study(made_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a copy of the study, with the times of its files."""
    shutil.copytree(made_study, tmp_path / "study")
    monkeypatch.chdir(tmp_path / "study")
    contents._remembered.cache_clear()


def train(policy: str) -> None:
    seed = int(policy.split("seed~")[1][0])
    is_rce = "/rce/" in policy
    groups = {"groups": f"{STUDY}/examples/train.jsonl"}
    reads = groups if is_rce else {"start": f"{STUDY}/{rce(seed)}/selector.safetensors"}
    outputs = {
        "selector": (f"{STUDY}/{policy}/selector.safetensors", {"w": [len(policy), seed]}),
        "metrics": (f"{STUDY}/{policy}/metrics.json", {"of": policy}),
    }
    config = {"seed": seed, "learning_rate": 0.5, "empty": None, "long": list(range(9))}
    stage = "train_rce_epoch" if is_rce else "train_grpo_epoch"
    tree.make(f"{STUDY}/{policy}/run.json", stage, outputs, inputs=reads, config=config)
    chosen = {"selections": (f"{STUDY}/{policy}/selections.jsonl", policy)}
    selector = {"selector": f"{STUDY}/{policy}/selector.safetensors"}
    tree.make(f"{STUDY}/{policy}/selections.run.json", "select_demonstrations", chosen, inputs=selector)


def answer_and_score() -> None:
    for seed in SEEDS:
        folder = f"{STUDY}/answers/preset~world/seed~{seed}"
        of_seed = [f"{STUDY}/{policy}/selections.jsonl" for policy in POLICIES if f"seed~{seed}" in policy]
        reads: dict[str, tree.Paths] = {"selections": of_seed, "eval_examples": f"{STUDY}/examples/eval.jsonl"}
        config = {"lvlm": {"model_identity": "94408fe1831b2711", "dtype": "float32"}}
        answers = {"answers": (f"{folder}/answers.jsonl", str(seed))}
        tree.make(f"{folder}/run.json", "answer_prompts", answers, inputs=reads, config=config)
        outputs = {
            "cells": (f"{folder}/cells.jsonl", f"cells of {seed}"),
            "per_question": (f"{folder}/per_question.jsonl", f"questions of {seed}"),
        }
        reads = {"selections": of_seed, "answers": f"{folder}/answers.jsonl"}
        tree.make(f"{folder}/scores.run.json", "score_answers", outputs, inputs=reads)


def collect() -> None:
    lines = [f"{policy},grpo,0,prefix,40,1,{50 + i}.5,40" for i, policy in enumerate(POLICIES)]
    scores = "policy,stage,seed,subset,samples,shots,accuracy,n_questions\n" + "\n".join(lines)
    outputs = {"scores": (f"{TABLES}/scores.csv", scores), "training": (f"{TABLES}/training.csv", "stage,value\n")}
    reads: dict[str, tree.Paths] = {
        "cells": [f"{STUDY}/answers/preset~world/seed~{seed}/cells.jsonl" for seed in SEEDS],
        "metrics": [f"{STUDY}/{policy}/metrics.json" for policy in POLICIES],
    }
    tree.make(f"{TABLES}/run.json", "collect_results", outputs, inputs=reads)
    folders = [f"{STUDY}/answers/{PolicyName.parse(policy).batch}" for policy in POLICIES]
    reads = {"per_question": [f"{folder}/per_question.jsonl" for folder in folders]}
    groups = [f"{group},40,1,{value},1,2" for group, value in ACCURACIES.items()]
    pairs = [f"best,{GROUPS[1]},{GROUPS[0]},40,1,3.5,0.5,1", f"best,{GROUPS[2]},{GROUPS[0]},40,1,9.5,0.25,0.5"]
    compared = {
        "intervals": (f"{TABLES}/intervals.csv", "\n".join(["group,samples,shots,accuracy,low,high", *groups])),
        "comparisons": (
            f"{TABLES}/comparisons.csv",
            "\n".join(["family,left,right,samples,shots,difference,p,p_holm", *pairs]),
        ),
    }
    tree.make(f"{TABLES}/comparisons.run.json", "compare_policies", compared, inputs=reads)
    tree.write(REFERENCE, "source_file,kl_beta,epoch,samples,shot,value\nfile A,0.15(stored 0.1),1,40,1,62.5\n")
    write_rows("results/evidence.csv", measured())
    outputs: dict[str, tuple[str, Any]] = {"evidence": ("results/evidence.csv", None)}
    read = [f"{TABLES}/{name}.csv" for name in ("intervals", "comparisons", "scores", "training")]
    of_evidence: dict[str, tree.Paths] = {"reference": REFERENCE, **{Path(path).stem: [path] for path in read}}
    tree.make("results/evidence.run.json", "collect_evidence", outputs, inputs=of_evidence)
    figures: dict[str, tuple[str, Any]] = {"figures": ("results/figures/curve.svg", "<svg/>")}
    tree.make("results/figures.run.json", "plot_figures", figures, inputs={"evidence": "results/evidence.csv"})
    build()


def measured() -> list[EvidenceRow]:
    """Rows at lines 2 to 8: three accuracies, two comparisons, a published number, a mean over two lines of a file."""
    at: dict[str, Any] = {"samples": "40", "shots": "1"}
    levels = [
        EvidenceRow("lever", group, "accuracy", value, **at, low=1, high=2, source=f"{TABLES}/intervals.csv:{line}")
        for line, (group, value) in enumerate(ACCURACIES.items(), start=2)
    ]
    gaps = [
        EvidenceRow(
            "lever", left, "accuracy", gap, GROUPS[0], **at, family="best", p=p, p_holm=2 * p, source=f"{TABLES}/{name}"
        )
        for left, gap, p, name in (
            (GROUPS[1], 3.5, 0.5, "comparisons.csv:2"),
            (GROUPS[2], 9.5, 0.25, "comparisons.csv:3"),
        )
    ]
    quoted = EvidenceRow("lever", "published/grpo", "accuracy", 62.5, printed="62.5", source=f"{REFERENCE}:2")
    mean = EvidenceRow("lever", GROUPS[0], "accuracy", 51.0, samples="20", runs=2, source=f"{TABLES}/scores.csv:2+3")
    return [*levels, *gaps, quoted, mean]


def build() -> None:
    rows = measured()

    def derived(name: str, *of: EvidenceRow) -> EvidenceRow:
        return EvidenceRow(DERIVED, f"table/{name}", "accuracy", 1.0, source=BETWEEN.join(row.key for row in of))

    gain, mean = derived("gain", rows[1], rows[0]), derived("mean", rows[3], rows[4])
    write_rows("results/report/evidence.csv", [*rows, gain, mean, derived("whole", rows[0], mean)])
    cells = [
        [[], ["e2"], [], [], []],
        [[], ["e3"], ["e9"], ["e5:p_holm"], []],
        [[], ["e4"], ["e6"], ["e6:p_holm"], []],
        [[], ["e7"], [], [], []],
        [[], ["e8"], ["e11"], [], []],
    ]
    columns = ["Policy", "Shot 1", "Gain", "Holm p", "Verdict"]
    tree.write("results/report/index.json", {"tables": {"overview": {"columns": columns, "cells": cells}}})
    tree.write("results/report/tables/overview.csv", "Policy\n")
    built: dict[str, tuple[str, Any]] = {"appendix": ("results/report", None), "page": ("results/report.html", "<p>")}
    reads: dict[str, tree.Paths] = {"evidence": "results/evidence.csv", "figures": "results/figures/curve.svg"}
    tree.make("results/report.run.json", "build_report", built, inputs=reads)


def write_rows(path: str, rows: Sequence[EvidenceRow]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_evidence(Path(path), rows)


def trained(traced: trace.Traced) -> set[str]:
    """Return the policies whose training a way leads through."""
    manifests = (step.artefact.manifest for step in traced.steps if step.origin.stage.startswith("train"))
    return {manifest.parent.relative_to(STUDY).as_posix() for manifest in manifests}


def stages(traced: trace.Traced) -> list[str]:
    return [step.origin.stage for step in traced.steps]


def back(what: str) -> trace.Traced:
    return trace.traced_back(what, RESULTS)


def test_a_cell_leads_to_the_runs_of_its_row_alone() -> None:
    traced = back("overview:2:Shot 1")
    assert [(of.line, of.row.value) for of in traced.rows] == [(3, 51.0)]
    assert traced.sources == (f"{TABLES}/intervals.csv:3",)
    assert stages(traced)[:3] == ["build_report", "collect_evidence", "compare_policies"]
    assert set(stages(traced)[3:]) == {
        *("score_answers", "answer_prompts", "select_demonstrations"),
        *("train_grpo_epoch", "train_rce_epoch", "prepare_examples"),
    }, "no collect_results: the value stands in intervals.csv"
    assert [set(step.inputs) for step in traced.steps[:2]] == [{"evidence"}, {"intervals[0]"}]
    raw = {(str(path), step.origin.inputs[name]) for step in traced.steps for name, path in step.inputs.items()
           if name not in step.makers}  # fmt: skip
    assert raw == {("raw/train.json", contents.digest(Path("raw/train.json")))}
    assert "model folder lvlm.model_identity 94408fe1831b2711" in trace.text(traced)


@pytest.mark.parametrize(
    ("what", "lines", "policies"),
    [
        ("overview:2:Shot 1", [3], {policy for seed in SEEDS for policy in (rce(seed), grpo("0", seed))}),
        ("overview:2:Gain", [3, 2], {policy for policy in POLICIES if "0.15" not in policy}),
        ("overview:5:Gain", [2, 5, 6], set(POLICIES)),
        ("overview:3:Gain", [6], {policy for policy in POLICIES if "beta~0/" not in policy}),
        ("overview:2:Holm p", [5, 6], set(POLICIES)),
        ("overview:4:Shot 1", [7], set()),
        ("overview:1:Verdict", [], set(POLICIES)),
    ],
)
def test_a_number_leads_to_the_rows_and_runs_that_it_is_made_of(
    what: str, lines: list[int], policies: set[str]
) -> None:
    traced = back(what)
    at = {row.key: line for line, row in enumerate(measured(), start=2)}
    assert [at[row.key] for of in traced.rows for row in of.measured] == lines
    assert trained(traced) == policies


def test_another_row_or_run_is_on_no_way_but_its_own() -> None:
    cells = [f"overview:{row}:Shot 1" for row in (1, 2, 3, 5)]
    assert not any(map(changed_on, cells))
    tree.write(f"{STUDY}/{grpo('0.15', 1)}/selector.safetensors", {"w": [0, 0]}, now=True)
    assert [what for what in cells if changed_on(what)] == ["overview:3:Shot 1"]


@pytest.mark.parametrize("what", ["e3", "overview:2:2", "KEY"])
def test_line_key_and_cell_are_one(what: str) -> None:
    assert back(measured()[1].key if what == "KEY" else what)[:2] == back("overview:2:Shot 1")[:2]


def test_measured_values_stand_in_their_files() -> None:
    assert back("overview:5:Shot 1").sources == (f"{TABLES}/scores.csv:2+3",), "a mean of two lines"
    published = back("overview:4:Shot 1")
    assert published.sources == (f"{REFERENCE}:2",)
    assert stages(published) == ["build_report", "collect_evidence"]
    assert set(published.steps[1].inputs) == {"reference"}


def test_makers_come_after_what_they_made_and_are_told_by_place() -> None:
    steps = back("overview:2:Shot 1").steps
    for location, step in enumerate(steps):
        assert all(location < maker for maker in step.makers.values())
        for name, maker in step.makers.items():
            assert step.inputs[name] in steps[maker].artefact.paths.values()
    assert len({step.artefact.manifest for step in steps}) == len(steps), "each once"


@pytest.mark.parametrize("what", ["results/figures/curve.svg", "results/report/tables/overview.csv"])
def test_a_whole_file_leads_to_all_that_it_needs(what: str) -> None:
    traced = back(what)
    assert not traced.sources
    assert stages(traced).count("score_answers") == len(SEEDS)


def test_a_policy_leads_to_its_training_and_its_data() -> None:
    traced = back(grpo("0.15", 1))
    assert stages(traced)[0] == "train_grpo_epoch"
    assert stages(traced)[-1] == "prepare_examples"
    assert not any(rce(0) in str(step.artefact.manifest) for step in traced.steps)
    with pytest.raises(UnknownNameError):
        back(grpo("0.3", 1))


def test_files_say_whether_they_are_what_was_made() -> None:
    tree.write(f"{STUDY}/{rce(0)}/selector.safetensors", {"w": [0, 0]}, now=True)
    tree.write("raw/train.json", "[]", now=True)
    Path(f"{STUDY}/examples/eval.jsonl").unlink()
    states: dict[str, set[str]] = {}
    for step in back("overview:1:Shot 1").steps:
        for name, state in step.states.items():
            states.setdefault(str(step.artefact.paths[name]), set()).add(state)
    assert states[f"{STUDY}/{rce(0)}/selector.safetensors"] == {trace.OTHER}
    assert states["raw/train.json"] == {trace.OTHER}
    assert states[f"{STUDY}/{rce(1)}/selector.safetensors"] == {trace.UNCHANGED}
    assert states[f"{STUDY}/examples/eval.jsonl"] == {trace.MISSING}


def test_moved_results_are_traced_where_they_are() -> None:
    Path("results").rename("moved")
    traced = trace.traced_back("overview:2:Shot 1", Path("moved"))
    assert all(str(step.artefact.manifest).startswith("moved") for step in traced.steps)
    assert traced.sources == ("moved/lever/tables/intervals.csv:3",)
    assert {"train_rce_epoch", "prepare_examples"} <= set(stages(traced))


def test_the_results_are_those_of_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    Path("results").rename("moved")
    Path("own.yaml").write_text("results: moved\n", encoding="utf-8")
    assert main(["trace", "overview:2:Shot 1", "--configfile", "own.yaml"]) == 0
    assert "moved/lever/tables/intervals.csv:3" in capsys.readouterr().out


def test_without_a_report_a_key_is_found_in_what_it_would_be_built_from() -> None:
    shutil.rmtree("results/report")
    traced = back("e3")
    assert stages(traced)[:2] == ["collect_evidence", "compare_policies"]


def changed_on(what: str) -> bool:
    states = {state for step in back(what).steps for state in step.states.values()}
    return not states <= {trace.UNCHANGED}


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("overveiw:1:Shot 1", UnknownNameError, "overview"),
        ("overview:9:Shot 1", UnknownNameError, "ROW from 1 to 5"),
        ("overview:0:Shot 1", UnknownNameError, "ROW from 1 to 5"),
        ("overview:1:Shot 7", UnknownNameError, "Shot 1"),
        ("overview:1:0", UnknownNameError, "expected a cell"),
        ("nothing.csv:1:a", UnknownNameError, "expected a file"),
        ("e1", UnknownNameError, "e2 to e11"),
        ("e99:value", UnknownNameError, "e2 to e11"),
        ("e2:values", UnknownNameError, "expected a row"),
        (
            "lever:preset~world/rce/epoch~2:accuracy",
            UnknownNameError,
            "Did you mean 'lever:preset~world/rce/epoch~1",
        ),
        ("overview:1", UnknownNameError, "COLUMN of Policy, Shot 1"),
        ("results/lever/tables/stray.csv", UnknownNameError, "expected a manifest that lists"),
        ("results/report/../../notes.txt", UnknownNameError, "expected a manifest that lists"),
        *((word, LeverPipeError, "trace: ") for word in ("\0:1:a", ":::", ".csv:1:a", "overview::Shot 1", "")),
    ],
)
def test_what_is_not_there_is_refused(what: str, error: type[LeverPipeError], message: str) -> None:
    tree.write("results/lever/tables/stray.csv", "a,b\n1,2\n")
    tree.write("notes.txt", "mine")
    with pytest.raises(error, match=message):
        back(what)
