"""`lever-pipe compare`: whether two runs agree bit for bit, and in which settings and results they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import manifest_tree as tree
import pytest
from trained_world import read_run, train_here, training

from lever_pipe.__main__ import main
from lever_pipe.base import storage
from lever_pipe.base.records import Manifest
from lever_pipe.commands.agreement import Agreement, agreement
from lever_pipe.commands.compare_tool import differing_settings
from lever_pipe.report.evidence import EvidenceRow, write_evidence


def manifest(**changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "stage": "train",
        "config": {"seed": 0, "rce": {"learning_rate": 0.1, "passes": 4}, "policy": {"name": "a"}},
        "inputs": {"groups": "a" * 64, "files[0]": "b" * 64, "files[1]": "c" * 64},
        "code": "x",
        "commit": "d" * 40,
        "dirty": False,
        "versions": {"numpy": "2"},
        "device": "cpu",
        "threads": 1,
        "seconds": 1.0,
    }
    return Manifest(**values | changes)


def settings_of(folder: Path, other: Manifest) -> list[tuple[Any, ...]]:
    storage.write_row(folder / "left/run.json", manifest())
    storage.write_row(folder / "right/run.json", other)
    return lines_of(folder / "left", folder / "right")


def lines_of(left: Path, right: Path) -> list[tuple[Any, ...]]:
    return list(differing_settings(left, right).itertuples(index=False, name=None))


def score(subject: str, value: float, **changes: Any) -> EvidenceRow:
    row = EvidenceRow("lever", subject, "accuracy", value, samples="40", shots="mean", low=value - 1, high=value + 1)
    return row._replace(**changes)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    rows = {
        "a": [score("baseline/random", 40.0), score("baseline/oracle", 90.0), score("only/a", 1.0)],
        "b": [score("baseline/random", 42.5), score("baseline/oracle", 90.0)],
    }
    for name, of in rows.items():
        moved = float(name == "b")
        aside = [
            score("baseline/random", moved, shots="1"),
            score("preset~p/rce/seed~0/epoch~1", moved),
            score("preset~p/rce/epoch~1", moved, metric="loss", low=float("nan")),
            score("baseline/random", moved, against="baseline/oracle"),
        ]
        write_evidence(tmp_path / name / "evidence.csv", [*of, *aside])
        storage.write_row(tmp_path / name / "run.json", manifest(code=name))
    return tmp_path / "a", tmp_path / "b"


def test_equal_manifests_do_not_differ_in_what_they_took(tmp_path: Path) -> None:
    assert settings_of(tmp_path, manifest(seconds=9.0, threads=4)) == []


def test_what_names_the_job_is_no_difference(tmp_path: Path) -> None:
    config = {"seed": 0, "rce": {"learning_rate": 0.1, "passes": 4}, "policy": {"name": "b"}}
    assert settings_of(tmp_path, manifest(config=config)) == []


def test_every_kind_of_difference_has_its_key(tmp_path: Path) -> None:
    other = manifest(
        config={"seed": 0, "rce": {"learning_rate": 0.2, "horizon": 5}},
        inputs={"groups": "e" * 64, "files[0]": "b" * 64},
        code="y",
        dirty=True,
        versions={"numpy": "3"},
        device="cuda",
    )
    assert settings_of(tmp_path, other) == [
        ("train", "config.rce.horizon", "absent", "5", 1),
        ("train", "config.rce.learning_rate", "0.1", "0.2", 1),
        ("train", "config.rce.passes", "4", "absent", 1),
        ("train", "code", "x", "y", 1),
        ("any job", "version.numpy", "2", "3", 1),
        ("any job", "commit", "d" * 12, "d" * 12 + " with changes", 1),
        ("any job", "device", "cpu", "cuda", 1),
        ("train", "input.files", "one content", "another", 1),
        ("train", "input.groups", "one content", "another", 1),
    ]


def test_the_order_of_a_list_of_files_matters(tmp_path: Path) -> None:
    other = manifest(inputs={"groups": "a" * 64, "files[0]": "c" * 64, "files[1]": "b" * 64})
    assert [key for _, key, *_ in settings_of(tmp_path, other)] == ["input.files"]


def test_equal_differences_of_two_runs_are_counted(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    for seed in (0, 1):
        config = {"seed": seed, "rce": {"learning_rate": 0.1}}
        changed = {"seed": seed, "rce": {"learning_rate": 0.2}}
        inputs = [{"start": str(seed + side) * 64} for side in (0, 5)]
        storage.write_row(left / f"{seed}/run.json", manifest(config=config, inputs=inputs[0]))
        storage.write_row(
            right / f"{seed}/run.json", manifest(config=changed, inputs=inputs[1], versions={"numpy": "3"})
        )
    storage.write_row(left / "a.run.json", manifest(stage="select"))
    storage.write_row(right / "a.run.json", manifest(stage="select", versions={"numpy": "3"}))
    storage.write_row(left / "only/run.json", manifest(code="z"))
    assert lines_of(left, right) == [
        ("train", "config.rce.learning_rate", "0.1", "0.2", 2),
        ("any job", "version.numpy", "2", "3", 3),
        ("train", "input.start", "one content", "another", 2),
    ]


def test_results_that_differ_stand_with_both_values(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Single seeds, single shot counts, training metrics and comparisons are only in the tables."""
    at = "accuracy:samples=40:shots=mean"
    assert main(["compare", *map(str, runs)]) == 0
    settings, results = capsys.readouterr().out.split("Results that differ")
    assert "train    code   a    b    1" in settings
    lines = [line.split() for line in results.splitlines()[-2:]]
    assert lines == [[f"lever:baseline/random:{at}", "40", "42.5", "2.5"], [f"lever:only/a:{at}", "1", *["absent"] * 2]]


