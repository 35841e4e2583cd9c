"""Dialogues in the format of a model folder: sampled tokens stay as they were sampled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_doubles import TASKS, log_probs_of, player_of, scripted
from tiny_tokenizer import save_tokenizer, tiny_tokenizer

from lever_pipe.experiment.agent_model import TinyQwen3
from lever_pipe.experiment.environment import Environment
from lever_pipe.intention.agent.policy import build_tiny, load_policy, save_policy
from lever_pipe.intention.agent.rollout import Episode, EpisodeRequest
from lever_pipe.intention.codecs import hf
from lever_pipe.intention.codecs.hf import HfCodec
from lever_pipe.intention.records import MissingDetail, Task

TOKENIZER = tiny_tokenizer()
CODEC = HfCodec(TOKENIZER, "tiny")
TASK = Task(
    id="t",
    category="travel",
    task="Plan a trip.",
    missing_details=(
        MissingDetail(description="budget", importance=3, options=("low",)),
        MissingDetail(description="date", importance=2, options=("soon",)),
    ),
)


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def roll(model: object, tasks: list[Task], max_new_tokens: int = 120) -> list[Episode]:
    requests = [EpisodeRequest(task, i, 0, (0, "test", i)) for i, task in enumerate(tasks)]
    rules = Environment(max_turns=4)
    player = player_of(model, codec=CODEC, environment=rules, max_context=2000, max_new_tokens=max_new_tokens)
    return player.play(requests).episodes


def call(content: str) -> str:
    function = {"name": "interact_with_env", "arguments": {"choice": "action", "content": content}}
    return f"<tool_call>\n{json.dumps(function)}\n</tool_call>"


def test_sampled_tokens_are_kept_and_never_made_again() -> None:
    # A thought as no tokenizer would cut it: letter by letter.
    spelled = [token for letter in "Money first." for token in ids(letter)]
    first = [*ids("<think>"), *spelled, *ids("</think>"), *ids(call("what about budget") + "<|im_end|>")]
    assert first != ids("<think>Money first.</think>" + call("what about budget") + "<|im_end|>")
    second = ids(call("what about date") + "<|im_end|>")
    policy = scripted({"t": [first, second]}, [TASK], codec=CODEC, prefix=ids("<|im_start|>assistant\n"))
    (episode,) = roll(policy, [TASK])
    assert (episode.rewards, episode.end) == ([1.0, 0.7], "complete")
    assert episode.tokens == [*CODEC.prompt(TASK), *first, *CODEC.feedback("budget is low", 1.0), *second]
    assert [t for t, mine in zip(episode.tokens, episode.is_agent, strict=True) if mine] == first + second


def test_a_model_folder_is_rolled_out_with_the_log_probs_of_a_plain_forward_pass(tmp_path: Path) -> None:
    tiny = TinyQwen3(hidden=32, heads=2, kv_heads=1, head_dim=16, mlp=48, positions=2048)
    save_tokenizer(tmp_path / "tokenizer")
    save_policy(tmp_path / "model", build_tiny(tiny, len(CODEC._tokenizer), 0), CODEC)
    model = load_policy(tmp_path / "model", "float32")
    assert hf.load(tmp_path / "model").prompt(TASK) == CODEC.prompt(TASK)
    for episode in roll(model, [TASK, *TASKS[:3]], max_new_tokens=20):
        # The published bound for float32.
        assert episode.log_probs == pytest.approx(log_probs_of(model, episode), abs=1e-4)
