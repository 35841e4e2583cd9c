"""Trains both models of the embedded world, probes them and writes their card.

Run as `python -m lever_pipe.world.models.make --out resources/world --seed 0`.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lever_pipe.base.errors import WorldError
from lever_pipe.world.data.items import WorldOptions
from lever_pipe.world.models.card import probe_values, read_card, write_card
from lever_pipe.world.models.curriculum import describe_phases
from lever_pipe.world.models.encoder import N_STEPS, train_clip, zero_shot_accuracies
from lever_pipe.world.models.evaluation import answer_probes, draw_examples, perceptual_probe
from lever_pipe.world.models.models import Reader, save_clip, save_reader
from lever_pipe.world.models.probes import ProbeScore, build_probes, check_bounds, summarise
from lever_pipe.world.models.reader import ReaderTrainer

log = logging.getLogger(__name__)

PROBE_SEED = 0


def probe_reader(model: Reader, options: WorldOptions, *, max_queries: int | None = None) -> dict[str, ProbeScore]:
    """Return the scores of all probes on the world that `options` describe.

    `max_queries` keeps the first evaluation questions only, for a quick check.
    """
    pool, queries = draw_examples(options, "train"), draw_examples(options, "val")
    rows = queries.rows[:max_queries]
    probes = build_probes(rows, pool.rows, seed=PROBE_SEED)
    probes["zero_shot_perceptual"] = perceptual_probe(rows)
    return summarise(probes, answer_probes(model, probes, {**pool.pixels, **queries.pixels}))


def _size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def make(out: Path, *, seed: int, threads: int = 1) -> dict[str, Any]:
    """Train and write `out/lvlm`, `out/clip` and the card; return the card's values.

    The same seed, thread count and library versions give the same weights on one kind of CPU.

    Raises:
        WorldError: the trained reader misses a bound; models and card stay for inspection.
    """
    torch.set_num_threads(threads)
    options = WorldOptions()
    clip, clip_seconds = train_clip(seed)
    save_clip(clip, out / "clip")
    trainer = ReaderTrainer(seed)
    reader = trainer.run().eval()
    save_reader(reader, out / "lvlm")
    summary = probe_reader(reader, options)
    facts = {
        "command": f"python -m lever_pipe.world.models.make --out resources/world --seed {seed}",
        "seed": seed,
        "threads": threads,
        "world": asdict(options),
        "lvlm": {
            "parameters": _size(reader),
            "cpu_seconds": trainer.record.seconds,
            "steps": trainer.record.steps,
            "phases": describe_phases(),
            "curve": trainer.record.curve,
        },
        "clip": {
            "parameters": _size(clip),
            "cpu_seconds": clip_seconds,
            "steps": N_STEPS,
            "zero_shot": {k: round(v, 2) for k, v in zero_shot_accuracies(clip, seed).items()},
        },
        "probes": probe_values(summary),
    }
    write_card(out, facts)
    faults = check_bounds(summary)
    if faults:
        raise WorldError(
            "the trained reader must find answers through the demonstrations' images",
            found="; ".join(faults),
            do="Try another seed, or look at the curve in card.json.",
        )
    return read_card(out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and make the models."""
    parser = argparse.ArgumentParser(prog="lever_pipe.world.models.make", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("resources/world"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    card = make(chosen.out, seed=chosen.seed, threads=chosen.threads)
    for name, value in card["probes"].items():
        log.info("%-32s %s", name, value)


if __name__ == "__main__":
    main()
