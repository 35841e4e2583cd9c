from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from verl_examples import RECORDED, REWARD, console, convert_config, json_lines, scalars

from lever_pipe.base.errors import LeverPipeError, RecordError
from lever_pipe.intention.verl.conversion import NAMES, convert
from lever_pipe.intention.verl.logs import Logged, RunLog, read_file, read_log

STEPS = [(1, {"actor/lr": 1e-6, "actor/pg_loss": -0.25}), (2, {"actor/pg_loss": 0.125, REWARD: 1.8175})]


def read(folder: Path, text: str | bytes, name: str = "console.log") -> list[Logged]:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_file(path)


def values(logged: list[Logged]) -> list[tuple[int, dict[str, float]]]:
    return [(step, {key: reading.value for key, reading in readings.items()}) for step, readings in logged]


@pytest.mark.parametrize("written", [lambda s: console(s, rounded=False), json_lines, scalars])
def test_exact_formats_give_the_logged_numbers(tmp_path: Path, written: Callable[[object], str]) -> None:
    assert values(read(tmp_path, written(STEPS))) == STEPS


def test_the_console_of_the_fork_gives_three_decimals_and_says_so(tmp_path: Path) -> None:
    first, second = read(tmp_path, console(STEPS))
    assert first.readings["actor/lr"].value == 0
    assert second.readings["actor/pg_loss"].value == 0.125
    assert all(reading.is_rounded for line in (first, second) for reading in line.readings.values())
    exact = read(tmp_path, console(STEPS, rounded=False))
    assert not any(reading.is_rounded for line in exact for reading in line.readings.values())


@pytest.mark.parametrize(
    "mark",
    [
        "(TaskRunner pid=12) ",
        "(main_task pid=12, ip=10.0.0.3) ",
        "\x1b[36m(TaskRunner pid=12)\x1b[0m ",
        "Training Progress:   7%|█▊ | 1/15 [00:49<11:33, 49.09s/it]",
        "Training Progress:   7%|█▊ | 1/15 [00:49<11:33, 49.09s/it]\r(TaskRunner pid=12) ",
        "Training Progress:   7%|█▊ | 1/15 [00:49<11:33, 49.09s/it]\x1b[36m(TaskRunner pid=12)\x1b[0m ",
        "(TaskRunner pid=12) Training Progress:   7%|█▊ | 1/15 [00:49<11:33, 49.09s/it]",
        "  ",
    ],
)
def test_what_stands_before_a_line_is_no_matter(tmp_path: Path, mark: str) -> None:
    assert values(read(tmp_path, console(STEPS, rounded=False, mark=mark))) == STEPS


@pytest.mark.parametrize(
    "mark",
    [
        "(WorkerDict pid=7) ",
        "(WorkerDict pid=7) he says:\r",
        "Training Progress: 7%|1/15 [9s/it](WorkerDict pid=7) ",
        "(ActorRolloutRefWorker pid=7, ip=10.0.0.3) ",
        "the agent says: ",
        "global_",
        "> quoted ",
    ],
)
def test_a_dialogue_cannot_pass_for_a_step(tmp_path: Path, mark: str) -> None:
    forged = console([(9, {REWARD: 99.0})], mark=mark)
    assert [line.step for line in read(tmp_path, forged + console(STEPS) + forged)] == [1, 2]


@pytest.mark.parametrize("written", ["0.5", "5e-1", ".5", "+0.50", "np.float64(0.5)", "np.float32(0.5)"])
def test_numbers_are_read_as_versions_print_them(tmp_path: Path, written: str) -> None:
    (line,) = read(tmp_path, f"step:1 - actor/pg_loss:{written}\n")
    assert line.readings["actor/pg_loss"].value == 0.5


