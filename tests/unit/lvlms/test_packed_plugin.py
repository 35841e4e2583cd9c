from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders import example
from engine_bench import settings
from safetensors.torch import load_file, save_file

from lever_pipe.base import numerics
from lever_pipe.base.errors import ConfigError, DataError, ImageError
from lever_pipe.base.records import Example
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.lvlm import PromptSettings
from lever_pipe.lvlms.asking.answering import LedgerLvlm, open_lvlm
from lever_pipe.lvlms.asking.ledger import Ledger, engines_of
from lever_pipe.lvlms.asking.prompts import Prompt, Turn, Wording
from lever_pipe.lvlms.protocol import ImageSource, LvlmRequest

STYLE = PromptSettings(layout="turns", system="", demonstration="{question} {answer}", query="{question}")
WORDING = Wording(STYLE)
QUESTIONS = ("what color is the cat", "how many men", "where is this", "what kind of dog", "is this food")
ANSWERS = ("red", "two dog", "blue", "green train table", "one")

Load = Callable[..., LedgerLvlm]


@pytest.fixture(scope="module")
def examples(paths: dict[str, Path]) -> list[Example]:
    return [
        example(i, image_digest=digest, question=QUESTIONS[i % 5], answer=ANSWERS[i % 5])
        for i, digest in enumerate(paths)
    ]


@pytest.fixture
def load(folder: Path, paths: dict[str, Path]) -> Load:
    def loaded(ledger: Path | None = None, root: Path = folder, images: dict[str, Path] = paths, **options: object):
        chosen = settings("qwen2_5_vl", **{"wave": 600, **options})  # type: ignore[arg-type]
        return open_lvlm(chosen, root, ImageSource(images), Runtime(ledger=str(ledger or "")))

    return loaded


@pytest.fixture
def requests(examples: list[Example]) -> list[LvlmRequest]:
    chosen = [((), 9), ((0,), 9), ((0, 1, 2, 3), 8), ((3, 2), 8), ((5,), 6), ((0,), 9)]
    built = [WORDING.prompt(examples[q], [examples[d] for d in displayed]) for displayed, q in chosen]
    return [LvlmRequest(prompt, ("red", "two dog")[: 1 + i % 2]) for i, prompt in enumerate(built)]


def test_a_warm_ledger_answers_without_any_forward(load, requests, tmp_path: Path) -> None:
    cold = load(tmp_path)
    replies = cold.run(requests)
    warm = load(tmp_path, images={})  # not one image is opened
    assert warm.run(requests) == replies
    counters = warm.counters
    assert (counters["forwards"], counters["images_encoded"]) == (0, 0)
    assert counters["prompts_from_ledger"] == counters["prompts_distinct"] == 5
    assert len(list(tmp_path.glob("*.jsonl"))) == 1  # nothing to add, nothing written


@pytest.mark.parametrize(
    "change", [{"num_beams": 3}, {"max_new_tokens": 4}, {"dtype": "bfloat16"}, {"length_penalty": 1.0}]
)
def test_the_key_depends_on_what_the_answer_depends_on(load, requests, change: dict[str, object]) -> None:
    plain, other, batched = load(), load(**change), load(wave=9999)
    prompts = _prompts(plain, requests)
    assert len({plain.key(p) for p in prompts}) == 5
    assert {plain.key(p) for p in prompts}.isdisjoint(other.key(p) for p in prompts)
    # The size of a batch moves last bits only; sharing across it is what removes that noise.
    assert [plain.key(p) for p in prompts] == [batched.key(p) for p in prompts]


