"""Every fast family answers as the model library does on the same folder: tokens, log-probabilities, counted work."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
import torch
from families import FAST
from stock_path import StockPath
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lever_pipe.base import rowwise
from lever_pipe.base.records import Example, ExampleId
from lever_pipe.experiment.lvlm_config import PromptSettings
from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._family import Family
from lever_pipe.lvlms._requests import Segment, TokenPrompt, TokenRequest
from lever_pipe.lvlms.asking.prompts import Prompt, Wording
from lever_pipe.lvlms.protocol import ImageSource, LvlmOptions

# Sums of fp32 products in another order, through all layers; a wrong position or feature moves 0.1 or more.
ATOL = 1e-4
QUESTIONS = ("what color is the cat", "where is the bus", "two dog", "what kind of food", "is the man")
ANSWERS = ("red", "red cat", "two", "table", "train")
SHOWN = ((), (0,), (1, 0), (0, 1, 2), (3, 2, 1, 0), (0, 1))
NEW_TOKENS = 6
# Norms and biases are counted with the matrices that they stand beside, and are no matrix product.
RTOL = 0.02


@pytest.fixture(params=sorted(FAST), scope="module")
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tmp_path_factory.mktemp("family") / "model"
    FAST[request.param](folder)
    found: Family = import_module(f"lever_pipe.lvlms.{request.param}").load(folder, dtype="float32", device="cpu")
    return found


@pytest.fixture(scope="module")
def library(family: Family, paths: dict[str, Path]) -> StockPath:
    return StockPath(family, paths)


def prompts(paths: dict[str, Path], layout: str, system: str | None = "") -> list[Prompt]:
    """0 to 4 demonstrations, images of several shapes, beginnings that prompts share."""
    style = PromptSettings(layout=layout, system=system)  # type: ignore[arg-type]
    examples = [
        Example(
            example_id=ExampleId(i), question_id=i, image_id=i, image=f"{i}.png", image_digest=digest,
            question=QUESTIONS[i % 5], question_type="any", answers=(ANSWERS[i % 5],), answer=ANSWERS[i % 5],
        )
        for i, digest in enumerate(paths)
    ]  # fmt: skip
    wording = Wording(style)
    return [wording.prompt(examples[5 + n % 2], [examples[i] for i in shown]) for n, shown in enumerate(SHOWN)]


def tokens_of(family: Family, prompt: Prompt) -> TokenPrompt:
    segments = family.render(prompt).segments
    encoded = family.tokenizer([s.text for s in segments], add_special_tokens=False).input_ids
    return TokenPrompt(tuple(Segment(tuple(ids), s.images) for ids, s in zip(encoded, segments, strict=True)))


def answers_of(family: Family) -> tuple[tuple[int, ...], ...]:
    texts = [family.template.answer(answer) for answer in ANSWERS]
    return tuple((*ids, family.eos) for ids in family.tokenizer(texts, add_special_tokens=False).input_ids)


def run(family: Family, images: ImageSource, asked: list[TokenRequest], decode: DecodeOptions, **more: object):
    counters: Counter[str] = Counter()
    options = LvlmOptions(**{"wave_tokens": 900, "kv_tokens": 20_000, **more})  # type: ignore[arg-type]
    engine = family.engine(images, options=options, decode=decode, counters=counters)
    return engine.run(asked), counters


@pytest.mark.parametrize("layout", ["single_turn", "turns"])
def test_tokens_and_scores_are_those_of_the_stock_class(
    family: Family, library: StockPath, paths: dict[str, Path], layout: str
) -> None:
    images, answers = ImageSource(paths), answers_of(family)
    asked = [tokens_of(family, prompt) for prompt in prompts(paths, layout)]
    decode = DecodeOptions((family.eos,), NEW_TOKENS)
    results, counters = run(family, images, [TokenRequest(p, answers) for p in asked], decode)
    stock = library.tokens(asked, decode)
    assert [result.tokens for result in results] == stock
    assert len(set(stock)) > 2  # a dull model would hide a fault
    for prompt, result in zip(asked, results, strict=True):
        for answer, scores in zip(answers, result.scores, strict=True):
            assert list(scores) == pytest.approx(library.scores(prompt, answer), abs=ATOL)
    assert counters["images_encoded"] == len({digest for prompt in asked for digest in prompt.images})
    assert counters["tokens_prefilled"] == counters["trie_tokens_distinct"]


@pytest.mark.parametrize(("beams", "penalty"), [(3, 1.0), (1, 1.3)])
def test_beams_ends_and_penalties_are_those_of_generate(
    family: Family, library: StockPath, paths: dict[str, Path], beams: int, penalty: float
) -> None:
    images = ImageSource(paths)
    asked = [tokens_of(family, prompt) for prompt in prompts(paths, "turns")]
    plain = DecodeOptions((family.eos,), NEW_TOKENS)
    said = Counter(token for answer in library.tokens(asked, plain) for token in answer)
    ends = tuple(sorted({family.eos, *(token for token, _ in said.most_common(2))}))
    for eos in ((family.eos,), ends):
        decode = DecodeOptions(eos, NEW_TOKENS, beams, 0.0, penalty)
        results, _ = run(family, images, [TokenRequest(p) for p in asked], decode)
        assert [r.tokens for r in results] == library.tokens(asked, decode)


def test_the_model_reacts_to_images(family: Family, paths: dict[str, Path]) -> None:
    images, answers, digests = ImageSource(paths), answers_of(family), list(paths)
    one = tokens_of(family, prompts(paths, "turns")[2])
    other = TokenPrompt(tuple(Segment(s.ids, tuple(digests[7] for _ in s.images)) for s in one.segments))
    decode = DecodeOptions((family.eos,), NEW_TOKENS)
    first, second = run(family, images, [TokenRequest(p, answers) for p in (one, other)], decode)[0]
    assert max(abs(a[0] - b[0]) for a, b in zip(first.scores, second.scores, strict=True)) > 100 * ATOL


@pytest.mark.parametrize("system", ["answer with one word", "", None])
@pytest.mark.parametrize("layout", ["single_turn", "turns"])
def test_prompts_are_those_of_the_folders_chat_template(
    family: Family, paths: dict[str, Path], layout: str, system: str | None
) -> None:
    """Where a template puts in a system text of its own, a prompt that wants none is not one of its prompts."""
    for prompt in prompts(paths, layout, system):
        written = family.render(prompt)
        if system != "" or not family.template.system:
            told = family.tokenizer.apply_chat_template(prompt.messages(), tokenize=False, add_generation_prompt=True)
            assert written.text == told
        whole = family.tokenizer(written.text, add_special_tokens=False).input_ids
        pieces = family.tokenizer([s.text for s in written.segments], add_special_tokens=False).input_ids
        assert [token for piece in pieces for token in piece] == whole


def test_the_towers_work_is_what_torch_counts(
    family: Family, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rowwise, "LEAST_ROWS", 1)  # no rows of zeros, no self-test of a shape
    monkeypatch.setattr(rowwise, "keeps_rows", lambda *_: True)
    images = ImageSource(paths)
    for grid, pixels in family.encoder.pixels([images.open(digest) for digest in paths]):
        # Torch counts attention on a CPU only where it is written out as products.
        with FlopCounterMode(display=False) as measured, torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
            family.encoder.encode(pixels, grid)
        assert family.encoder.flop(grid) == pytest.approx(measured.get_total_flops(), rel=RTOL)
