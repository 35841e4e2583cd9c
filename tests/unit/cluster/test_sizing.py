"""Each rule asks for what its configured models need, in the words of the cluster, and for more after a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake.utils import update_config

from lever_pipe.cluster import sizing
from lever_pipe.errors import ConfigError
from lever_pipe.experiment import Experiment, parse_experiment

ROOT = Path(__file__).parents[3]
GPU_RULES = {"embed_examples", "generate_rl_data", "answer_prompts", "check_world"}


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def experiment(*files: str) -> Experiment:
    values: dict[str, Any] = {}
    for name in ("config.yaml", *files):
        update_config(values, yaml.safe_load((ROOT / name).read_text()))
    return parse_experiment(values)


def first(resources: sizing.Resources, attempt: int = 1) -> dict[str, Any]:
    return {k: v(wildcards=None, attempt=attempt) if callable(v) else v for k, v in resources.items()}


def test_the_worlds_run_without_gpu_on_one_core() -> None:
    for rule, room in sizing.model_rooms(experiment()).items():
        asked = first(room.resources)
        assert room.threads == 1, rule
        assert asked["device"] == "cpu"
        assert asked["processes"] == 1
        assert not asked.keys() & {"gpu", "gres"}
        assert asked["mem_mb"] <= 4000
    assert first(sizing.cpu_room(experiment()))["mem_mb"] <= 4000


def test_the_production_models_run_on_one_gpu_each() -> None:
    lever = experiment("config/okvqa_qwen2_5_vl_3b.yaml")
    rooms = sizing.model_rooms(lever)
    for rule in GPU_RULES:
        asked = first(rooms[rule].resources)
        assert (asked["device"], asked["processes"], asked["gpu"]) == ("cuda", 1, 1), rule
        assert asked["mem_mb"] < 200_000  # half a node of 8 such GPUs at most
    assert first(rooms["train_agent"].resources)["device"] == "cpu"  # this experiment has the tiny agent
    assert first(sizing.cpu_room(lever))["mem_mb"] > first(sizing.cpu_room(experiment()))["mem_mb"]


def test_the_agent_of_8b_trains_on_several_gpus_through_accelerate() -> None:
    rooms = sizing.model_rooms(experiment("config/intention_qwen3_8b.yaml"))
    asked = first(rooms["train_agent"].resources)
    assert asked["processes"] == asked["gpu"] == 3
    assert (ROOT / asked["launcher"]).is_file()
    assert first(rooms["evaluate_agent"].resources)["launcher"] == ""


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_every_attempt_asks_for_its_first_memory_and_time_once_more(attempt: int) -> None:
    for room in sizing.model_rooms(experiment("config/okvqa_qwen2_5_vl_3b.yaml")).values():
        once, now = first(room.resources), first(room.resources, attempt)
        assert (now["mem_mb"], now["runtime"]) == (attempt * once["mem_mb"], attempt * once["runtime"])
        assert {k: v for k, v in now.items() if k not in ("mem_mb", "runtime")} == {
            k: v for k, v in once.items() if k not in ("mem_mb", "runtime")
        }


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("gpu", {"gpu": 3}),
        ("gpu:a100", {"gpu": 3, "gpu_model": "a100"}),
        ("gres", {"gres": "gpu:3"}),
        ("gres:a100", {"gres": "gpu:a100:3"}),
    ],
)
def test_one_switch_says_how_gpus_are_asked_for(request_: str, expected: dict[str, Any]) -> None:
    rooms = sizing.model_rooms(experiment("config/intention_qwen3_8b.yaml"), gpu_request=request_)
    asked = {k: v for k, v in rooms["train_agent"].resources.items() if k in ("gpu", "gres", "gpu_model")}
    assert asked == expected
    assert sizing.gpus_of(asked) == 3


@pytest.mark.parametrize(
    ("asked", "count"),
    [({}, 0), ({"gpu": 2}, 2), ({"gres": "gpu"}, 1), ({"gres": "gpu:a100"}, 1), ({"gres": "gpu:a100:4"}, 4)],
)
def test_gpus_are_counted_in_both_ways_of_asking(asked: dict[str, Any], count: int) -> None:
    assert sizing.gpus_of(asked) == count


def test_another_way_of_asking_is_refused() -> None:
    with pytest.raises(ConfigError, match="gpu_request"):
        sizing.model_rooms(experiment(), gpu_request="gpus")


@pytest.mark.parametrize(("parameters", "device"), [(1000, "cpu"), (sizing.EMBEDDED_PARAMETERS + 1, "cuda")])
def test_the_size_of_the_weights_decides(tmp_path: Path, parameters: int, device: str) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [parameters], "data_offsets": [0, 4 * parameters]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    values = experiment().model_dump(mode="json")
    values["lvlm"]["model"] = str(tmp_path)
    rooms = sizing.model_rooms(parse_experiment(values))
    assert rooms["answer_prompts"].resources["device"] == device
    assert rooms["embed_examples"].resources["device"] == "cpu"


def test_a_study_that_does_not_run_asks_for_nothing() -> None:
    values = experiment("config/okvqa_qwen2_5_vl_3b.yaml").model_dump(mode="json")
    values["studies"] = ["intention"]
    assert first(sizing.cpu_room(parse_experiment(values))) == first(sizing.cpu_room(experiment()))
