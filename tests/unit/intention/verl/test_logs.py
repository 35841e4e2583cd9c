from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from verl_examples import RECORDED, REWARD, console

from lever_pipe.base.errors import RecordError
from lever_pipe.intention.verl.conversion import read_log

STEPS = {1: {"actor/lr": 1e-6, "actor/pg_loss": -0.25}, 2: {"actor/pg_loss": 0.125, REWARD: 1.8175}}


def read(folder: Path, text: str | bytes) -> dict[int, dict[str, float]]:
    path = folder / "console.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return {step: {key: of.value for key, of in readings.items()} for step, readings in read_log(path).items()}


def test_the_console_of_the_fork_gives_three_decimals_and_says_so(tmp_path: Path) -> None:
    for rounded, rate in ((True, 0.0), (False, 1e-6)):
        assert read(tmp_path, console(STEPS.items(), rounded=rounded))[1]["actor/lr"] == rate
        found = read_log(tmp_path / "console.log")
        assert {reading.is_rounded for readings in found.values() for reading in readings.values()} == {rounded}


@pytest.mark.parametrize(
    "mark",
    [
        "(WorkerDict pid=7) ",
        "(WorkerDict pid=7) he says:\r",
        "Training Progress: 7%|1/15 [9s/it](WorkerDict pid=7) ",
        "(ActorRolloutRefWorker pid=7, ip=10.0.0.3) ",
        "the agent says: ",
    ],
)
def test_a_dialogue_cannot_pass_for_a_step(tmp_path: Path, mark: str) -> None:
    forged = console([(9, {REWARD: 99.0})], mark=mark)
    assert list(read(tmp_path, forged + console(STEPS.items()) + forged)) == [1, 2]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step:3 - actor/pg_loss:0.1 - actor/kl_lo\n", r"console.log:3: expected `key:value` items"),
        ("step:3 - actor/pg_loss:\n", r"console.log:3: expected `key:value` items"),
        ("step:3 - actor/pg_loss:0,1\n", r"console.log:3: .*'actor/pg_loss:0,1'"),
        ("step:3 - actor/pg_loss:0.1", r"console.log:3: expected a whole line; found the file's end"),
    ],
)
def test_a_damaged_log_is_named_with_its_line(tmp_path: Path, line: str, expected: str) -> None:
    with pytest.raises(RecordError, match=expected):
        read(tmp_path, console(STEPS.items()) + line)


def test_a_resumed_run_keeps_the_later_account() -> None:
    steps = read_log(RECORDED)
    assert list(steps) == [0, 1, 2, 3, 4, 5]
    assert steps[4]["actor/entropy"].value == 0.217
    assert steps[4]["critic/score/mean"].value == 1.640
    # The resumed run validates step 3 again: only that is new.
    assert steps[3][REWARD].value == 1.820
    assert steps[3]["actor/pg_loss"].value == 0.150
    assert steps[3]["timing_s/testing"].value == 58


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    segments=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    back=st.lists(st.integers(0, 6), min_size=4, max_size=4),
)
def test_a_log_in_pieces_is_what_the_last_piece_of_each_step_says(
    tmp_path: Path, segments: list[int], back: list[int]
) -> None:
    """Oracle: a run as a stack of steps; a resumption removes the steps after its checkpoint."""
    stack: list[tuple[int, float]] = []
    lines = []
    for piece, length in enumerate(segments):
        stack = stack[: max(0, len(stack) - back[piece])]
        lines.append((len(stack), {REWARD: float(piece)}))
        for _ in range(length):
            stack.append((len(stack) + 1, 10.0 * piece + len(stack)))
            lines.append((stack[-1][0], {"actor/pg_loss": stack[-1][1]}))
    found = read(tmp_path, console(lines))
    assert {s: v["actor/pg_loss"] for s, v in found.items() if "actor/pg_loss" in v} == dict(stack)
    assert max(found) == len(stack)