def test_the_key_depends_on_weights_and_image_processor(load, requests, folder: Path, tmp_path: Path) -> None:
    plain = load()
    prompt = _prompts(plain, requests)[0]
    moved = _copy(folder, tmp_path / "same")
    assert load(root=moved).key(prompt) == plain.key(prompt)
    weights = load_file(moved / "model.safetensors")
    weights[_key(weights, "model.norm.weight")][0] += 1e-3
    save_file(weights, moved / "model.safetensors", metadata={"format": "pt"})
    resized = _copy(folder, tmp_path / "resized")
    settings = json.loads((resized / "preprocessor_config.json").read_text())
    settings["size"]["longest_edge"] *= 2
    (resized / "preprocessor_config.json").write_text(json.dumps(settings))
    assert len({plain.key(prompt), load(root=moved).key(prompt), load(root=resized).key(prompt)}) == 3


def test_a_broken_image_is_named_and_what_was_done_is_kept(load, requests, paths, tmp_path: Path) -> None:
    broken = tmp_path / "half.png"
    victim = requests[3].prompt.images[0]
    whole = paths[victim].read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    engine = load(tmp_path / "ledger", images={**paths, victim: broken})
    engine.run(requests[:2])
    with pytest.raises(ImageError, match=r"half\.png: "):
        engine.run(requests)
    warm = load(tmp_path / "ledger")
    warm.run(requests[:2])
    assert warm.counters["forwards"] == 0


@pytest.mark.parametrize("location", ["question", "answer", "given answer"])
def test_control_tokens_in_the_data_are_refused(load, requests, location: str) -> None:
    bad = "a<|im_end|>b"
    turns = (Turn("user", ("what", bad if location == "question" else "is it")), Turn("assistant", ("red",)))
    if location == "answer":
        turns = (*turns[:1], Turn("assistant", (bad,)))
    prompt = Prompt((turns, (Turn("user", ("and now",)),)))
    with pytest.raises(DataError, match=r"<\|im_end\|>"):
        load().run([LvlmRequest(prompt, (bad,) if location == "given answer" else ())])


def test_a_prompt_beyond_the_context_never_runs(load, requests, folder: Path, tmp_path: Path) -> None:
    short = _copy(folder, tmp_path / "short")
    settings = json.loads((short / "config.json").read_text())
    settings["text_config"]["max_position_embeddings"] = 100
    (short / "config.json").write_text(json.dumps(settings))
    engine = load(root=short)
    expected = (
        r"prompt of 5 images that ends with '.*what kind of dog.*': "
        r"expected at most 100 tokens .* found \d{3}\. Show fewer"
    )
    with pytest.raises(DataError, match=expected):
        engine.run(requests)
    assert (engine.counters["forwards"], engine.counters["images_encoded"]) == (0, 0)


def test_a_budget_below_one_prompt_names_a_remedy(load, requests) -> None:
    with pytest.raises(
        ConfigError, match=r"lvlm\.kv_tokens: .* found 100, and a prompt that needs (\d+)\. Raise"
    ) as problem:
        load(kv=100).run(requests)
    needed = int(str(problem.value).rsplit("needs ", 1)[1].split(".")[0])
    load(kv=needed).run(requests)  # the named need is exact
    with pytest.raises(ConfigError):
        load(kv=needed - 1).run(requests)


def _key(weights: dict[str, torch.Tensor], end: str) -> str:
    return next(name for name in weights if name.endswith(end))


def _copy(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def _prompts(engine: LedgerLvlm, requests: list[LvlmRequest]):
    return [request.prompt for request in engine.tokenize(requests)]


def test_answers_of_two_paths_never_mix(load, requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the plugin itself: the second path computes all, and one ledger contains both with their descriptions."""
    load(tmp_path).run(requests)
    here = numerics.path()
    monkeypatch.setattr(numerics, "path", lambda: "another")
    engine = load(tmp_path)
    engine.run(requests)
    assert engine.counters["prompts_from_ledger"] == 0
    engines = engines_of(tmp_path)
    assert sorted(one["numerics"] for one in engines.values()) == sorted(["another", here])
    counts = Ledger(tmp_path).rows_by_engine()
    assert counts.keys() == engines.keys()
    assert len(set(counts.values())) == 1
