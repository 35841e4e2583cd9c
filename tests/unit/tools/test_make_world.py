"""The shipped models are those of their card, and their training takes the steps that it took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lever_pipe.base.storage import read_json
from lever_pipe.experiment.data import WorldData
from tools.make_world import encoder, reader
from tools.make_world.__main__ import folder_digests, probe_reader
from tools.make_world.architectures import READERS, Reader
from tools.make_world.probes import check_bounds

ROOT = Path(__file__).parents[3] / "resources" / "world"
# Of a shorter training: four steps of the vision tower and one of each phase, then ten steps of CLIP.
READER_LOSSES = [4.96581, 4.96982, 4.97608, 4.95037, 8.64236, 9.75145, 9.39936, 8.48091, 8.32443, 6.82744]
CLIP_LOSSES = [3.19171, 3.03421, 2.99562, 2.92543, 2.75769, 2.85145, 2.77301, 2.77330, 2.77707, 2.82594]


@pytest.fixture(scope="module")
def model_card() -> dict[str, Any]:
    found: dict[str, Any] = read_json(ROOT / "model_card.json")
    return found


def test_the_shipped_files_are_those_of_the_card(model_card: dict[str, Any]) -> None:
    assert folder_digests(ROOT) == model_card["sha256"]


@pytest.mark.parametrize("name", READERS)
def test_probes_reproduce_the_card_and_meet_all_bounds(model_card: dict[str, Any], name: str) -> None:
    model = Reader.from_pretrained(ROOT / name).eval()
    assert model.num_parameters() == model_card["readers"][name]["parameters"]
    # An eighth as many queries as the model card has.
    of_card = {name: model_card["world"][name] for name in WorldData.model_fields.keys() & model_card["world"].keys()}
    summary = probe_reader(model, WorldData(**{**of_card, "n_eval": 100}))
    assert check_bounds(summary) == []
    for probe, score in summary.items():
        # Shares near 30 % of 75 queries have a standard deviation of 5.3 points.
        assert abs(score.truth - model_card["readers"][name]["probes"][probe]["equals_fact"]) < 15


class NoProbes:
    """Replace the probe world, whose 1800 images take a second to draw."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def truth_shares(self, model: Reader) -> dict[str, float]:
        return dict.fromkeys(("conflict_right_first", "conflict_right_last"), 0.0)


def recorded(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list to which every step of a module's training appends its loss."""
    losses, take_step = list[float](), module.take_step

    def record(optimizer: Any, loss: Any, clipped: Any) -> None:
        losses.append(loss.item())
        take_step(optimizer, loss, clipped)

    monkeypatch.setattr(module, "take_step", record)
    return losses


def test_ten_steps_of_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = recorded(reader, monkeypatch)
    for name, value in {"VISION_STEPS": 4, "N_VISION_IMAGES": 4, "N_FRESH_IMAGES": 4, "_ProbeWorld": NoProbes}.items():
        monkeypatch.setattr(reader, name, value)
    monkeypatch.setattr(reader, "PHASES", tuple(replace(phase, n_steps=1, batch=4) for phase in reader.PHASES))
    reader.ReaderTrainer(0).run()
    assert losses == pytest.approx(READER_LOSSES, rel=1e-4)  # other CPUs round differently


def test_ten_steps_of_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = recorded(encoder, monkeypatch)
    for name, value in {"N_STEPS": 10, "N_IMAGES": 4, "BATCH": 16}.items():
        monkeypatch.setattr(encoder, name, value)
    encoder.train_clip(0)
    assert losses == pytest.approx(CLIP_LOSSES, rel=1e-4)
