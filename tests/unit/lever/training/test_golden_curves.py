"""Twenty optimiser steps of every trainer, number by number: a computation changes on purpose or not at all."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from golden_curves import COMMAND, CURVES, FOLDER, N_STEPS, REWRITE, Curve, Golden, path_here, read, verdict, write

from lever_pipe.base import numerics
from lever_pipe.experiment import execution
from lever_pipe.experiment.stage_configs import Runtime

SMALL: Curve = {"step 1": {"loss": 0.1 + 0.2, "kl": 0.0}, "step 2": {"loss": -3e-9}, "epoch 1": {"loss": 2000.0}}


@pytest.mark.parametrize("name", CURVES)
def test_a_training_repeats_its_recorded_curve(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execution.prepare(Runtime())  # also where a start policy is taught before any stage runs
    found = CURVES[name](tmp_path, monkeypatch)
    if os.environ.get(REWRITE) == "1" and numerics.path() == "same_everywhere":
        write(name, path_here(), found)
        pytest.fail(f"{name}.csv is written: commit it with the reason, and run this test without the variable")
    said = verdict(name, read(name), found, path_here())
    assert not said, said


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


def test_a_file_gives_every_bit_back(tmp_path: Path) -> None:
    write("small", "path", SMALL, tmp_path)
    assert read("small", tmp_path) == Golden("path", SMALL)


def changed(where: str, term: str, value: float) -> Curve:
    return {**SMALL, where: {**SMALL[where], term: value}}


ONE_BIT = math.nextafter(SMALL["step 1"]["loss"], 1)


@pytest.mark.parametrize(
    ("found", "first"),
    [
        (changed("step 1", "loss", ONE_BIT), f"step 1, loss: recorded {0.1 + 0.2!r}, found {ONE_BIT!r}"),
        (changed("step 2", "loss", 3e-9), "step 2, loss: recorded -3e-09, found 3e-09"),
        (changed("step 2", "loss", math.nan), "step 2, loss: recorded -3e-09, found nan"),
        (changed("step 2", "kl", 0.0), "step 2, kl: recorded None, found 0.0"),
        ({**SMALL, "step 1": {"loss": 0.1 + 0.2}}, "step 1, kl: recorded 0.0, found None"),
        ({"step 1": SMALL["step 1"]}, "step 2: recorded, but no longer computed"),
        ({**SMALL, "step 3": {}}, "step 3: not recorded"),
    ],
)
def test_the_first_difference_is_named_and_what_to_do(found: Curve, first: str) -> None:
    said = verdict("small", Golden("same", SMALL), found, "same")
    assert f"First difference: {first}.\n" in said
    assert f"run\n  {COMMAND}\n" in said
    assert "commit curves/small.csv together with the change and its reason" in said


def test_equal_curves_pass() -> None:
    assert not verdict("small", Golden("same", SMALL), SMALL, "same")


@pytest.mark.parametrize(
    ("where", "term", "value", "passes"),
    [
        ("epoch 1", "loss", 2000.3, True),
        ("epoch 1", "loss", 2000.5, False),
        ("step 2", "loss", 1.9e-4, True),
        ("step 2", "loss", 2.1e-4, False),
        ("step 1", "loss", math.nan, False),
    ],
)
def test_another_path_may_round_otherwise_and_no_more(where: str, term: str, value: float, passes: bool) -> None:
    said = verdict("small", Golden("that of a workstation", SMALL), changed(where, term, value), "that here")
    assert (not said) is passes
    assert passes or "recorded on that of a workstation, computed on that here" in said