def test_a_run_and_itself(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs[0]), str(runs[0])]) == 0
    text = capsys.readouterr().out
    assert text.startswith("The two runs agree bit for bit")
    assert text.endswith("Settings that differ: none\n\nResults that differ: none\n")


def test_a_run_without_evidence_is_refused(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs[0]), str(runs[0] / "nowhere")]) == 2
    assert "nowhere/evidence.csv: expected a file; found none" in capsys.readouterr().err


# --- bit for bit

FILES: dict[str, Any] = {
    "data/rows.jsonl": '{"id": 1}\n{"id": 2}\n',
    "train/weights.safetensors": {"a": [1.0], "b": [2.0]},
    "train/counters.json": {"prompts": 3, "forwards": 9},
    "a/scores.csv": "policy,metric,value\nx,accuracy,1\nx,seconds,7\ny,accuracy,2\n",
    "report/page.html": "<p>7</p>",
}


def run_of(folder: Path, **changes: Any) -> Path:
    """Write a run of four artifacts; the name of its scores comes first, but not in the workflow."""
    files = {name: (str(folder / name), changes.get(Path(name).stem, content)) for name, content in FILES.items()}
    rows, weights, counters, scores, page = files.values()
    tree.make(f"{folder}/data/run.json", "prepare", {"rows": rows})
    tree.make(f"{folder}/train/run.json", "train", {"weights": weights, "counters": counters}, inputs={"rows": rows[0]})
    tree.make(f"{folder}/a/run.json", "score", {"scores": scores}, inputs={"weights": weights[0]})
    tree.make(f"{folder}/report/run.json", "build_report", {"page": page}, inputs={"scores": scores[0]})
    return folder


TABLE = FILES["a/scores.csv"]


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, ""),
        ({"page": "<p>8</p>", "scores": TABLE.replace("7", "8"), "counters": {"prompts": 3, "forwards": 10}}, ""),
        (
            {"counters": {"prompts": 4, "forwards": 9}},
            "train/run.json (train): counters, row 1, column prompts: 3 and 4",
        ),
        ({"scores": TABLE.replace("2", "3")}, "a/run.json (score): scores, row 3, column value: 2 and 3"),
        ({"scores": f"{TABLE}z,accuracy,1\n"}, "a/run.json (score): scores, 2 and 3 rows"),
        ({"scores": TABLE.replace("value", "values")}, "a/run.json (score): scores, columns value and values"),
        ({"rows": '{"id": 1}\n{"id":  2}\n'}, "data/run.json (prepare): rows, other bytes"),
        ({"weights": {"a": [1.0], "b": [3.0]}, "scores": ""}, "train/run.json (train): weights, tensor b"),
    ],
)
def test_the_first_difference_in_the_order_of_the_workflow(tmp_path: Path, changes: dict[str, Any], first: str) -> None:
    found = agreement(run_of(tmp_path / "left"), run_of(tmp_path / "right", **changes))
    assert (found.artifacts, found.first) == (3, first)


def test_an_artifact_of_one_run_and_a_deleted_file(tmp_path: Path) -> None:
    left, right = run_of(tmp_path / "left"), run_of(tmp_path / "right", rows="{}\n")
    (right / "data/rows.jsonl").unlink()
    assert agreement(left, right).first == "data/run.json (prepare): rows, other content; the file was deleted"
    (right / "data/run.json").unlink()
    assert agreement(left, right).first == "data/run.json, which only A has"
    assert agreement(right, left).first == "data/run.json, which only B has"


def test_equal_trainings_agree_although_their_durations_differ(tmp_path: Path) -> None:
    metrics = []
    for side in ("left", "right"):
        train_here(tmp_path / side / "arm", training(steps=1))
        metrics += read_run(tmp_path / side / "arm").metrics
    assert metrics[0] != metrics[1]
    assert agreement(tmp_path / "left", tmp_path / "right") == Agreement(1, "")
