"""Small, valid artifacts for tests: examples, pools, RL groups and embeddings, in memory and on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lever_pipe.base import storage
from lever_pipe.base.records import Example, ExampleId, Pool, RlGroup, Trajectory
from lever_pipe.experiment.data import GenerateWorldConfig, WorldData
from lever_pipe.experiment.examples import ExampleSettings, PrepareExamplesConfig
from lever_pipe.lever.trajectories import make_group
from lever_pipe.stages.examples import prepare_examples
from lever_pipe.stages.world import generate_world

WIDTH = 12  # D of the embeddings below
POOL = 8  # K of the pools below


class Runs:
    """Create a folder on unpickling, as evidence that code ran."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@cache
def _shipped() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "config.yaml").read_text())
    return values


def shipped() -> dict[str, Any]:
    """Return the values of the shipped configuration, the caller's own to change."""
    return deepcopy(_shipped())


def tick(folder: Path) -> None:
    """Wait until the file system's clock, which may be coarse, has advanced."""
    probe = folder / "tick"
    probe.touch()
    first = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == first:
        probe.touch()
    probe.unlink()


def ids(values: Sequence[int]) -> tuple[ExampleId, ...]:
    return tuple(ExampleId(int(value)) for value in values)


def example(example_id: int, **values: Any) -> Example:
    """Return a valid example; all ten annotators answer `answer`, or as in `answers`."""
    answer = values.pop("answer", f"answer{example_id % 4}")
    base: dict[str, Any] = {
        "example_id": example_id,
        "question_id": 100 + example_id,
        "image_id": 1000 + example_id,
        "image": f"{example_id}.png",
        "image_digest": f"digest{example_id}",
        "question": f"question {example_id}?",
        "question_type": f"type{example_id % 3}",
        "answers": (answer,) * 10,
        "answer": answer,
    }
    return Example(**(base | values))


def pool(query_id: int, candidates: Sequence[int]) -> Pool:
    return Pool(query_id=ExampleId(query_id), candidates=ids(candidates))


def trajectory(of: Pool, pointer: Sequence[int], accuracy: float, **values: Any) -> Trajectory:
    base: dict[str, Any] = {
        "query_id": of.query_id,
        "pointer": tuple(pointer),
        "pointer_global": tuple(of.candidates[position] for position in pointer),
        "gen_method": "random",
        "vqa_raw_generation": "text",
        "vqa_pred_answer": "text",
        "vqa_correct": int(accuracy > 0),
        "vqa_acc_score": accuracy,
        "vqa_gt_prob": 0.5,
        "vqa_gt_logprob": -0.7,
        "vqa_rel_token_f1": 0.0,
        "vqa_rel_edit_sim": 0.0,
        "vqa_rel_score": 0.0,
        "vqa_eval_mode": "vqaEval",
        "eval_split_used": "train",
        "eval_failed": False,
    }
    return Trajectory(**(base | values))


def random_pools(n_queries: int, n_train: int, *, size: int = POOL, seed: int = 0) -> list[Pool]:
    """Return pools that never contain their own query."""
    rng = np.random.default_rng(seed)
    pools = []
    for query in range(n_queries):
        others = [candidate for candidate in range(n_train) if candidate != query]
        pools.append(pool(query, rng.permutation(others)[:size]))
    return pools


def rl_groups(
    n_queries: int, n_train: int, *, n_selections: int = 6, seed: int = 0, is_consistent: bool = False
) -> list[RlGroup]:
    """Return groups of random two-shot selections; every fourth group has one accuracy only."""
    rng = np.random.default_rng(seed)
    groups = []
    for of in random_pools(n_queries, n_train, seed=seed):
        levels = [0.0] if of.query_id % 4 == 3 else [0.0, 0.6, 1.0]
        rows, accuracies = [], dict[tuple[int, ...], float]()
        for rank in range(n_selections):
            pointer, level = rng.permutation(len(of.candidates))[:2].tolist(), levels[rank % len(levels)]
            first = accuracies.setdefault(tuple(pointer), level)
            rows.append(trajectory(of, pointer, first if is_consistent else level))
        groups.append(make_group(example(of.query_id), of, rows))
    return groups


def embedding_arrays(n_examples: int, *, width: int = WIDTH, seed: int = 0) -> dict[str, np.ndarray]:
    """Return unit rows under the names that `embed_examples` writes."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in ("image", "question"):
        rows = rng.standard_normal((n_examples, width)).astype(np.float32)
        arrays[name] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return arrays


def world_files(folder: Path, world: WorldData) -> dict[str, dict[str, Path]]:
    """Generate a world below a folder; return the raw files of each split under the stages' names."""
    files = {}
    for split, name in (("train", "train"), ("eval", "val")):
        kinds = ("questions", "annotations", "images")
        raw = {kind: folder / f"{split}_{kind}" for kind in kinds} | {"image_listing": folder / f"{split}.sha256"}
        generate_world(**raw, config=GenerateWorldConfig(split=name, world=world))  # type: ignore[arg-type]
        files[split] = raw
    return files


def prepared(folder: Path, raw: dict[str, dict[str, Path]], data: ExampleSettings, **changed: object) -> dict[str, int]:
    """Prepare both splits of raw files below a folder, `SPLIT.jsonl` and `SPLIT.summary`; return their sizes."""
    sizes = {}
    for split, files in raw.items():
        given = {name: getattr(data, name) for name in ExampleSettings.model_fields}
        listing = files.get("image_listing", Path(os.devnull))  # lists no image
        sizes[split] = prepare_examples(
            **{name: path for name, path in files.items() if name != "image_listing"}, image_listing=listing,
            train_examples=(folder / "train.jsonl",) if split == "eval" else (),
            examples=folder / f"{split}.jsonl", summary=folder / f"{split}.summary",
            config=PrepareExamplesConfig(split=split, **given | changed),
        )  # type: ignore[arg-type]  # fmt: skip
    return sizes


def evaluation_files(folder: Path, n_train: int, n_eval: int) -> dict[str, Path]:
    """Write the inputs of selections, examples included, and return the paths under the stages' own names."""
    names = ("train_examples", "eval_examples", "eval_pools", "train_embeddings", "eval_embeddings")
    paths = {name: folder / name for name in names}
    storage.write_rows(paths["train_examples"], [example(i) for i in range(n_train)])
    storage.write_rows(paths["eval_examples"], [example(i) for i in range(n_eval)])
    storage.write_rows(paths["eval_pools"], random_pools(n_eval, n_train))
    storage.write_arrays(paths["train_embeddings"], embedding_arrays(n_train))
    storage.write_arrays(paths["eval_embeddings"], embedding_arrays(n_eval, seed=1))
    return paths


def training_files(folder: Path, *, n_queries: int = 20, n_train: int = 40) -> dict[str, Path]:
    """Write RL data and embeddings and return their paths under the stages' own names."""
    paths = {"rl_data": folder / "rl_data.jsonl", "embeddings": folder / "embeddings.safetensors"}
    storage.write_rows(paths["rl_data"], rl_groups(n_queries, n_train))
    storage.write_arrays(paths["embeddings"], embedding_arrays(n_train))
    return paths
