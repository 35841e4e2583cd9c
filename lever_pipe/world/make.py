"""Train the models of the embedded world, probe them and write their model card.

Run as `python -m lever_pipe.world.make --out resources/world --seed 0`.
"""

from __future__ import annotations

import argparse
import logging
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import torch

from lever_pipe.base.errors import DataError
from lever_pipe.base.storage import digest, read_json, write_json, write_text
from lever_pipe.experiment.data import WorldData
from lever_pipe.world.architectures import READERS, Reader, save_clip, save_reader
from lever_pipe.world.encoder import N_STEPS, train_clip, zero_shot_accuracies
from lever_pipe.world.files import draw_examples
from lever_pipe.world.forward import answer_probes
from lever_pipe.world.items import SHARED_IMAGE_SHARE
from lever_pipe.world.probes import ProbeScore, build_probes, check_bounds, perceptual_probe, summarise
from lever_pipe.world.reader import PHASES, ReaderTrainer

log = logging.getLogger(__name__)

STATEMENT = (
    "No reader discovered the matching of keys alone. During training, and only then, two "
    "further losses showed it the way: a linear head had to name relation and key at the "
    "`assistant` and answer tokens (all language phases), and in phases S1 to S3 the heads of the "
    "last layer's first key-value group were pushed to attend to the answers of earlier turns with "
    "the same relation and key. Neither head nor loss is part of the shipped model. The released "
    "world's facts were never trained on: each training episode draws its own, and the probes that "
    "end a phase have a world of their own (mapping seed 11). Call the skill look-up in context, "
    "taught with hints."
)
PROBE_SEED = 0
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "pillow")
TEMPLATE = Path(__file__).with_name("model_card.md.j2")


def folder_digests(root: Path) -> dict[str, str]:
    """Return the sha256 of every file of the model folders, by path relative to `root`."""
    files = sorted(p for name in (*READERS, "clip") for p in (root / name).rglob("*") if p.is_file())
    return {str(path.relative_to(root)): digest(path) for path in files}


def probe_reader(model: Reader, options: WorldData) -> dict[str, ProbeScore]:
    """Return the scores of all probes on the world with these `options`."""
    (pool, pool_pixels), (queries, query_pixels) = draw_examples(options, "train"), draw_examples(options, "val")
    probes = build_probes(queries, pool, seed=PROBE_SEED)
    probes["zero_shot_perceptual"] = perceptual_probe(queries)
    return summarise(probes, answer_probes(model, probes, {**pool_pixels, **query_pixels}))


def make(out: Path, *, seed: int) -> dict[str, Any]:
    """Train and write the models, `model_card.json` and `model_card.md`; return the values of the model card.

    Equal seeds and library versions give equal weights on the same kind of CPU.

    Raises:
        DataError: a trained reader misses a bound of the probes.
    """
    torch.set_num_threads(1)  # with several threads, sums and thus the weights depend on their number
    options = WorldData()
    clip, clip_seconds = train_clip(seed)
    save_clip(clip, out / "clip")
    readers, problems = dict[str, dict[str, Any]](), list[str]()
    for name, layers in READERS.items():
        trainer = ReaderTrainer(seed, layers)
        reader = trainer.run().eval()
        save_reader(reader, out / name)
        summary = probe_reader(reader, options)
        problems += [f"{name}: {problem}" for problem in check_bounds(summary)]
        readers[name] = {
            "layers": layers,
            "parameters": reader.num_parameters(),
            "cpu_seconds": trainer.record.seconds,
            "steps": trainer.record.steps,
            "curve": trainer.record.curve,
            "probes": {
                probe: {
                    "vqa_accuracy": round(score.accuracy, 2),
                    "equals_fact": round(score.truth, 2),
                    "n_queries": score.n_queries,
                }
                for probe, score in summary.items()
            },
        }
    model_card = {
        "command": f"python -m lever_pipe.world.make --out resources/world --seed {seed}",
        "seed": seed,
        "threads": 1,
        "world": {**options.model_dump(mode="json"), "shared_image_share": SHARED_IMAGE_SHARE},
        "phases": [asdict(phase) for phase in PHASES],
        "readers": readers,
        "clip": {
            "parameters": clip.num_parameters(),
            "cpu_seconds": clip_seconds,
            "steps": N_STEPS,
            "zero_shot": {k: round(v, 2) for k, v in zero_shot_accuracies(clip, seed).items()},
        },
        "training_only_losses": STATEMENT,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "sha256": folder_digests(out),
    }
    write_json(out / "model_card.json", model_card)
    text = TEMPLATE.read_text(encoding="utf-8")
    template = jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    # From the file, which has sorted keys: the prose then does not depend on the order in this function.
    write_text(out / "model_card.md", template.render(read_json(out / "model_card.json")))
    if problems:
        raise DataError(
            "the trained readers must find answers through the demonstrations' images",
            found="; ".join(problems),
            do="Try another seed, or look at the curve in model_card.json.",
        )
    return model_card


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and make the models."""
    parser = argparse.ArgumentParser(prog="lever_pipe.world.make", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("resources/world"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for reader, scores in make(options.out, seed=options.seed)["readers"].items():
        for name, value in scores["probes"].items():
            log.info("%s %-32s %s", reader, name, value)


if __name__ == "__main__":
    main()
