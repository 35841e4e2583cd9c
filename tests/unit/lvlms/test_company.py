"""On a CPU an answer's bits are independent of the rest of its batch, and so of the ledger's contents."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from golden_curves import REWRITE, path_here
from lvlm_world import LVLM, lvlm_config, world
from PIL import Image

from lever_pipe.base import numerics, portable, rowwise
from lever_pipe.base.images import digest_of
from lever_pipe.base.records import Example
from lever_pipe.base.storage import read_examples
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import Lvlm, LvlmReply, LvlmRequest, references_of

pytestmark = pytest.mark.skipif(not LVLM.is_dir(), reason="the embedded world's model is not there")
FEW = 8 if "LEVER_PIPE_CPUINFO" in os.environ else 40
"""Prompts that are asked in company; an emulated CPU takes minutes for 40."""
GOLDEN = Path(__file__).parents[2] / "golden" / "answers.sha256"


@cache
def examples() -> tuple[list[Example], Path]:
    """Return examples and their images; the first ten images have distinct sizes."""
    train, images = read_examples(world() / "train.jsonl"), Path(tempfile.mkdtemp())
    for number, row in enumerate(train):
        with Image.open(world() / "train_images" / row.image) as image:
            width, height = image.size
            wider = image.resize((width + 16 * number, height + 8 * (number % 3))) if number < 10 else image
            wider.save(images / f"{number}.png")
        digest = digest_of(images / f"{number}.png")
        train[number] = row.model_copy(update={"image": f"{number}.png", "image_digest": digest})
    return train, images


@cache
def requests() -> list[LvlmRequest]:
    """Return 40 prompts of ten queries with 1 to 4 demonstrations, among them images of other sizes."""
    train, _ = examples()
    wording, draw = Wording(lvlm_config().prompt), random.Random(0)
    chosen = [(q, draw.sample([j for j in range(24) if j != q], 1 + i)) for q in range(10) for i in range(4)]
    prompts = [(q, wording.prompt(train[q], [train[i] for i in ids])) for q, ids in chosen]
    return [LvlmRequest(prompt, references_of(train[q])) for q, prompt in prompts]


def load(ledger: Path | None = None) -> Lvlm:
    return load_lvlm(lvlm_config(), LVLM, [examples()], Runtime(ledger=str(ledger or "")))


@pytest.fixture(scope="module")
def together() -> list[LvlmReply]:
    return load().run(requests()[:FEW])


def by_parts(size: int) -> list[LvlmReply]:
    """Return the replies in order, asked `size` at a time in a shuffled order."""
    model, prompts = load(), requests()[:FEW]
    order = list(range(len(prompts)))
    random.Random(size).shuffle(order)
    replies: dict[int, LvlmReply] = {}
    for begin in range(0, len(order), size):
        part = order[begin : begin + size]
        replies |= dict(zip(part, model.run([prompts[number] for number in part]), strict=True))
    if not numerics.path().startswith("given"):
        assert model.counters["products_tiled"] == 0
    return [replies[number] for number in range(len(prompts))]


@pytest.mark.parametrize("size", [1, 3, FEW])
def test_a_prompt_answered_in_any_company_has_the_same_bits(together: list[LvlmReply], size: int) -> None:
    assert by_parts(size) == together


@pytest.mark.parametrize("unknown", [1, FEW // 2])
def test_what_the_ledger_knows_changes_no_bit(together: list[LvlmReply], tmp_path: Path, unknown: int) -> None:
    prompts = requests()[:FEW]
    load(tmp_path).run(prompts[unknown:])
    model = load(tmp_path)
    assert model.run(prompts) == together
    assert model.counters["prompts_from_ledger"] == len(prompts) - unknown
    assert model.counters["forwards"] > 0


@pytest.mark.parametrize("size", [1, 3])
def test_so_it_is_in_tiles(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowwise, "keeps_rows", lambda *_: False)
    monkeypatch.setattr(portable, "is_installed", lambda: False)
    prompts = requests()[: min(FEW, 12)]
    whole, parts = load(), load()
    together = whole.run(prompts)
    assert [reply for i in range(0, len(prompts), size) for reply in parts.run(prompts[i : i + size])] == together
    assert whole.counters["products_tiled"] > 0


def require_no_company(way: str) -> None:
    """Fail where a reply depends on its company; `way` begins the name of this process's path."""
    assert numerics.path().split()[0] == way
    together = load().run(requests()[:FEW])
    assert all(by_parts(size) == together for size in (1, 3, 7))


@pytest.mark.emulated
@pytest.mark.parametrize("way", ["fastest", "given"])
def test_so_it_is_with_other_instructions(way: str) -> None:
    """The widest instructions that this machine has, and whatever torch takes by itself."""
    environment = {name: value for name, value in os.environ.items() if name not in numerics.PORTABLE}
    environment[numerics.MODE] = "fastest"
    first = "torch" if way == "given" else "lever_pipe"
    here = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    code = (
        f"import {first}, sys; sys.path[:0] = {here!r}; import test_company; test_company.require_no_company({way!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_cpu_with_avx2_gives_the_same_answers() -> None:
    if numerics.path() != "portable":
        pytest.skip(f"computed on the path '{numerics.path()}', recorded on 'portable'")
    replies = [
        f"LvlmReply(text={reply.text!r}, n_tokens={reply.n_tokens}, answer_log_probs={reply.answer_log_probs!r})"
        for reply in load().run(requests())
    ]
    whole = f"[{', '.join(replies)}]"
    found = f"{hashlib.sha256(whole.encode()).hexdigest()}  {path_here()}\n"
    if os.environ.get(REWRITE) == "1":
        GOLDEN.write_text(found, encoding="utf-8")
    assert GOLDEN.read_text(encoding="utf-8") == found
