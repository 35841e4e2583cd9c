from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from verl_examples import RECORDED, REWARD, console, json_lines, scalars

from lever_pipe.base.errors import RecordError
from lever_pipe.intention.verl.logs import RunLog, is_validation, read_log


def run(folder: Path, *texts: str) -> RunLog:
    paths = [folder / f"{index}.log" for index in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return read_log(paths)


def numbers(log: RunLog) -> dict[int, dict[str, float]]:
    return {step: {key: reading.value for key, reading in readings.items()} for step, readings in log.steps.items()}


def test_a_resumed_run_keeps_the_later_account() -> None:
    log = read_log([RECORDED])
    assert list(log.steps) == [0, 1, 2, 3, 4, 5]
    assert log.n_replaced == 1  # step 4
    assert log.steps[4]["actor/entropy"].value == 0.217
    assert log.steps[4]["critic/score/mean"].value == 1.640
    # The resumed run validates step 3 again: only that is new.
    assert log.steps[3][REWARD].value == 1.820
    assert log.steps[3]["actor/pg_loss"].value == 0.150
    assert log.steps[3]["timing_s/testing"].value == 58


def test_steps_beyond_the_resumption_are_not_of_this_run(tmp_path: Path) -> None:
    first = [(step, {"actor/pg_loss": float(step)}) for step in range(1, 8)]
    log = run(tmp_path, console(first) + console([(4, {REWARD: 1.5})]) + console([(5, {"actor/pg_loss": 50.0})]))
    assert numbers(log) == {
        1: {"actor/pg_loss": 1},
        2: {"actor/pg_loss": 2},
        3: {"actor/pg_loss": 3},
        4: {"actor/pg_loss": 4, REWARD: 1.5},
        5: {"actor/pg_loss": 50},
    }
    assert log.n_replaced == 3


def test_a_step_that_is_logged_again_forgets_its_former_values(tmp_path: Path) -> None:
    lines = [(1, {"actor/pg_loss": 1.0, "actor/kl_loss": 0.5, REWARD: 1.0}), (1, {"actor/pg_loss": 2.0})]
    assert numbers(run(tmp_path, console(lines))) == {1: {"actor/pg_loss": 2}}


def test_files_continue_each_other(tmp_path: Path) -> None:
    first = [(1, {"actor/pg_loss": 1.0}), (2, {"actor/pg_loss": 2.0})]
    second = [(2, {"actor/pg_loss": 20.0}), (3, {"actor/pg_loss": 30.0})]
    found = numbers(run(tmp_path, console(first), json_lines(second)))
    assert [found[step]["actor/pg_loss"] for step in (1, 2, 3)] == [1, 20, 30]


def test_exact_scalars_beside_a_console_replace_its_rounded_numbers(tmp_path: Path) -> None:
    steps = [(0, {REWARD: 1.7125}), (1, {"actor/lr": 1e-6, "actor/pg_loss": 0.12345}), (2, {"actor/pg_loss": 0.5})]
    assert numbers(run(tmp_path, console(steps), scalars(steps))) == {step: dict(values) for step, values in steps}


def test_a_fault_in_the_second_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"1\.log:1: "):
        run(tmp_path, console([(1, {"actor/pg_loss": 1.0})]), "step:2 - actor\n")


@pytest.mark.parametrize(("key", "expected"), [(REWARD, True), ("val-aux/x/score", True), ("actor/value", False)])
def test_validation_keys(key: str, *, expected: bool) -> None:
    assert is_validation(key) == expected


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    segments=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    back=st.lists(st.integers(0, 6), min_size=4, max_size=4),
)
def test_a_log_in_pieces_is_what_the_last_piece_of_each_step_says(
    tmp_path: Path, segments: list[int], back: list[int]
) -> None:
    """Oracle: a run as a stack of steps, from which a resumption takes off what comes after its checkpoint."""
    stack: list[tuple[int, float]] = []
    lines = []
    for piece, length in enumerate(segments):
        stack = stack[: max(0, len(stack) - back[piece])]
        lines.append((len(stack), {REWARD: float(piece)}))
        for _ in range(length):
            stack.append((len(stack) + 1, 10.0 * piece + len(stack)))
            lines.append((stack[-1][0], {"actor/pg_loss": stack[-1][1]}))
    for written in (console, json_lines):
        found = numbers(run(tmp_path, written(lines)))
        assert {s: v["actor/pg_loss"] for s, v in found.items() if "actor/pg_loss" in v} == dict(stack)
        assert max(found) == len(stack)
