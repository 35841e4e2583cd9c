"""The card beside the shipped weights: how they were made, what they are, what they can do."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lever_pipe.base.storage import digest, read_json, write_json, write_text
from lever_pipe.world.models.probes import ProbeScore

STATEMENT = (
    "The reader did not discover the matching of keys alone. During training, and only then, two "
    "further losses showed it the way: a linear head had to name relation and key at the "
    "`assistant` and answer tokens (all language phases), and in phases S1 to S3 the heads of the "
    "last layer's first key-value group were pushed to attend to the answers of earlier turns with "
    "the same relation and key. Neither head nor loss is part of the shipped model. The released "
    "world's facts were never trained on: each training episode draws its own, and the probes that "
    "end a phase have a world of their own (mapping seed 11). Call the skill look-up in context, "
    "taught with hints."
)
WEIGHTS = ("lvlm/model.safetensors", "clip/model.safetensors")


def versions() -> dict[str, str]:
    """Return the versions that the weights depend on."""
    names = ("torch", "transformers", "tokenizers", "numpy", "pillow")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def folder_digests(root: Path) -> dict[str, str]:
    """Return the sha256 of every file of the two model folders, by path below `root`."""
    files = sorted(p for name in ("lvlm", "clip") for p in (root / name).rglob("*") if p.is_file())
    return {str(path.relative_to(root)): digest(path) for path in files}


def probe_values(summary: Mapping[str, ProbeScore]) -> dict[str, dict[str, float]]:
    """Return probe scores as plain numbers with two decimals."""
    return {
        name: {
            "vqa_accuracy": round(score.accuracy, 2),
            "equals_fact": round(score.truth, 2),
            "n_queries": score.n_queries,
        }
        for name, score in summary.items()
    }


def write_card(root: Path, facts: Mapping[str, Any]) -> None:
    """Write `card.json` and the same as prose and tables in `card.md`."""
    card = {
        **facts,
        "versions": versions(),
        "sha256": folder_digests(root),
        "training_only_losses": STATEMENT,
    }
    write_json(root / "card.json", card)
    write_text(root / "card.md", render_card(read_card(root)))


def read_card(root: Path) -> dict[str, Any]:
    """Return the card's values."""
    card: dict[str, Any] = read_json(root / "card.json")
    return card


def _table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def render_card(card: Mapping[str, Any]) -> str:
    """Return the card as Markdown."""
    reader, clip = card["lvlm"], card["clip"]
    names = ["V", *(phase["name"] for phase in reader["phases"])]
    phases = [(name, reader["steps"][name], f"{reader['cpu_seconds'][name]:.0f}") for name in names]
    probes = [
        (name, f"{value['vqa_accuracy']:.1f}", f"{value['equals_fact']:.1f}", value["n_queries"])
        for name, value in card["probes"].items()
    ]
    weights = [(name, f"`{card['sha256'][name]}`") for name in WEIGHTS]
    world, clip_shares = card["world"], clip["zero_shot"].items()
    versions_used = ", ".join(f"{name} {value}" for name, value in card["versions"].items())
    zero_shot = ", ".join(f"{name} {value:.1f}" for name, value in clip_shares)
    return f"""\
# Models of the embedded world

Two small models with stock architectures, trained from scratch by this project on images and
questions that it draws itself. Made by `{card["command"]}` on
{card["threads"]} CPU thread(s); versions: {versions_used}.

## `lvlm`: Qwen2_5_VLForConditionalGeneration

{reader["parameters"]:,} parameters. Curriculum (options of each phase in `card.json`):

{_table(("phase", "steps", "CPU seconds"), phases)}

{card["training_only_losses"]}

## Probes on the released world

Facts of mapping seed {world["mapping_seed"]}, {world["n_train"]} train and {world["n_eval"]} evaluation
questions; knowledge questions only unless the name says otherwise. Percent: VQA accuracy against ten
annotators, and share of answers equal to the world's fact. Annotators disagree with the facts, so
accuracy cannot reach 100.

{_table(("probe", "VQA accuracy", "equals fact", "queries"), probes)}

`shuffled` gives the demonstrations the images of other examples: a reader that finds its answer
through the images must fall.

## `clip`: CLIPModel

{clip["parameters"]:,} parameters, {clip["steps"]} steps on captions, {clip["cpu_seconds"]:.0f} CPU seconds; it has
read no question. Zero-shot accuracy on fresh images, percent: {zero_shot}.

## Weights

{_table(("file", "sha256"), weights)}
"""
