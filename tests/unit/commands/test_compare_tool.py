"""`lever-pipe compare`: in which settings and results two runs differ, in text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lever_pipe.__main__ import main
from lever_pipe.base import storage
from lever_pipe.base.records import Manifest
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


def settings_of(folder: Path, other: Manifest) -> list[tuple[str, str, str, str, int]]:
    storage.write_row(folder / "left/run.json", manifest())
    storage.write_row(folder / "right/run.json", other)
    return differing_settings(folder / "left", folder / "right")


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
    assert differing_settings(left, right) == [
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
    assert capsys.readouterr().out.endswith("Settings that differ: none\n\nResults that differ: none\n")


def test_a_run_without_evidence_is_refused(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs[0]), str(runs[0] / "nowhere")]) == 2
    assert "nowhere/evidence.csv: expected a file; found none" in capsys.readouterr().err
