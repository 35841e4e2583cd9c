from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lever_pipe.base import storage
from lever_pipe.experiment.agent_evaluation import AgentRun
from lever_pipe.experiment.agent_results import CollectDialoguesConfig
from lever_pipe.experiment.agent_training import AgentArm
from lever_pipe.intention.dialogues import AgentSample
from lever_pipe.intention.records import DialogueCall, DialogueRow, DialogueTurn, HiddenDetail
from lever_pipe.stages.agent_results import collect_dialogues

ARMS = (
    AgentArm(name="plain", seeds=(0, 1)),
    AgentArm(name="weak", kl=0.01, seeds=(0, 1)),
    AgentArm(name="strong", kl=0.5, seeds=(1,)),
)
HIDDEN = (HiddenDetail(text="budget", importance=3), HiddenDetail(text="date", importance=2))
BASE, STRONG = (1.0, 0.5, 0.7, 0.2, 0.4, 0.4, 0.9, 1.0), (1.0, 0.7, 0.2, 0.9, 0.4, 0.3, 0.9, 0.3)
"""Rewards of the eight tasks. Gains: 0, +0.2, -0.5, +0.7, 0, -0.1, 0, -0.7."""
CATEGORIES = "abcdefgc"
"""Task 2 hides the same as task 7, whose difference is larger."""


def row(task: int, reward: float, text: str = "", checkpoint: Any = "last") -> DialogueRow:
    call = DialogueCall(choice="action", content="what about date")
    question = DialogueTurn(text=text, calls=(call,), reply="date is soon", uncovered=(1,))
    closed = DialogueTurn(text="all set", calls=(), reply="", uncovered=())
    return DialogueRow(
        step=3, split="test", mode="greedy", checkpoint=checkpoint, task_id=f"test-{task}", sample=0, ceiling=1.7,
        rewards=(reward, 0.0), end="closed", n_agent_tokens=9, category=CATEGORIES[task],
        request=f"task {task}", hidden=HIDDEN, turns=(question, closed),
    )  # fmt: skip


def collected(
    folder: Path, arms: Sequence[AgentArm], rewards: Mapping[str, Sequence[float]]
) -> tuple[list[AgentSample], dict[str, Any]]:
    """Return the outputs for an arm that earns these rewards with every seed; only task 4 has different words."""
    runs = [AgentRun(arm=arm.name, seed=seed) for arm in arms for seed in arm.seeds]
    paths = []
    for i, run in enumerate(runs):
        paths.append(folder / f"{i}.jsonl")
        last = [row(task, r, run.arm if task == 4 else "") for task, r in enumerate(rewards[run.arm])]
        storage.write_rows(paths[-1], [*last, *(row(task, 0.1, checkpoint="best") for task in range(8))])
    return written(folder, arms, runs, paths)


def written(
    folder: Path, arms: Sequence[AgentArm], runs: Sequence[AgentRun], paths: Sequence[Path]
) -> tuple[list[AgentSample], dict[str, Any]]:
    config = CollectDialoguesConfig(runs=tuple(runs), arms=tuple(arms), reference_arm="plain", checkpoint="last")
    files = {"samples": folder / "samples", "side_by_side": folder / "dialogues"}
    collect_dialogues(transcripts=tuple(paths), **files, config=config)
    return storage.read_rows(files["samples"], AgentSample), json.loads(files["side_by_side"].read_text())


def test_two_tasks_of_each_outcome_stand_side_by_side(tmp_path: Path) -> None:
    samples, displayed = collected(tmp_path, ARMS, {"plain": BASE, "weak": BASE, "strong": STRONG})
    assert {"reference": "plain", "other": "strong", "kl": 0.5, "seed": 1, "missing": ""}.items() <= displayed.items()
    assert displayed["counts"] == {"higher": 2, "lower": 3, "equal": 3, "tasks": 8}
    assert [(task["outcome"], task["task_id"]) for task in displayed["tasks"]] == [
        ("higher", "test-3"), ("higher", "test-1"), ("lower", "test-7"), ("lower", "test-5"),
        ("equal", "test-4"), ("equal", "test-0"),
    ]  # fmt: skip
    first = displayed["tasks"][0]["dialogues"]
    assert {arm: of["reward"] for arm, of in first.items()} == {"plain": 0.2, "strong": 0.9}
    assert first["strong"]["turns"][0] == {
        "text": "",
        "calls": [{"choice": "action", "content": "what about date"}],
        "reply": "date is soon",
        "reward": 0.9,
        "uncovered": ["date"],
    }
    assert [(of.arm, of.seed, of.reward) for of in samples[:9]] == [
        *(("plain", 0, reward) for reward in BASE),
        ("plain", 1, BASE[0]),
    ]
    assert {of.checkpoint for of in samples} == {"last"}


@pytest.mark.parametrize(
    ("arms", "missing"),
    [(ARMS[:1], "no_kl_arm"), ((AgentArm(name="plain", seeds=(0,)), ARMS[2]), "no_common_seed")],
)
def test_what_is_missing_is_told(tmp_path: Path, arms: tuple[AgentArm, ...], missing: str) -> None:
    _, displayed = collected(tmp_path, arms, {"plain": BASE, "strong": STRONG})
    assert (displayed["missing"], displayed["tasks"]) == (missing, [])


def test_an_engine_without_transcripts_leaves_empty_files(tmp_path: Path) -> None:
    samples, displayed = written(tmp_path, ARMS, [AgentRun(arm="plain", seed=0)], [])
    assert (samples, displayed["missing"], displayed["tasks"]) == ([], "no_transcripts", [])
