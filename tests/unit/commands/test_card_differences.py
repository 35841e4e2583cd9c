from __future__ import annotations

from pathlib import Path
from typing import Any

from lever_pipe.base import storage
from lever_pipe.base.records import RunCard
from lever_pipe.commands.card_differences import Differing, differing, of_runs


def card(**changes: Any) -> RunCard:
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
    return RunCard(**values | changes)


def test_equal_cards_do_not_differ_in_what_they_took() -> None:
    assert differing("x", card(), card(seconds=9.0, threads=4)) == []


def test_what_names_the_job_is_no_difference() -> None:
    other = card(config={"seed": 0, "rce": {"learning_rate": 0.1, "passes": 4}, "policy": {"name": "b"}})
    assert differing("x", card(), other) == []


def test_every_kind_of_difference_has_its_key() -> None:
    other = card(
        config={"seed": 0, "rce": {"learning_rate": 0.2, "horizon": 5}},
        inputs={"groups": "e" * 64, "files[0]": "b" * 64},
        code="y",
        dirty=True,
        versions={"numpy": "3"},
        device="cuda",
    )
    found = {line.key: (line.left, line.right) for line in differing("x", card(), other)}
    assert list(found) == [
        "config.rce.horizon",
        "config.rce.learning_rate",
        "config.rce.passes",
        "code",
        "version.numpy",
        "commit",
        "device",
        "input.files",
        "input.groups",
    ]
    assert found["config.rce.horizon"] == ("absent", "5")
    assert found["config.rce.learning_rate"] == ("0.1", "0.2")
    assert found["config.rce.passes"] == ("4", "absent")
    assert found["commit"] == ("d" * 12, "d" * 12 + " with changes")
    assert found["input.groups"] == ("a" * 12, "e" * 12)
    assert [text[:8] for text in found["input.files"]] == ["2 files ", "1 files "]


def test_the_order_of_a_list_of_files_matters() -> None:
    other = card(inputs={"groups": "a" * 64, "files[0]": "c" * 64, "files[1]": "b" * 64})
    assert [line.key for line in differing("x", card(), other)] == ["input.files"]


def test_equal_differences_of_two_runs_are_counted(tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    for seed in (0, 1):
        config = {"seed": seed, "rce": {"learning_rate": 0.1}}
        changed = {"seed": seed, "rce": {"learning_rate": 0.2}}
        inputs = [{"start": str(seed + side) * 64} for side in (0, 5)]
        storage.write_row(left / f"{seed}/run.json", card(config=config, inputs=inputs[0]))
        storage.write_row(right / f"{seed}/run.json", card(config=changed, inputs=inputs[1], versions={"numpy": "3"}))
    storage.write_row(left / "a.run.json", card(stage="select"))
    storage.write_row(right / "a.run.json", card(stage="select", versions={"numpy": "3"}))
    storage.write_row(left / "only/run.json", card(code="z"))
    assert of_runs(left, right) == [
        Differing("train", "config.rce.learning_rate", "0.1", "0.2", 2),
        Differing("any job", "version.numpy", "2", "3", 3),
        Differing("train", "input.start", "one content", "another", 2),
    ]
