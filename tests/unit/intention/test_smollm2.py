"""A real pretrained agent: SmolLM2-135M from its GGUF through the codec, the rollout and the warm start.

And the way of `config/intention_smollm2.yaml` from a folder to a trained policy, with a served user, at a size that
takes seconds: the folder's model is tiny and random, and is taught to call the tool.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from agent_doubles import log_probs_of, player_of, rule_user
from endpoint_double import Double, completion, serve
from snakemake.utils import update_config
from tiny_tokenizer import tiny_tokenizer
from trained_world import read_run, train_here

from lever_pipe.__main__ import main
from lever_pipe.base import storage
from lever_pipe.base.chat import Connection
from lever_pipe.base.errors import CheckpointError, ConfigError
from lever_pipe.base.model_folders import problems_of
from lever_pipe.commands.convert_tool import convert_gguf
from lever_pipe.experiment.agent_model import TinyQwen3
from lever_pipe.experiment.agent_tasks import SyntheticTasks
from lever_pipe.experiment.agent_training import TrainAgentConfig
from lever_pipe.experiment.environment import Environment
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.plans import agents
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.experiment.warm_start import WarmStartAgentConfig
from lever_pipe.intention.agent.policy import build_tiny, load_policy, save_policy
from lever_pipe.intention.agent.rollout import EpisodeRequest
from lever_pipe.intention.agent.warm_start import Demonstrator, in_parts
from lever_pipe.intention.codecs import hf
from lever_pipe.intention.codecs.hf import HfCodec
from lever_pipe.intention.codecs.protocol import ToolCall
from lever_pipe.intention.records import EpisodeRow, StepRow
from lever_pipe.intention.sources import synthetic
from lever_pipe.stages.agent_training import warm_start_agent

ROOT = Path(__file__).parents[3]
TASKS = synthetic.read(SyntheticTasks(n_train=4, n_val=2, n_test=2))
CALL = ToolCall("action", "what about budget and date")
PARAMETERS = 134_515_008  # as the model is published
LAYERS = 4


def experiment(**changes: Any) -> Experiment:
    return laid_over({"intention": changes})


def laid_over(changes: dict[str, Any]) -> Experiment:
    values: dict[str, Any] = {}
    for name in ("config.yaml", "config/intention_smollm2.yaml"):
        update_config(values, yaml.safe_load((ROOT / name).read_text()))
    update_config(values, changes)
    return parse_experiment(values)


# --- the real model


@pytest.fixture(scope="module")
def gguf(real_parts: Callable[[str], Path]) -> Iterator[Path]:
    """Return the file; readers and maps of names are cached, because each takes seconds to build."""
    library = pytest.importorskip("gguf")
    reader_of = cache(library.GGUFReader)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "GGUFReader", lambda path: reader_of(str(path)))
        patch.setattr(library, "get_tensor_name_map", cache(library.get_tensor_name_map))
        yield real_parts("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def folder(gguf: Path, real_parts: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    converted = tmp_path_factory.mktemp("models") / "SmolLM2-135M-Instruct"
    template = str(real_parts("chat-templates") / "qwen2_5.jinja")
    assert main(["convert", str(gguf), "--into", str(converted), "--chat-template", template]) == 0
    return converted


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load_policy(folder, "float32")


def unpacked(blocks: np.ndarray) -> np.ndarray:
    """Return the values of Q4_1 blocks, 20 bytes each: scale, minimum, and 32 nibbles, the low ones first."""
    scale, minimum = (blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return scale * nibbles + minimum


def test_the_folder_holds_what_the_quantised_file_stands_for_and_shared_weights_once(gguf: Path, folder: Path) -> None:
    from gguf import GGUFReader
    from safetensors import safe_open

    assert problems_of(folder, files=("config.json", "tokenizer.json", "chat_template.jinja")) == []
    stored = {tensor.name: tensor for tensor in GGUFReader(gguf).tensors}
    with safe_open(folder / "model.safetensors", "pt") as found:
        names = list(found.keys())
        assert sum(found.get_tensor(name).numel() for name in names) == PARAMETERS
        assert not any("lm_head" in name for name in names)
        mlp, norm = (found.get_tensor(f"model.layers.7.{name}.weight") for name in ("mlp.up_proj", "input_layernorm"))
    source = stored["blk.7.ffn_up.weight"]
    assert source.tensor_type.name == "Q4_1"
    assert np.array_equal(mlp.numpy().reshape(-1, 32), unpacked(np.asarray(source.data).reshape(-1, 20)))
    assert np.array_equal(norm.numpy(), stored["blk.7.attn_norm.weight"].data)


def test_it_speaks_sense_and_its_tokens_are_read_back(folder: Path, model: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text in ("Plan a trip for 4 people, 2027-06-01.", "äöü 漢字 \n\t  <b>", hf.SYSTEM):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(output)


def test_it_is_rolled_out_and_taught_as_every_policy(folder: Path, model: Any) -> None:
    model = copy.deepcopy(model)
    model.model.layers = model.model.layers[:LAYERS]  # one is as all
    model.config.num_hidden_layers = LAYERS
    codec = hf.load(folder)
    assert codec.parse(codec.call(CALL)).calls == (CALL,)
    rules = experiment().intention
    assert len(codec.call(CALL)) <= rules.model.max_new_tokens
    player = player_of(model, codec=codec, environment=Environment(max_turns=1), max_context=1024, max_new_tokens=6)
    (first, second) = player.play([EpisodeRequest(TASKS.train[0], 0, n, (0, "test", n)) for n in range(2)]).episodes
    assert first.tokens[: first.n_prompt] == second.tokens[: first.n_prompt] == codec.prompt(TASKS.train[0])
    assert first.log_probs == pytest.approx(log_probs_of(model, first), abs=1e-4)  # float32

    one_turn = rules.environment.model_copy(update={"max_turns": 1})
    maker = Demonstrator(codec, rule_user(), one_turn, rules.warm_start, max_context=rules.model.max_context)
    batch = [maker.hold(TASKS.train[0], np.random.default_rng(0))]
    (loss,) = in_parts(model, batch, codec.pad_id, 1)
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-3 * parameter.grad
            parameter.grad = None
        (after,) = in_parts(model, batch, codec.pad_id, 1)
    assert float(after) < float(loss.detach())


# --- refusals


def test_each_problem_of_a_gguf_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "m.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    if find_spec("gguf"):
        with pytest.raises(CheckpointError, match=r"m\.gguf: expected a readable GGUF file"):
            convert_gguf(broken, tmp_path / "new")
        with pytest.raises(CheckpointError, match="expected a folder to be made; found one that is there"):
            convert_gguf(broken, tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    monkeypatch.setattr("lever_pipe.commands.convert_tool.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"accelerate and gguf.*pip install 'lever-pipe\[gguf\]'"):
        convert_gguf(broken, tmp_path / "new")


# --- a folder that is taught, and a served user


def test_a_folder_is_taken_as_it_is_unless_asked() -> None:
    untouched = experiment(warm_start={"folder_micro_batch": None})
    assert (untouched.intention.is_taught, experiment().intention.is_taught) == (False, True)
    # At its default the key is no part of an identity: the tiny model's warm start stays what it was.
    assert "folder_micro_batch" not in untouched.intention.warm_start.model_dump()
    with pytest.raises(ConfigError, match=r"folder_micro_batch: must be null with tasks\.source='intentiongym'"):
        experiment(tasks={"source": "intentiongym"}, simulator={"kind": "openai"})
    with pytest.raises(ConfigError, match="folder_micro_batch: must be null with engine='verl'"):
        experiment(engine="verl")


# Read both as a reply and as a judgement.
ANSWER = json.dumps({"response": "soon", "analysis": "", "is_task_related": True, "covered_detail_indices": [0]})


def test_a_folder_is_taught_to_call_and_trained_with_a_served_user(tmp_path: Path) -> None:
    tokenizer = HfCodec(tiny_tokenizer(), "tiny")
    sizes = TinyQwen3(hidden=64, layers=1, heads=2, kv_heads=1, head_dim=16, mlp=64, positions=2048)
    save_policy(tmp_path / "model", build_tiny(sizes, len(tiny_tokenizer()), 0), tokenizer)
    found = experiment(
        model={"folder": str(tmp_path / "model"), "dtype": "float32", "max_context": 1600, "max_new_tokens": 120},
        simulator={"kind": "openai"},
        environment={"max_turns": 1},
        warm_start={"steps": 90, "batch": 6, "learning_rate": 1e-2, "early_stop": 0, "double": 0, "irrelevant": 0},
        grpo={"steps": 1, "prompts": 2, "group": 2, "micro_batch": 2},
        evaluation={"every": 1},
    )
    for name in ("train", "val"):
        storage.write_rows(tmp_path / f"{name}.jsonl", getattr(TASKS, name)[:2])
    teaching = config_of(found, "warm_start_agent", {})
    assert isinstance(teaching, WarmStartAgentConfig)
    policy = tmp_path / "policy"
    files = [policy / name for name in ("model.safetensors", "config.json", *agents.codec_files(found.intention))]
    warm_start_agent(
        train_tasks=tmp_path / "train.jsonl",
        start=(tmp_path / "model",),
        weights=files[0],
        settings=files[1],
        codec=tuple(files[2:]),
        metrics=tmp_path / "warm.jsonl",
        config=teaching,
    )
    steps = storage.read_rows(tmp_path / "warm.jsonl", StepRow)
    assert steps[-1].values["loss"] < 0.5 < 4 < steps[0].values["loss"]
    assert all(step.values["tokens_per_second"] > 0 for step in steps)
    assert hf.load(policy).prompt(TASKS.train[0]) == tokenizer.prompt(TASKS.train[0])
    with serve(always=completion(ANSWER)) as double:
        row = _train(tmp_path, tuple(files), found, double)
    episodes = storage.read_rows(tmp_path / "run/episodes.jsonl", EpisodeRow)
    assert row.values["simulator_requests"] > 0 == row.values["simulator_failures"]
    assert max(sum(each.rewards) for each in episodes) > 0
    assert len(double.requests) >= row.values["simulator_requests"]


def _train(folder: Path, start: tuple[Path, ...], found: Experiment, double: Double) -> StepRow:
    config = config_of(found, "train_agent", {"arm": "kl", "seed": "0"})
    assert isinstance(config, TrainAgentConfig)
    train_here(folder / "run", config, tasks=folder, start=start, connection=Connection(base_url=double.url))
    (row,) = read_run(folder / "run").metrics
    return row


def write_gguf(path: Path, extra: Iterable[str], rope: dict[str, str | float]) -> None:
    """Write a llama of one layer, with further tensors of 16 values and keys of its rotary positions."""
    writer = pytest.importorskip("gguf").GGUFWriter(path, "llama")
    for key, value in {
        "block_count": 1, "context_length": 64, "embedding_length": 16, "feed_forward_length": 24, "head_count": 2,
        "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "vocab_size": 8, "tokenizer_model": "gpt2", "bos_token_id": 7,
        "token_list": [*"abcdef", "ab", "<|end|>"], "token_merges": ["a b"], "token_types": [1] * 8, "eos_token_id": 7,
    }.items():  # fmt: skip
        getattr(writer, f"add_{key}")(value)
    for key, value in rope.items():
        (writer.add_string if isinstance(value, str) else writer.add_float32)(f"llama.rope.{key}", value)
    of_layer = {f"attn_{name}": (16, 16) for name in ("q", "k", "v", "output")} | {
        "attn_norm": (16,),
        "ffn_norm": (16,),
    }
    of_layer |= {"ffn_gate": (24, 16), "ffn_up": (24, 16), "ffn_down": (16, 24)}
    shapes = {f"blk.0.{name}.weight": shape for name, shape in of_layer.items()}
    shapes |= {"token_embd.weight": (8, 16), "output.weight": (8, 16), "output_norm.weight": (16,)}
    draw = np.random.default_rng(0)
    for name, shape in {**shapes, **dict.fromkeys(extra, (16,))}.items():
        writer.add_tensor(name, draw.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


BIASES = [f"blk.0.attn_{name}.bias" for name in ("k", "output", "q", "v")]


@pytest.mark.parametrize(
    ("extra", "rope", "message"),
    [
        (["rope_freqs.weight"], {}, "rotary positions that are not scaled; found rope_freqs.weight"),
        ([], {"scaling.type": "yarn"}, "rotary positions that are not scaled; found llama.rope.scaling.type"),
        ([], {"scaling.factor": 4.0}, "rotary positions that are not scaled; found llama.rope.scaling.factor"),
        ([], {"scale_linear": 4.0}, "rotary positions that are not scaled; found llama.rope.scale_linear"),
        (
            BIASES,
            {},
            f"only tensors that transformers loads into LlamaForCausalLM; found {', '.join(BIASES[:3])} and 1 more",
        ),
        ([], {"scaling.type": "none", "scaling.factor": 4.0}, ""),
    ],
)
def test_what_transformers_would_leave_out_is_refused(
    tmp_path: Path, extra: list[str], rope: dict[str, str | float], message: str
) -> None:
    path, folder = tmp_path / "m.gguf", tmp_path / "new"
    write_gguf(path, extra, rope)
    if not message:
        assert folder / "model.safetensors" in convert_gguf(path, folder)
        return
    with pytest.raises(CheckpointError, match=f"expected {re.escape(message)}"):
        convert_gguf(path, folder)
    assert not folder.exists()
    with pytest.raises(CheckpointError, match=r"none\.jinja: expected a readable chat template"):
        convert_gguf(path, folder, tmp_path / "none.jinja")
