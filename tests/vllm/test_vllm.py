"""vLLM answers the embedded world as the packed engine and the model library do."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lvlm_world import LVLM, lvlm_config, world

from lever_pipe.base import storage
from lever_pipe.base.errors import CheckpointError, DataError
from lever_pipe.experiment.job_runtime import LvlmExecution, Runtime, VllmSettings
from lever_pipe.experiment.lvlm import LvlmConfig
from lever_pipe.lvlms.asking.answering import LedgerLvlm, load_lvlm
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import LvlmReply, LvlmRequest

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
OF_VLLM = Runtime(lvlm=LvlmExecution(vllm=VllmSettings(memory_share=0.1, eager=True, image_cache_gb=0.1)))
PROMPTS = 400
GIVEN = ("yes", "no", "red", "two dogs")
TOLERANCE = 1e-4
"""Sums of float32 in another order."""


def replies_with(engine: str, **decode: Any) -> LvlmConfig:
    settings = lvlm_config()
    return settings.model_copy(update={"engine": engine, "decode": settings.decode.model_copy(update=decode)})


def opened(config: LvlmConfig, runtime: Runtime = Runtime(), folder: Path = LVLM) -> LedgerLvlm:
    train = storage.read_examples(world() / "train.jsonl")
    return load_lvlm(config, folder, [(train, world() / "train_images")], runtime)


@cache
def requests(count: int = PROMPTS, answers: tuple[str, ...] = ()) -> list[LvlmRequest]:
    """Return prompts of 0 to 4 demonstrations, each number as often."""
    train, rng = storage.read_examples(world() / "train.jsonl"), np.random.default_rng(0)
    wording = Wording(lvlm_config().prompt)
    sampled = [rng.permutation(len(train)).tolist() for _ in range(count)]
    return [
        LvlmRequest(wording.prompt(train[first], [train[i] for i in displayed[: number % 5]]), answers)
        for number, (first, *displayed) in enumerate(sampled)
    ]


@pytest.mark.parametrize("other", ["qwen2_5_vl", "hf"])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("penalty", [1.0, 1.05])
def test_answers_are_equal(other: str, beams: int, penalty: float) -> None:
    search = {"num_beams": beams, "repetition_penalty": penalty}
    prompts = requests()[: PROMPTS if other == "qwen2_5_vl" else PROMPTS // 4]
    ours = answers_of_vllm(beams, penalty)[: len(prompts)]
    theirs = opened(replies_with(other, **search)).run(prompts)
    assert [(reply.text, reply.n_tokens) for reply in ours] == [(reply.text, reply.n_tokens) for reply in theirs]


@cache
def answers_of_vllm(beams: int, penalty: float) -> list[LvlmReply]:
    return opened(replies_with("vllm", num_beams=beams, repetition_penalty=penalty), OF_VLLM).run(requests())


def test_given_answers_have_the_same_probabilities() -> None:
    prompts = requests(100, GIVEN)
    ours = opened(replies_with("vllm"), OF_VLLM).run(prompts)
    theirs = opened(replies_with("qwen2_5_vl")).run(prompts)
    for one, other in zip(ours, theirs, strict=True):
        assert one.answer_log_probs == pytest.approx(other.answer_log_probs, abs=TOLERANCE)


def test_a_prompt_beyond_the_context_is_told() -> None:
    small = LvlmExecution(vllm=OF_VLLM.lvlm.vllm.model_copy(update={"context": 40}))
    with pytest.raises(DataError, match="expected at most 40 tokens with its answer"):
        opened(replies_with("vllm"), Runtime(lvlm=small)).run(requests(5))


def test_a_folder_that_vllm_cannot_open_is_told(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(LVLM, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["NoSuchModel"]}))
    with pytest.raises(CheckpointError, match=r"can open here.*Set lvlm.engine: hf"):
        opened(replies_with("vllm"), OF_VLLM, folder).run(requests(5))
