from __future__ import annotations

import time
from pathlib import Path

import torch

from lever_pipe.base import contents, numerics, storage
from lever_pipe.base.provenance import code_of
from lever_pipe.base.records import RunCard
from lever_pipe.experiment import execution
from lever_pipe.experiment.run_card import digested, start_model, write_card
from lever_pipe.experiment.stage_configs import MergeRlDataConfig, Runtime, SelectBaselineConfig


def test_a_card_says_how_an_artefact_came_to_be(tmp_path: Path) -> None:
    for name in ("a", "b0", "b1", "folder/x"):
        storage.write_text(tmp_path / name, name)
    config = SelectBaselineConfig(baseline="oracle", shots=2, seed=1)
    write_card(
        tmp_path / "card",
        stage="select_baseline",
        config=config,
        inputs={"a": tmp_path / "a", "b": (tmp_path / "b0", tmp_path / "b1"), "f": tmp_path / "folder"},
        started=time.perf_counter() - 2,
        runtime=Runtime(device="cuda", threads=3),
    )
    card = storage.read_row(tmp_path / "card", RunCard)
    assert SelectBaselineConfig.model_validate(card.config) == config
    names = {"a": "a", "b[0]": "b0", "b[1]": "b1", "f": "folder"}
    assert card.inputs == {name: contents.digest(tmp_path / path) for name, path in names.items()}
    assert (card.stage, card.device, card.threads) == ("select_baseline", "cuda", 3)
    assert card.code == code_of("select_baseline")
    assert "numerics" not in card.versions  # of a GPU
    assert 2 <= card.seconds < 60


def test_a_card_without_config_or_inputs(tmp_path: Path) -> None:
    write_card(tmp_path / "card", stage="merge_rl_data", config=MergeRlDataConfig(), inputs={}, started=0.0,
               runtime=Runtime())  # fmt: skip
    card = storage.read_row(tmp_path / "card", RunCard)
    assert card.config == {}
    assert card.versions["numerics"] == numerics.path()


def test_a_policy_is_an_input_if_a_rule_made_it(tmp_path: Path) -> None:
    files = (tmp_path / "config.json", tmp_path / "model.safetensors")
    for path in files:
        path.touch()
    assert digested("train_agent", {"start": files}) == {"start[0]": files[0], "start[1]": files[1]}
    assert digested("train_agent", {"start": (tmp_path,)}) == {}
    assert (start_model({"start": (tmp_path,)}), start_model({"start": files}), start_model({})) == (
        tmp_path,
        None,
        None,
    )


def test_a_process_has_its_threads_and_deterministic_kernels() -> None:
    assert execution.prepare(Runtime(threads=2)) == torch.device("cpu")
    assert torch.get_num_threads() == 2
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
