"""Runs of two processes, really launched, against the same run in one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from forked_launch import start
from trained_world import command, interrupted, is_measured, read_run, train_here, training

from lever_pipe.base import storage
from lever_pipe.base.checkpoints import load_tensors
from lever_pipe.base.errors import ConfigError
from lever_pipe.intention.agent import policy, trainer
from lever_pipe.intention.agent.processes import (
    Processes,
    is_main,
    join,
    own_share,
    require_equal_shares,
    require_fsdp2,
)
from lever_pipe.intention.records import DoneRow

ROOT = Path(__file__).parents[4]
FSDP = ["--launcher", str(ROOT / "profiles" / "slurm" / "accelerate" / "fsdp.yaml")]
# Two processes add the same float32 numbers in another order; three steps of AdamW let that grow a little.
TOLERANCE = 1e-5
CONFIG = training(steps=3, learning_rate=2e-4, arm={"kl": 0.1, "entropy": 0.01}, evaluation={"every": 3})


def member(rank: int, size: int) -> Processes:
    return cast("Processes", SimpleNamespace(rank=rank, size=size))


@pytest.mark.parametrize("options", [[], FSDP], ids=["whole models", "FSDP"])
def test_two_processes_give_the_numbers_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    # A single task is one process's alone: the other evaluates nothing, and must still lend its part of the policy.
    val = "single" if options else "val"
    train_here(tmp_path / "one", CONFIG, val)
    if options:  # goes on from the checkpoint of one process: what is spread must be filled and gathered again
        interrupted(tmp_path / "two", CONFIG, 2, monkeypatch, val)
    call = command(tmp_path / "two", CONFIG, "--processes", "2", *options, val=val, checkpoint_every=1)
    assert ("going on behind step 1" in said_by(call, tmp_path)) is bool(options)
    assert_same_run(tmp_path / "one", tmp_path / "two", shared_from=2 if options else 1)


def said_by(call: list[str], folder: Path) -> str:
    process = start(call, folder / "log")
    process.join(200)
    process.kill()
    said = (folder / "log").read_text()
    assert process.exitcode == 0, said[-3000:]
    return said


def assert_same_run(one: Path, two: Path, *, shared_from: int) -> None:
    alone, shared = read_run(one), read_run(two)
    for mine, theirs in zip(alone.metrics, shared.metrics, strict=True):
        expected = {name: value for name, value in mine.values.items() if is_measured(name) and name != "forwards"}
        if mine.step >= shared_from:
            expected["tokens_per_rank"] /= 2
        found = {name: theirs.values[name] for name in expected}
        assert found == pytest.approx(expected, abs=TOLERANCE), mine.step
        assert mine.values.keys() == theirs.values.keys()
    assert shared.episodes == alone.episodes
    assert [row.values for row in shared.evaluations] == [
        pytest.approx(row.values, abs=TOLERANCE) for row in alone.evaluations
    ]
    for folder in ("last", "best"):
        weights, _ = load_tensors(one / folder / "model.safetensors")
        found, _ = load_tensors(two / folder / "model.safetensors")
        # A step of AdamW is up to one learning rate long, however small the gradient whose rounding decides on it.
        torch.testing.assert_close(found, weights, atol=1e-4, rtol=0)
    assert storage.read_row(two / "done.json", DoneRow) == alone.done
    assert not (two / "state").exists()


def test_what_a_large_policy_needs_goes_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a policy, arithmetic in bfloat16, and activations that are computed again in the backward pass."""
    base = training(steps=1, minibatches=1, arm={"kl": 0.1, "entropy": 0.01}, evaluation={"every": 1})
    model = base.policy.model.model_copy(update={"dtype": "bfloat16"})
    config = base.model_copy(update={"policy": base.policy.model_copy(update={"model": model})})
    monkeypatch.setattr(policy, "CHECKPOINT_ABOVE", 0)
    train_here(tmp_path / "one", config)
    prepare = policy.prepare_for_updates

    def telling(model: Any) -> None:
        prepare(model)
        sys.stderr.write(f"recomputes: {model.is_activation_checkpointing}\n")

    monkeypatch.setattr(trainer, "prepare_for_updates", telling)
    said = said_by(command(tmp_path / "two", config, "--processes", "2", *FSDP), tmp_path)
    one, two = (read_run(tmp_path / name).metrics[0].values for name in ("one", "two"))
    assert said.count("recomputes: True") == 2
    assert (two["kl"], two["ratio_max"]) == (0, 1)  # as it was scored, so it is updated from
    names = ("reward", "agent_tokens", "entropy", "pg_loss", "loss", "grad_norm")
    # A number of bfloat16 has 8 bits, and parts are cast whole where a single process casts operation by operation:
    # single terms differ by 1 in 256, means over 256 tokens by less.
    assert {name: two[name] for name in names} == pytest.approx({name: one[name] for name in names}, rel=1e-2)
    weights = load_tensors(tmp_path / "two" / "last" / "model.safetensors")[0]
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


def test_prompts_are_dealt_out_in_turn() -> None:
    assert [own_share("abcdef", member(rank, 3)) for rank in range(3)] == [["a", "d"], ["b", "e"], ["c", "f"]]
    assert own_share("ab", member(2, 3)) == []
    assert [is_main(member(rank, 2)) for rank in (0, 1)] == [True, False]


def test_processes_must_share_a_minibatch_evenly() -> None:
    require_equal_shares(8, 2, member(0, 4))
    with pytest.raises(ConfigError) as caught:
        require_equal_shares(8, 2, member(0, 3))
    message = str(caught.value)
    assert "divides the 4 prompts of a mini-batch (grpo.prompts=8 / grpo.minibatches=2); found 3 processes" in message


def test_a_process_alone_changes_nothing() -> None:
    alone = join(torch.device("cpu"), "float32")
    assert (alone.rank, alone.size) == (0, 1)
    assert alone.combine({"a": 1.5}, "sum") == alone.combine({"a": 1.5}, "max") == {"a": 1.5}
    assert alone.gather("text") == ["text"]
    tensors = {"a": torch.ones(2)}
    copies = alone.collect(tensors)
    tensors["a"] += 1
    assert copies["a"].tolist() == [1, 1]
    alone.fill(tensors, copies)
    assert tensors["a"].tolist() == [1, 1]


def test_bfloat16_computes_in_half_and_keeps_whole_weights() -> None:
    layer = torch.nn.Linear(4, 4)
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        with Processes(torch.device("cpu"), cast("Any", precision)).computing():
            assert layer(torch.ones(1, 4)).dtype is dtype
        assert layer.weight.dtype is torch.float32


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FSDP_VERSION", "1"),
        ("FSDP_OFFLOAD_PARAMS", "true"),
        ("FSDP_RESHARD_AFTER_FORWARD", "false"),
        ("FSDP_CPU_RAM_EFFICIENT_LOADING", "true"),
    ],
)
def test_other_ways_to_spread_a_policy_are_refused(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    settings = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}
    if variable == "FSDP_VERSION":
        settings["FSDP_RESHARD_AFTER_FORWARD"] = "FULL_SHARD"
    for name, setting in (settings | {variable: value}).items():
        monkeypatch.setenv(name, setting)
    with pytest.raises(ConfigError, match=r"expected fsdp_version 2 with .*Use profiles/slurm/accelerate/fsdp\.yaml"):
        require_fsdp2()
