"""Twenty optimizer steps of every trainer, number by number: a computation changes on purpose or not at all."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from golden_curves import CURVES, FOLDER, N_STEPS, REWRITE, path_here, read, verdict, write

from lever_pipe.base import numerics
from lever_pipe.experiment import execution
from lever_pipe.experiment.job_runtime import Runtime


@pytest.mark.parametrize("name", CURVES)
def test_a_training_repeats_its_recorded_curve(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execution.prepare(Runtime())  # also before a start policy is taught, which precedes all stages
    found = CURVES[name](tmp_path, monkeypatch)
    if os.environ.get(REWRITE) == "1" and numerics.path() == "portable":
        write(name, path_here(), found)
        pytest.fail(f"{name}.csv is written: commit it with the reason, and run this test without the variable")
    text = verdict(name, read(name), found, path_here())
    assert not text, text


@pytest.mark.parametrize("name", CURVES)
def test_a_recorded_curve_is_one_of_twenty_steps_that_meet_every_bound(name: str) -> None:
    curve = read(name).curve
    steps = [values for where, values in curve.items() if where.startswith("step ")]
    assert [where for where in curve if where.startswith("step ")] == [f"step {i + 1}" for i in range(N_STEPS)]
    assert len({values["loss"] for values in steps}) == N_STEPS
    assert all(math.isfinite(value) for values in curve.values() for value in values.values())
    if name != "rce":  # the objective that clips nothing
        assert 0 < max(values["clip_fraction"] for values in steps) < 1
    bound = {"agent": "grad_clipped"}.get(name, "clipped_grad_norm")
    assert max(values[bound] for values in steps) == pytest.approx(1, abs=1e-6)  # float32 scales to a norm of 1


def test_nothing_else_is_recorded() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"{name}.csv" for name in CURVES)


def test_one_bit_is_a_difference_on_the_same_path_alone() -> None:
    golden = read("grpo")
    step = golden.curve["step 2"]
    other = {**golden.curve, "step 2": {**step, "loss": math.nextafter(step["loss"], 9)}}
    assert not verdict("grpo", golden, golden.curve, golden.path)
    assert "First difference: step 2, loss" in verdict("grpo", golden, other, golden.path)
    assert not verdict("grpo", golden, other, "that of another machine")
    other["step 2"]["loss"] += 1e-3
    assert "First difference: step 2, loss" in verdict("grpo", golden, other, "that of another machine")