@pytest.mark.parametrize("written", ["nan", "-inf", "NaN", "np.float64(nan)"])
def test_what_is_no_number_is_left_to_who_needs_it(tmp_path: Path, written: str) -> None:
    (line,) = read(tmp_path, f"step:1 - critic/vf:{written}\n")
    assert not math.isfinite(line.readings["critic/vf"].value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (console(STEPS) + "step:3 - actor/pg_loss:0.1 - actor/kl_lo\n", r"console.log:3: expected `key:value` items"),
        (console(STEPS) + "step:3 - actor/pg_loss:\n", r"console.log:3: expected `key:value` items"),
        (console(STEPS) + "step:3 - actor/pg_loss:0,1\n", r"console.log:3: .*'actor/pg_loss:0,1'"),
        (console(STEPS) + "step:3 - actor/pg_loss:1_0\n", r"console.log:3: "),
        (console(STEPS) + "step:3 - actor/pg_loss:0.1", r"console.log:3: expected a whole line; found the file's end"),
        ("step:12345678901 - actor/pg_loss:0.1\n", r"console.log:1: expected a step's number of at most 9 digits"),
        (json_lines(STEPS) + '{"step": 3, "da', r"console.log:3: expected a JSON object"),
        (json_lines(STEPS) + '{"step": "3", "data": {}}\n', r"console.log:3: expected `\{\"step\""),
        (json_lines(STEPS) + '{"step": true, "data": {}}\n', r"console.log:3: "),
        (json_lines(STEPS) + '{"step": -3, "data": {}}\n', r"console.log:3: expected a step's number"),
        (json_lines(STEPS) + "[]\n", r"console.log:3: "),
        (json_lines(STEPS) + "[" * 100_000 + "\n", r"console.log:3: "),
        (scalars(STEPS) + "3,actor/pg_loss\n", r"console.log:6: expected `step,key,value`"),
        (scalars(STEPS) + "3,actor/pg_loss,x\n", r"console.log:6: "),
        (scalars(STEPS) + "x,actor/pg_loss,1\n", r"console.log:6: expected a step's number"),
        (scalars(STEPS) + '3,"actor/pg_loss,1\n', r"console.log:6: expected CSV"),
        ("", r"console.log: expected a log of verl.*; found an empty file"),
        ("\n\n", r"found an empty file"),
        ("<!DOCTYPE html>\n<html></html>\n", r"found no line of a step; it begins with '<!DOCTYPE html>'"),
        (b"\x89PNG\r\n\x1a\n\x00\xff" * 50, r"found no line of a step"),
        ("step,key,value\n", r"found no line of a step"),
    ],
)
def test_a_damaged_log_is_named_with_its_line(tmp_path: Path, text: str | bytes, expected: str) -> None:
    with pytest.raises(RecordError, match=expected):
        read(tmp_path, text)


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"gone.log: expected a log; found no such file"):
        read_file(tmp_path / "gone.log")
    with pytest.raises(RecordError, match="no such file"):
        read_file(tmp_path)


def test_bytes_that_are_no_text_do_not_matter_between_the_lines(tmp_path: Path) -> None:
    assert (
        values(read(tmp_path, b"\xff\xfe\x00 half an emoji \xf0\x9f\n" + console(STEPS, rounded=False).encode()))
        == STEPS
    )
    assert values(read(tmp_path, b"\xef\xbb\xbf" + scalars(STEPS).encode())) == STEPS


def test_scalars_of_a_resumed_run_lose_what_came_after_the_resumption(tmp_path: Path) -> None:
    rows = [*((s, "actor/pg_loss", s) for s in (1, 2, 3, 4, 5, 3, 4)), *((s, REWARD, s) for s in (0, 3, 5, 2))]
    text = "step,key,value\n" + "".join(f"{step},{key},{value}\n" for step, key, value in [*rows, (5, "timing_s/x", 1)])
    found = values(read(tmp_path, text))
    assert [step for step, _ in found] == [0, 1, 2, 3, 4]
    assert dict(found)[2] == {"actor/pg_loss": 2, REWARD: 2}
    assert REWARD not in dict(found)[3]


def test_scalars_of_a_validation_that_is_repeated_drop_nothing(tmp_path: Path) -> None:
    """Killed right after the checkpoint of step 5: only the validation of that step is there twice."""
    rows = [*((step, "actor/pg_loss", step) for step in range(1, 8)), (0, REWARD, 1), (5, REWARD, 2), (5, REWARD, 3)]
    text = "step,key,value\n" + "".join(f"{step},{key},{value}\n" for step, key, value in rows)
    found = dict(values(read(tmp_path, text)))
    assert list(found) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert found[5][REWARD] == 3


LINES = st.sampled_from(
    [
        console(STEPS),
        console(STEPS, rounded=False),
        json_lines(STEPS),
        scalars(STEPS),
        console([(3, dict.fromkeys(NAMES, 1.5))]),
        "step:4 - actor/pg_loss:1e999 - global_seqlen/mean:1e308\n",
        '{"step": 4, "data": {"global_seqlen/mean": 1e999, "actor/lr": NaN}}\n',
        "{" * 200 + "\n",
        "step,key,value\n",
        "1,global_seqlen/mean,-1e300\n",
        "step:0 - actor/pg_loss:1.000\n",
        f"step:1 - {REWARD}:1e15\n",
        "\x00\n",
    ]
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(LINES | st.text(max_size=40), max_size=5), cut=st.integers(0, 400), flips=st.binary(max_size=4))
def test_no_input_ends_in_a_traceback(tmp_path: Path, parts: list[str], cut: int, flips: bytes) -> None:
    text = bytearray("".join(parts).encode("utf-8", "surrogatepass"))[: cut or None]
    for index, byte in enumerate(flips):
        if text:
            text[(index * 37 + byte) % len(text)] = byte
    path = tmp_path / "console.log"
    path.write_bytes(bytes(text))
    try:
        converted = convert(read_log((path,)), convert_config(planned_steps=9))
    except LeverPipeError as fault:
        assert str(path) in str(fault)
    else:
        assert converted.evaluations


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


def test_a_fault_in_the_second_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"1\.log:1: "):
        run(tmp_path, console([(1, {"actor/pg_loss": 1.0})]), "step:2 - actor\n")


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
