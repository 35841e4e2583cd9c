"""Real files of each kind that users hand in, and the reader of the package that reads them.

A reader returns its result in a comparable form: numbers, texts, digests of pixels and answers. So an input that
is taken is known to change nothing, or it is listed with the reason why it may.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from builders import prepared, world_files
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from lever_pipe.base import images, storage
from lever_pipe.base.optimiser import AdamW
from lever_pipe.base.records import Example, Pool, Proposal
from lever_pipe.commands import ledger_tools
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.rl_data import ImportRlDataConfig
from lever_pipe.experiment.studies import parse_experiment
from lever_pipe.intention.sources import intentiongym
from lever_pipe.intention.sources.protocol import RawFiles
from lever_pipe.lever.encoders import clip
from lever_pipe.lever.rl_data_files import write_original
from lever_pipe.lever.selector.network import Architecture, build_selector, load_selector, save_selector
from lever_pipe.lever.training.epoch import resume_optimiser, save_optimiser
from lever_pipe.lever.trajectories import make_group, score_trajectory
from lever_pipe.lvlms.asking.answering import open_lvlm
from lever_pipe.lvlms.asking.ledger import Ledger
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import ImageSource, LvlmRequest, references_of
from lever_pipe.stages.rl_data import import_rl_data

ROOT = Path(__file__).parents[2]
SHIPPED: dict[str, Any] = yaml.safe_load((ROOT / "config.yaml").read_text())
EXPERIMENT = parse_experiment(SHIPPED)
N_TRAIN, N_EVAL, K = 64, 8, 8
ARCHITECTURE = Architecture(
    embedding=6, width=8, layers=1, heads=1, dropout=0.0, attention_dropout=0.0, temperature=0.1
)


class FileReader(NamedTuple):
    """A folder of sound files, and their readers."""

    folder: Path
    read: Callable[[Path], Any]


def linked(source: Path, target: Path) -> Path:
    """Return a folder of links to another folder's files: a corruption replaces a file instead of writing to it."""
    target.mkdir(parents=True)
    for path in source.rglob("*"):
        location = target / path.relative_to(source)
        if path.is_dir():
            location.mkdir()
        else:
            os.link(path, location)
    return target


def put(path: Path, content: bytes | str) -> None:
    """Replace a file without touching its link's target."""
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def bytes_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return an image as a file of a kind."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


NAMES = ("world", "examples", "rl_data", "lvlm", "clip", "checkpoint", "embeddings", "ledger", "tasks", "image")
"""Of all readers."""


def all_readers(folder: Path) -> dict[str, FileReader]:
    world = folder / "world"
    world.mkdir()
    small = EXPERIMENT.data.world.model_copy(update={"n_train": N_TRAIN, "n_eval": N_EVAL})
    world_files(world, small)
    read_world(world)
    train = storage.read_examples(world / "train.jsonl")
    for name in ("train.jsonl", "eval.jsonl", "train.summary", "eval.summary", "train.sha256", "eval.sha256"):
        (world / name).rename(folder / name)
    makers = {
        "examples": _examples, "rl_data": _rl_data, "lvlm": _lvlm, "clip": _clip, "checkpoint": _checkpoint,
        "embeddings": _embeddings, "ledger": _ledger, "tasks": _tasks, "image": _image,
    }  # fmt: skip
    readers = {"world": FileReader(world, read_world)}
    for name, make in makers.items():
        location = folder / name
        location.mkdir()
        readers[name] = FileReader(location, make(location, folder, train))
    return readers


def read_world(folder: Path, **changed: Any) -> Any:
    """Return the examples of both splits, as the first stage prepares them."""
    kinds = ("questions", "annotations", "images")
    raw = {split: {kind: folder / f"{split}_{kind}" for kind in kinds} for split in ("train", "eval")}
    prepared(folder, raw, EXPERIMENT.data, **{"n_eval": N_EVAL} | changed)
    splits = (storage.read_examples(folder / f"{split}.jsonl") for split in raw)
    # A question type is a name of its kind, an image's bytes are another matter than its pixels.
    hidden = {"question_type", "image_digest", "image"}
    return [[example.model_dump(exclude=hidden) for example in split] for split in splits]


def _examples(location: Path, folder: Path, train: list[Example]) -> Callable[[Path], Any]:
    storage.write_rows(location / "train.jsonl", train[:5])
    return lambda copy: storage.read_examples(copy / "train.jsonl")


def _image(location: Path, folder: Path, train: list[Example]) -> Callable[[Path], Any]:
    source = folder / "world" / "train_images" / train[0].image
    os.link(source, location / "image")
    return lambda copy: read_image(copy / "image")


def read_image(path: Path) -> np.ndarray[Any, Any]:
    """Return an image's pixels as all that open it see them."""
    digest = images.digest_of(path)
    source = ImageSource({digest: path})
    image = source.open(digest)
    assert image.size == source.size(digest)
    assert np.array_equal(image, images.read_rgb(path))
    return np.asarray(image)


def _rl_data(location: Path, folder: Path, train: list[Example]) -> Callable[[Path], Any]:
    groups = []
    for query in train[:3]:
        others = tuple(i for i in range(20, 20 + K))
        pool = Pool(query_id=query.example_id, candidates=others)
        rows = []
        for pointer, text in (((1, 0), query.answer), ((2, 3), "nothing"), ((0, 5), query.answers[-1])):
            ids = tuple(others[position] for position in pointer)
            proposal = Proposal(query_id=query.example_id, pointer=pointer, pointer_global=ids, gen_method="random")
            rows.append(score_trajectory(proposal, query, text, [-9.5] * len(references_of(query))))
        groups.append(make_group(query, pool, rows))
    write_original(location / "original.json", groups)
    examples = folder / "train.jsonl"

    def read(copy: Path) -> Any:
        outputs = {name: copy / name for name in ("rl_data", "summary", "proposals", "train_pools")}
        config = ImportRlDataConfig(import_format="g", pool_size=K, pool_seed=0, exclude_same_image=True)
        import_rl_data(original=copy / "original.json", train_examples=examples, **outputs, config=config)
        counted = storage.read_json(outputs["summary"])
        return outputs["rl_data"].read_text(), counted["other_accuracies"], counted["duplicate_selections"]

    return read


