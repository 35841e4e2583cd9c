from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from agent_doubles import TASKS

from lever_pipe.base import storage
from lever_pipe.base.errors import ConfigError
from lever_pipe.experiment.agent_model import AgentModel, PolicyConfig, TinyQwen3
from lever_pipe.experiment.environment import Environment
from lever_pipe.experiment.warm_start import WarmStart, WarmStartAgentConfig
from lever_pipe.intention.agent.policy import load_policy, policy_folder
from lever_pipe.intention.codecs import word
from lever_pipe.intention.records import StepRow
from lever_pipe.stages.agent_training import warm_start_agent

TINY = TinyQwen3(hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24)
FILES = {
    "weights": "model.safetensors",
    "settings": "config.json",
    "codec": "words.json",
    "metrics": "metrics.jsonl",
}


def config(codec: str = "word", **values: Any) -> WarmStartAgentConfig:
    model = AgentModel(folder="", codec=codec, dtype="float32", max_context=256, max_new_tokens=12, tiny=TINY)
    return WarmStartAgentConfig(
        policy=PolicyConfig(model=model, model_identity="embedded"),
        warm_start=WarmStart(**{"steps": 3, "batch": 4, "warmup_steps": 1} | values),
        environment=Environment(max_turns=8),
    )


def run(folder: Path, **values: Any) -> tuple[StepRow, dict[str, Path]]:
    folder.mkdir()
    storage.write_rows(folder / "tasks.jsonl", TASKS)
    files = {name: folder / file for name, file in FILES.items()}
    given: dict[str, Any] = {**files, "codec": (files["codec"],), "start": ()}
    return warm_start_agent(train_tasks=folder / "tasks.jsonl", **given, config=config(**values)), files


def test_the_files_are_a_policy_with_its_history(tmp_path: Path) -> None:
    row, files = run(tmp_path / "a")
    folder = policy_folder((files["weights"], files["settings"], files["codec"]))
    model = load_policy(folder, "float32")
    assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, word.load(folder).vocabulary_size)
    rows = storage.read_rows(files["metrics"], StepRow)
    assert [each.step for each in rows] == [1, 2, 3]
    assert rows[-1] == row
    assert set(row.values) == {"loss", "learning_rate", "grad_norm"}


def test_another_codec_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"intention\.model\.codec: "):
        run(tmp_path / "a", codec="hf")
