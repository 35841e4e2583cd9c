"""Each rule asks for what its configured models need, in the words of the cluster, and for more after a failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake.utils import update_config

from lever_pipe.experiment.plans import models
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime import sizing

ROOT = Path(__file__).parents[3]
GPU_RULES = {
    *("embed_examples", "generate_rl_data", "search_beams", "answer_prompts", "answer_controls"),
    "train_on_policy_epoch",
}


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def experiment(*files: str) -> Experiment:
    values: dict[str, Any] = {}
    for name in ("config.yaml", *files):
        update_config(values, yaml.safe_load((ROOT / name).read_text()))
    return parse_experiment(values)


MODEL_RULES = tuple(sizing.PRODUCTION_MODEL)


def first(resources_of: Callable[[str], sizing.Resources], rule: str, attempt: int = 1) -> dict[str, Any]:
    requested = resources_of(rule).resources
    return {k: v({"seed": "0"}, attempt=attempt) if callable(v) else v for k, v in requested.items()}


def test_the_worlds_run_without_gpu_on_one_core() -> None:
    resources_of = sizing.resources_for(experiment())
    for rule in MODEL_RULES:
        requested = first(resources_of, rule)
        assert resources_of(rule).threads == 1, rule
        assert requested["device"] == "cpu"
        assert not requested.keys() & {"gpu", "gres"}
        assert requested["mem_mb"] <= 4000


def test_the_production_models_run_on_one_gpu_each() -> None:
    resources_of = sizing.resources_for(experiment("config/okvqa_qwen2_5_vl_3b.yaml"))
    for rule in GPU_RULES:
        requested = first(resources_of, rule)
        assert (requested["device"], requested["gpu"], requested["nodes"]) == ("cuda", 1, 1), rule
        assert requested["mem_mb"] < 200_000  # half a node of 8 such GPUs at most
    for rule in ("train_agent", "evaluate_start"):
        assert first(resources_of, rule)["device"] == "cpu"  # this experiment has the tiny agent


def test_a_servers_model_asks_for_no_gpu_and_no_folder() -> None:
    published = experiment("config/okvqa_qwen2_5_vl_3b.yaml")
    decode = published.lvlm.decode.model_copy(update={"num_beams": 1})
    lvlm = published.lvlm.model_copy(update={"engine": "served", "model": "some/model", "decode": decode})
    served = published.model_copy(update={"lvlm": lvlm})
    resources_of = sizing.resources_for(served)
    assert {first(resources_of, rule)["device"] for rule in sizing.ASKING} == {"cpu"}
    assert {model.key for model in sizing.loaded(published)} - {model.key for model in sizing.loaded(served)} == {
        "lvlm.model"
    }
    assert models.lvlm_config(served.lvlm).model_identity == "some/model"


def test_every_rule_that_loads_a_model_has_a_size() -> None:
    """All but the tiny agent's own training, which loads none."""
    models = sizing.loaded(experiment("config/intention_qwen3_8b.yaml")) + sizing.loaded(experiment())
    assert {rule for model in models for rule in model.rules} == {*sizing.PRODUCTION_MODEL} - {"warm_start_agent"}


@pytest.mark.parametrize("attempt", [2, 3])
def test_each_attempt_asks_for_the_first_memory_and_time_once_more(attempt: int) -> None:
    resources_of = sizing.resources_for(experiment("config/okvqa_qwen2_5_vl_3b.yaml"))
    for rule in MODEL_RULES:
        once = first(resources_of, rule)
        grown = {key: attempt * once[key] for key in ("mem_mb", "runtime")}
        assert first(resources_of, rule, attempt) == once | grown


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("gpu", {"gpu": 1}),
        ("gpu:a100", {"gpu": 1, "gpu_model": "a100"}),
        ("gres", {"gres": "gpu:1"}),
        ("gres:a100", {"gres": "gpu:a100:1"}),
    ],
)
def test_one_switch_says_how_gpus_are_asked_for(request_: str, expected: dict[str, Any]) -> None:
    resources_of = sizing.resources_for(experiment("config/intention_qwen3_8b.yaml"), gpu_request=request_)
    requested = {k: v for k, v in resources_of("train_agent").resources.items() if k in ("gpu", "gres", "gpu_model")}
    assert requested == expected
    assert sizing.gpus_of(requested) == 1


@pytest.mark.parametrize(
    ("requested", "gpus"),
    [({"gpu": 2}, 2), ({"gres": "gpu"}, 1), ({"gres": "shard:8,gpu:3"}, 3), ({"gres": "gpu:a100:2"}, 2), ({}, 0)],
)
def test_a_forecast_counts_gpus_in_whichever_words(requested: dict[str, object], gpus: int) -> None:
    assert sizing.gpus_of(requested) == gpus
