"""On a CUDA device in fp32 the stages give the numbers of the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lever_pipe.base import storage
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.studies import parse_experiment
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import LvlmRequest
from lever_pipe.stages.rewards import reward_groups
from lever_pipe.stages.selector_training import initialise_selector, train_grpo_epoch, train_rce_epoch
from tests.unit.builders import prepared, training_files, world_files

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ROOT = Path(__file__).parents[2]
EXPERIMENT = parse_experiment(yaml.safe_load((ROOT / "config.yaml").read_text()))
RUN = {"preset": "world", "seed": "0", "epoch": "1"}


def outputs(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in ("selector", "optimiser", "metrics")}


def config(stage: str, wildcards: dict[str, str] | None = None) -> Any:
    return config_of(EXPERIMENT, stage, wildcards or {})


def train(folder: Path, files: dict[str, Path], device: str) -> dict[str, dict[str, float]]:
    """Return the metrics of one RCE and one GRPO epoch."""
    runtime = Runtime(device=device)
    start, rce, grpo = (outputs(folder / device / name) for name in ("init", "rce", "grpo"))
    embeddings = files["embeddings"]
    own = config("initialise_selector", RUN)
    initialise_selector(embeddings=embeddings, start=(), **start, config=own, runtime=runtime)
    common = {"groups": files["groups"], "embeddings": embeddings}
    first = train_rce_epoch(
        **common, start=start["selector"], start_optimiser=start["optimiser"], **rce,
        config=config("train_rce_epoch", RUN), runtime=runtime,
    )  # fmt: skip
    second = train_grpo_epoch(
        **common, start=rce["selector"], start_optimiser=rce["optimiser"], reference=rce["selector"], **grpo,
        config=config("train_grpo_epoch", RUN | {"base": "1", "beta": "0.15"}), runtime=runtime,
    )  # fmt: skip
    return {"rce": first.values, "grpo": second.values}


def test_epochs_on_both_devices(tmp_path: Path) -> None:
    files = training_files(tmp_path)
    files["groups"] = tmp_path / "groups"
    reward_groups(rl_data=files["rl_data"], groups=files["groups"], config=config("reward_groups", RUN))
    cpu, cuda = (train(tmp_path, files, device) for device in ("cpu", "cuda"))
    for stage, values in cpu.items():
        # A few dozen steps of fp32 with sums in another order.
        assert cuda[stage] == {name: pytest.approx(value, abs=1e-3) for name, value in values.items()}


def test_answers_on_both_devices(tmp_path: Path) -> None:
    rows = {f"{split}_examples": tmp_path / f"{split}.jsonl" for split in ("train", "eval")}
    raw = world_files(tmp_path, EXPERIMENT.data.world.model_copy(update=SMALL))
    prepared(tmp_path, raw, EXPERIMENT.data, n_eval=100)
    train, queries = (storage.read_examples(path) for path in rows.values())
    splits = [(train, raw["train"]["images"]), (queries, raw["eval"]["images"])]
    settings = config("answer_prompts").lvlm
    prompts = [Wording(settings.prompt).prompt(q, train[i : i + 4]) for i, q in enumerate(queries)]
    requests, folder = [LvlmRequest(prompt) for prompt in prompts], ROOT / EXPERIMENT.lvlm.model
    cpu, cuda = (
        load_lvlm(settings, folder, splits, Runtime(device=device)).run(requests) for device in ("cpu", "cuda")
    )
    assert [reply.text for reply in cpu] == [reply.text for reply in cuda]


SMALL = {"n_train": 600, "n_eval": 100}
