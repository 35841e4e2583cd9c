"""What runs only on a cluster is at least read by the programs that it is written for."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "profiles" / "slurm" / "config.yaml"
LAUNCHER = ROOT / "profiles" / "slurm" / "accelerate" / "fsdp.yaml"


def profile() -> dict[str, object]:
    return yaml.safe_load(PROFILE.read_text(encoding="utf-8"))


def test_the_profile_names_rules_that_exist() -> None:
    text = (ROOT / "workflow" / "rules" / "intention.smk").read_text(encoding="utf-8")
    rules = set(re.findall(r"^ *rule (\w+):", text, flags=re.MULTILINE))
    assert profile()["set-resources"].keys() <= rules
    assert profile()["set-threads"].keys() <= rules


def test_each_process_has_its_gpu_and_its_launcher() -> None:
    train = profile()["set-resources"]["train_agent"]
    assert train["processes"] == train["gpu"] == 3
    assert train["device"] == "cuda"
    assert (ROOT / train["launcher"]) == LAUNCHER
    assert LAUNCHER.is_file()


def test_the_profile_is_read_as_snakemake_reads_it() -> None:
    from snakemake.profiles import ProfileConfigFileParser

    with PROFILE.open(encoding="utf-8") as stream:
        read = ProfileConfigFileParser().parse(stream)
    assert f"train_agent:launcher={LAUNCHER.relative_to(ROOT)}" in read["set-resources"]
    assert "train_agent:gpu=3" in read["set-resources"]
    assert read["executor"] == "slurm"


@pytest.mark.parametrize("processes", [3, 8])
def test_accelerate_reads_its_configuration_as_fsdp2(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    """The launcher's way: file -> arguments -> environment of the processes -> what a process makes of it."""
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    assert load_config_from_file(str(LAUNCHER)).distributed_type.value == "FSDP"
    words = ["--config_file", str(LAUNCHER), "--num_processes", str(processes), "--module", "lever_pipe"]
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert arguments.num_processes == processes
    assert arguments.use_fsdp
    environment = prepare_multi_gpu_env(arguments)
    for name, value in environment.items():
        if name.startswith(("FSDP_", "ACCELERATE_")) and os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.cpu_ram_efficient_loading is False
    assert not hasattr(plugin.cpu_offload, "pin_memory")  # that of CPUOffloadPolicy
    assert plugin.auto_wrap_policy is not None