def _lvlm(location: Path, folder: Path, train: list[Example]) -> Callable[[Path], Any]:
    for path in (ROOT / EXPERIMENT.lvlm.model).iterdir():
        put(location / path.name, path.read_bytes())
    root = folder / "world" / "train_images"
    source = ImageSource({example.image_digest: root / example.image for example in train[:3]})
    config = config_of(EXPERIMENT, "generate_rl_data", {"shard": "0"}).lvlm  # type: ignore[attr-defined]
    brief = config.decode.model_copy(update={"max_new_tokens": 2, "num_beams": 1, "repetition_penalty": 1.0})
    settings = config.model_copy(update={"dtype": "float32", "wave_tokens": 1024, "kv_tokens": 4096, "decode": brief})

    def read(copy: Path) -> Any:
        model = open_lvlm(settings, copy, source)
        prompt = Wording(config.prompt).prompt(train[0], train[1:3])
        return model.run([LvlmRequest(prompt, (train[0].answer,))])

    return read


def _clip(location: Path, folder: Path, train: list[Example]) -> Callable[[Path], Any]:
    for path in (ROOT / EXPERIMENT.encoder.model).iterdir():
        put(location / path.name, path.read_bytes())
    storage.write_rows(folder / "few.jsonl", train[:3])
    root = folder / "world" / "train_images"

    def read(copy: Path) -> Any:
        from lever_pipe.stages.examples import embed_examples

        config = config_of(EXPERIMENT, "embed_examples", {})
        embed_examples(
            examples=folder / "few.jsonl", images=root, encoder=copy, embeddings=copy / "vectors",
            config=config, runtime=Runtime(),
        )  # type: ignore[arg-type]  # fmt: skip
        arrays = storage.read_embeddings(copy / "vectors", 3)
        return {name: array.tobytes() for name, array in arrays.items()}

    assert clip.FILES
    return read


def _checkpoint(location: Path, folder: Path, train: list[Example]) -> Callable[[Path], Any]:
    module = build_selector(ARCHITECTURE)
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    optimiser = AdamW(module, learning_rate=0.1, weight_decay=0.0)
    save_selector(location / "selector.safetensors", module, stage="train_rce_epoch", epoch=1)
    save_optimiser(location / "optimiser.safetensors", optimiser, stage="train_rce_epoch", epoch=1, kl_beta=0.5)

    def read(copy: Path) -> Any:
        found = load_selector(copy / "selector.safetensors", ARCHITECTURE)
        fresh = AdamW(found, learning_rate=0.1, weight_decay=0.0)
        beta = resume_optimiser(copy / "optimiser.safetensors", fresh, stage="train_rce_epoch")
        state = {**found.state_dict(), **fresh.state()}
        return beta, {name: tensor.numpy().tobytes() for name, tensor in state.items()}

    return read


def _embeddings(location: Path, folder: Path, train: list[Example]) -> Callable[[Path], Any]:
    rng = np.random.default_rng(0)
    arrays = {}
    for name in ("image", "question"):
        rows = rng.standard_normal((5, 6)).astype(np.float32)
        arrays[name] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    storage.write_arrays(location / "embeddings.safetensors", arrays)

    def read(copy: Path) -> Any:
        found = storage.read_embeddings(copy / "embeddings.safetensors", 5)
        return {name: array.tobytes() for name, array in found.items()}

    return read


def ledger_line(key: str, row: dict[str, Any]) -> str:
    """Return a line with the digest that its content has."""
    body = json.dumps({"key": key, **row}, separators=(",", ":"))[:-1]
    return f'{body},"sha256":"{hashlib.sha256(body.encode()).hexdigest()[:16]}"}}\n'


LEDGER_ROWS = {
    f"{number:064x}": {"tokens": [7, number], "text": "r", "token_log_probs": [-0.5, -0.25], "scores": {"7": [-0.5]}}
    for number in range(3)
}


def _ledger(location: Path, folder: Path, train: list[Example]) -> Callable[[Path], Any]:
    put(location / "a.jsonl", "".join(ledger_line(key, row) for key, row in LEDGER_ROWS.items()))

    def read(copy: Path) -> Any:
        ledger_tools.merge(copy)
        known = Ledger(copy)
        # A lost line is a prompt that is asked again; none may come back as another.
        return {key: known.get(key) for key in list(known) if known.get(key) != LEDGER_ROWS.get(key)}

    return read


def _tasks(location: Path, folder: Path, train: list[Example]) -> Callable[[Path], Any]:
    for split in ("train", "val", "test"):
        details = [
            {"description": f"size {i}", "importance": i, "inquiry": "which?", "options": ["s", "m"]} for i in (1, 2)
        ]
        tasks = [
            {"id": f"{split} {i}", "category": "shop", "task": f"buy {split} {i}", "missing_details": details}
            for i in (1, 2)
        ]
        put(location / f"{split}.json", json.dumps(tasks))
    return lambda copy: intentiongym.read(None, RawFiles(*((copy / f"{s}.json",) for s in ("train", "val", "test"))))


def write_weights(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Replace a file of weights; keep its header's metadata."""
    with safe_open(path, framework="pt") as handle:
        metadata = handle.metadata()
    path.unlink()
    save_file(tensors, path, metadata=metadata)
