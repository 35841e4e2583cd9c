"""How much faster the answering engine is than the stock classes, one prompt at a time, on the embedded world.

Both answer the same prompts in one process, in turns, so that a slow moment of the machine hits both.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from lever_pipe import execution, plan
from lever_pipe.answering import load_lvlm, prompt_style, read_examples
from lever_pipe.config import Experiment
from lever_pipe.lvlms.protocol import LvlmRequest
from lever_pipe.metrics.answer_cut import cut_answer
from lever_pipe.parsing import parse_experiment
from lever_pipe.prompts import build_prompt
from lever_pipe.records import Example
from lever_pipe.seeding import generator
from lever_pipe.stage_configs import Runtime
from lever_pipe.stages.generate_world import generate_world
from lever_pipe.stages.prepare_examples import prepare_examples

ROOT = Path(__file__).parents[1]


def main(words: Sequence[str] | None = None) -> int:
    """Print one JSON line a shot count: prompts a second of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=240, help="prompts a shot count")
    parser.add_argument("--rounds", type=int, default=3, help="turns into which they are cut")
    options = parser.parse_args(words)
    execution.prepare(Runtime())
    experiment = parse_experiment(yaml.safe_load((ROOT / "config.yaml").read_text()))
    with tempfile.TemporaryDirectory() as folder:
        train, queries, images = make_examples(experiment, Path(folder))
        for shots in (0, 2, 4):
            sys.stdout.write(json.dumps(compare(experiment, train, queries, images, shots, options)) + "\n")
            sys.stdout.flush()
    return 0


def make_examples(
    experiment: Experiment, folder: Path
) -> tuple[list[Example], list[Example], list[tuple[list[Example], Path]]]:
    """Return both splits of the default world, and where their images are."""
    raw = {
        f"{split}_{kind}": folder / f"{split}_{kind}.json"
        for split in ("train", "eval")
        for kind in ("questions", "annotations")
    }
    raw |= {f"{split}_images": folder / f"{split}_images" for split in ("train", "eval")}
    rows = {f"{split}_examples": folder / f"{split}.jsonl" for split in ("train", "eval")}
    listing, summary, card = (folder / name for name in ("images.sha256", "summary.json", "run.json"))
    generate_world(**raw, image_listing=listing, card=card, config=plan.stage_config(experiment, "generate_world", {}))  # type: ignore[arg-type]
    prepared = plan.stage_config(experiment, "prepare_examples", {})
    prepare_examples(**raw, **rows, image_listing=(listing,), summary=summary, card=card, config=prepared)  # type: ignore[arg-type]
    train, queries = (read_examples(path) for path in rows.values())
    return train, queries, [(train, raw["train_images"]), (queries, raw["eval_images"])]


def compare(
    experiment: Experiment,
    train: Sequence[Example],
    queries: Sequence[Example],
    images: list[tuple[list[Example], Path]],
    shots: int,
    options: argparse.Namespace,
) -> dict[str, float]:
    """Return prompts a second of engine and stock classes; they must agree on every answer.

    Raises:
        SystemExit: they differ.
    """
    config = plan.stage_config(experiment, "check_world", {}).lvlm  # type: ignore[attr-defined]
    style, rng = prompt_style(config), generator(0, "benchmark", shots)
    requests = []
    for query in queries[: options.prompts]:
        shown = [train[int(i)] for i in rng.choice(len(train), shots, replace=False)]
        requests.append(LvlmRequest(build_prompt(query, shown, style)))
    seconds = {"engine": 0.0, "stock": 0.0}
    for turn in range(options.rounds):
        part = requests[turn :: options.rounds]
        # A model of its own a turn: neither ledger nor image features are there from the turn before.
        model = load_lvlm(config, ROOT / experiment.lvlm.model, images, Runtime())
        begin = time.perf_counter()
        ours = [cut_answer(reply.text) for reply in model.run(part)]
        middle = time.perf_counter()
        stock = [cut_answer(text) for request in part for text in model.stock_answers([request])]
        seconds["engine"] += middle - begin
        seconds["stock"] += time.perf_counter() - middle
        if ours != stock:
            raise SystemExit(f"{shots} shots: engine and stock classes differ")
    rates = {f"{name}_prompts_per_second": round(len(requests) / spent, 1) for name, spent in seconds.items()}
    return {"shots": shots, "prompts": len(requests), **rates, "ratio": round(seconds["stock"] / seconds["engine"], 2)}


if __name__ == "__main__":
    sys.exit(main())
