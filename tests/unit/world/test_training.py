"""Pieces of the training that run without training for minutes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lever_pipe.base.storage import digest
from lever_pipe.experiment.data import WorldData
from lever_pipe.world import reader
from lever_pipe.world.encoder import contrastive_loss
from lever_pipe.world.files import draw_examples
from lever_pipe.world.training import draw_bank, make_optimizer, set_rate


def test_rate_warms_up_and_falls_to_its_end() -> None:
    optimizer = make_optimizer([nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.0]

    def rate(step: int) -> float:
        set_rate(optimizer, step, 100, 1.0, 0.1, 10)
        return float(optimizer.param_groups[0]["lr"])

    assert rate(0) == pytest.approx(0.1)  # a tenth of the warm-up
    # Half way, the cosine is midway between 1 and 0.1.
    assert rate(50) == pytest.approx(0.55)
    assert rate(100) == pytest.approx(0.1)


def test_bank_holds_every_scene() -> None:
    bank = draw_bank(12, 0, "test")
    # 8 x 6 scenes of one shape with 12 images, and two and three shapes with 4 each.
    assert bank.pixels.shape == (48 * 20, 56, 56, 3)
    rng = np.random.default_rng(0)
    for scene in bank.ranges:
        assert tuple(bank.scenes[bank.draw(scene, rng)]) == scene
    assert np.array_equal(bank.pixels, draw_bank(12, 0, "test").pixels)
    assert not np.array_equal(bank.pixels, draw_bank(12, 0, "other").pixels)


def test_contrastive_loss_forgives_equal_scenes() -> None:
    # Images 0 and 1 show one scene: their two captions are equally right.
    logits = torch.tensor([[9.0, 9.0, 0.0], [9.0, 9.0, 0.0], [0.0, 0.0, 9.0]])
    loss = contrastive_loss(logits, torch.tensor([5, 5, 6]))
    # Rows 0 and 1 cost ln(2 + e^-9), row 2 costs ln(1 + 2 e^-9); columns cost the same.
    by_hand = (2 * math.log(2 + math.exp(-9)) + math.log(1 + 2 * math.exp(-9))) / 3
    torch.testing.assert_close(loss, torch.tensor(by_hand))


def test_examples_equal_the_files(tmp_path: Path) -> None:
    from lever_pipe.world.files import write_raw_files

    options = WorldData(n_train=64, n_eval=10)
    paths: dict[str, Path] = {name: tmp_path / name for name in ("questions", "annotations", "images")}
    write_raw_files(options, "train", **paths)
    rows, _ = draw_examples(options, "train")
    assert [row.example_id for row in rows] == list(range(64))
    assert [row.question_id for row in rows] == sorted(row.question_id for row in rows)
    for row in rows:
        assert row.image_digest == digest(paths["images"] / row.image)
        assert row.answers.count(row.answer) == max(row.answers.count(a) for a in row.answers)


def test_two_steps_of_every_phase_run_and_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setattr(reader, "VISION_STEPS", 3)
    monkeypatch.setattr(reader, "N_VISION_IMAGES", 4)
    monkeypatch.setattr(reader, "N_FRESH_IMAGES", 4)
    short = tuple(replace(phase, n_steps=2, batch=4) for phase in reader.PHASES)
    monkeypatch.setattr(reader, "PHASES", short)
    monkeypatch.setattr(reader, "_ProbeWorld", _NoProbes)

    def train(seed: int) -> dict[str, Any]:
        return dict(reader.ReaderTrainer(seed).run().state_dict())

    first, second, third = train(0), train(0), train(1)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], third[name]) for name in first)


class _NoProbes:
    """Replace the probe world, whose 1800 images take a second to draw."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def truth_shares(self, model: Any) -> dict[str, float]:
        return dict.fromkeys(("conflict_right_first", "conflict_right_last"), 0.0)


def test_a_phase_ends_only_when_images_decide() -> None:
    phase = next(phase for phase in reader.PHASES if phase.name == "S1")
    done = {"contested": 0.96, "conflict_right_first": 0.9, "conflict_right_last": 0.9}
    is_done = reader.ReaderTrainer._is_done
    assert is_done(phase, done)
    assert not is_done(phase, {**done, "contested": 0.9})
    assert not is_done(phase, {**done, "conflict_right_last": 0.5})
    assert not is_done(reader.PHASES[-1], done)
