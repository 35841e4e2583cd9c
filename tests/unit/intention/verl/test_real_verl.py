"""The launch files and the reader of logs against verl itself: its configuration, its checks and its console.

`pip install --no-deps` of the extra `verl` suffices: no import of it needs Ray. Parts that are not separate
modules are extracted from its source.
"""

from __future__ import annotations

import ast
import importlib.util
import numbers
import re
import warnings
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from verl_examples import arm, bundle, render_config

from lever_pipe.experiment.agent_training import Schedule
from lever_pipe.experiment.intention import RenderVerlConfig
from lever_pipe.intention.verl.conversion import NAMES, TOTAL, read_log
from lever_pipe.intention.verl.launch import launch_files

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    hydra = pytest.importorskip("hydra")
    from omegaconf import OmegaConf
found = importlib.util.find_spec("verl")
if found is None or found.origin is None:
    pytest.skip("verl is not installed", allow_module_level=True)
VERL = Path(found.origin).parent
MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"
OF_THE_FORK = {f"{MULTI_TURN}.{name}" for name in ("model_name", "trajectory_score_method", "turn_level_method")}
"""Keys that verl 0.4.0 lacks: UserRL's fork added them."""
TOOLS = f"{MULTI_TURN}.tool_config_path=x"
"""As `launch.sh` adds it."""
ARMS = {
    "plain": arm(),
    "bundle": bundle(seed=3),
    "constant": arm("warm", schedule=Schedule(warmup_steps=4), trajectory_score="r2g", learning_rate=5e-7),
}


def overrides(config: RenderVerlConfig) -> list[str]:
    return [line for line in launch_files(config)["overrides.txt"].splitlines() if not line.startswith("#")]


def composed(*lines: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with hydra.initialize_config_dir(str(VERL / "trainer/config"), version_base=None):
            return hydra.compose("ppo_trainer", overrides=list(lines))


def key_of(line: str) -> str:
    return line.partition("=")[0].removeprefix("++")


def accepted(config: RenderVerlConfig) -> list[str]:
    return [line for line in overrides(config) if key_of(line) not in OF_THE_FORK]


def part_of(module: str, *names: str, **given: Any) -> dict[str, Any]:
    """Return classes and functions of verl's source, which their module's imports would not let us import."""
    nodes = [node for node in ast.walk(ast.parse((VERL / module).read_text())) if getattr(node, "name", "") in names]
    exec(compile(ast.Module(nodes, []), module, "exec"), given)
    return given


TRAINER = part_of("trainer/ppo/ray_trainer.py", "AdvantageEstimator", "_validate_config", Enum=Enum)


@pytest.mark.parametrize("name", ARMS)
def test_verl_composes_what_is_rendered_and_reads_each_value_as_it_is_meant(name: str) -> None:
    lines = accepted(render_config(arm=ARMS[name]))
    config = composed(*lines)
    for line in lines:
        value: Any = config
        for part in key_of(line).split("."):
            value = value[part]
        assert value == ast.literal_eval(line.partition("=")[2]), line


def test_the_estimator_is_the_forks() -> None:
    assert "grpo_multiturn" not in {each.value for each in TRAINER["AdvantageEstimator"]}
    config = composed(*accepted(render_config()), TOOLS)
    trainer = SimpleNamespace(config=config, use_reference_policy=True, use_critic=False)
    with pytest.raises(AssertionError, match="only GRPO is tested for multi-turn"):
        TRAINER["_validate_config"](trainer)
    OmegaConf.update(config, "algorithm.adv_estimator", "grpo")
    TRAINER["_validate_config"](trainer)


def test_every_metric_that_is_read_is_one_that_verl_logs() -> None:
    folders = ("trainer/ppo", "workers", "utils")
    source = "".join(path.read_text() for folder in folders for path in (VERL / folder).rglob("*.py"))
    timed = {f"timing_s/{name}" for name in re.findall(r'_timer\("(\w+)"', source)}
    prefixed = {f"global_seqlen/{name}" for name in re.findall(r'f"\{prefix\}/(\w+)"', source)}
    assert 'logging_prefix="global_seqlen"' in source
    other = {name for name in {*NAMES, TOTAL} - timed - prefixed if f'"{name}"' not in source}
    assert other == {"actor/entropy"}  # so in the fork and from 0.4.1 on
    assert '"actor/entropy_loss"' in source


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    logged=st.dictionaries(st.sampled_from(sorted(NAMES)), st.floats(-1e6, 1e6), min_size=1), step=st.integers(0, 999)
)
def test_what_verls_console_prints_is_read(tmp_path: Path, logged: dict[str, float], step: int) -> None:
    name = "concat_dict_to_str"
    written = part_of("utils/logger/aggregate_logger.py", name, numbers=numbers, Dict=dict)[name]
    (tmp_path / "console.log").write_text(f"(TaskRunner pid=7) {written({**logged, 'note': 'text'}, step)}\n")
    found = read_log(tmp_path / "console.log")
    assert {key: reading.value for key, reading in found[step].items()} == {
        k: float(f"{v:.3f}") for k, v in logged.items()
    }
    assert all(reading.is_rounded for reading in found[step].values())
