"""The published rows by the grid's coordinates: which of them a run here can stand beside, and why the others cannot.

A published row names a sampler, a stage, numbers of samples and shots. Its stage says network and objective; a cell of
ours with the same coordinates answers the same question, though under a correct evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeVar, get_args

from lever_pipe.base.errors import RecordError

T = TypeVar("T")
Part = Literal["sft", "beam_data", "random_full_train", "heads", "plans", "rl_data", "vqav2", "older_data", "documents"]
"""The rows apart by what was run; every row is in one."""
Reason = Literal[
    "comparable",
    "other_lvlm",
    "adapters_without_effect",
    "head_below_chance",
    "two_values_a_cell",
    "unknown_samples",
]
"""`comparable`: a cell here may have these coordinates. `other_lvlm`: OpenFlamingo runs in no process of
ours. `adapters_without_effect`: v2_lora, one value a cell whatever the sampler. `head_below_chance`: V4-6 to V4-8, and
V4-9, whose labels it cannot reach. `two_values_a_cell`: rows that contradict others of the same cell.
`unknown_samples`: nobody says how many questions."""

QWEN, FLAMINGO = "Qwen2.5-VL-3B-Instruct", "OpenFlamingo-3B"
LVLMS = {QWEN: "qwen2_5_vl_3b", FLAMINGO: "imported"}
SAMPLERS = {
    "RandSampler": "uniform",
    "TextSimSampler": "text_similarity",
    "ImgSimSampler": "image_similarity",
    "MixSampler": "mixture",
    "none": "whole_train",
    "all4": "mean",
}
UNKNOWN_SAMPLES = "all?"
ACCURACY = "vqa_acc_pct"
WHOLE = ("all", "all(5046)")
MEAN_SHOTS = "avg1-4"
ON_TRAIN = "split=train"
CONTRADICTED = ("README.md#3.3.1", "v0_sft")
"""Source and stage of the rows that contradict README.md#3.2."""
SFT_LAYERS = 3
"""Of the v2 networks behind accuracies; the files had one layer only later, and losses tell no date."""


class Stage(NamedTuple):
    """What a published stage is here."""

    part: Part
    selector: str = ""
    """Network, with the head behind it where it is none that ranks once; empty where nothing selects."""
    objective: str = ""
    layers: int | None = None


POINTER = "pointer"
STAGES: Mapping[str, Stage] = {
    "v0_sft": Stage("sft", "train_ids", "sft"),
    "v1_sft": Stage("sft", "bi_encoder", "sft"),
    "v2_sft": Stage("sft", POINTER, "sft"),
    "v2_lora_sft": Stage("sft", "pointer_lora", "sft"),
    "beam_data": Stage("beam_data"),
    "random_full_train": Stage("random_full_train", objective="none"),
    "v4-10": Stage("heads", f"{POINTER}/stop", "grpo", 1),
    "v4-1": Stage("heads", f"{POINTER}/gated", "grpo", 1),
    "v4-2": Stage("heads", f"{POINTER}/gru", "grpo", 1),
    "v4-3": Stage("heads", f"{POINTER}/gru_mmr", "grpo", 1),
    "v4-5_additive": Stage("heads", f"{POINTER}/additive", "grpo", 1),
    "v4-5_bilinear": Stage("heads", f"{POINTER}/bilinear", "grpo", 1),
    "v4-6": Stage("heads", f"{POINTER}/coverage", "grpo", 1),
    "v4-7": Stage("heads", f"{POINTER}/dpp", "grpo", 1),
    "v4-8": Stage("heads", f"{POINTER}/slots", "grpo", 1),
    "v4-9": Stage("heads", f"{POINTER}/two_stage", "grpo", 1),
    "grpo_plan": Stage("plans", POINTER, "grpo", 1),
    "rl_data": Stage("rl_data"),
    "grpo_balanced_v": Stage("vqav2", POINTER, "grpo", 1),
    "v3_3layer": Stage("older_data", POINTER, "grpo", 3),
    "v3_1layer": Stage("older_data", POINTER, "grpo", 1),
    "rce_scratch": Stage("documents", POINTER, "rce", 1),
    "rce": Stage("older_data", POINTER, "rce", 1),
    "grpo_frozen": Stage("documents", POINTER, "grpo", 1),
    "grpo_balanced": Stage("documents", POINTER, "grpo", 1),
    "grpo_unfrozen": Stage("documents", POINTER, "grpo", 1),
    "grpo": Stage("older_data", POINTER, "grpo", 1),
}
"""Beginning of a stage's name -> what it is; the first that fits counts."""
LEFT_OUT = tuple(f"{POINTER}/{head}" for head in ("coverage", "dpp", "slots", "two_stage"))
OF_RCE = re.compile(r"[( ]rce\)?$")
"""The end of the name of a head's stage before GRPO."""


class PlacedRow(NamedTuple):
    """A published row, its coordinates in the grid, and whether a cell of ours stands beside it."""

    number: int
    """Of the data row, from 1."""
    part: Part
    reason: Reason
    dataset: str
    sampler: str
    lvlm: str
    selector: str
    objective: str
    layers: int | None
    split: str
    samples: int | Literal["all"] | None
    """None where the row is no accuracy over questions, or nobody says over how many."""
    shots: int | Literal["mean"] | None
    metric: str


def placed(rows: Iterable[Mapping[str, str]]) -> list[PlacedRow]:
    """Return each row of the published reference at its place, in the file's order.

    Args:
        rows: by column, as `csv.DictReader` gives them.

    Raises:
        RecordError: a sampler, an LVLM, a stage or a count that the grid does not know; names row and column.
    """
    return [_placed(number, row) for number, row in enumerate(rows, start=1)]


def _placed(number: int, row: Mapping[str, str]) -> PlacedRow:
    stage = _stage(number, row["stage"])
    objective = "rce" if stage.part == "heads" and OF_RCE.search(row["stage"]) else stage.objective
    return PlacedRow(
        number=number,
        part=stage.part,
        reason=next(_hindrances(row, stage), "comparable"),
        dataset=row["dataset"],
        sampler=_known(number, row, "sampler", SAMPLERS),
        lvlm=_known(number, row, "lvlm", LVLMS),
        selector=stage.selector,
        objective=objective,
        layers=_layers(row, stage),
        split="train" if ON_TRAIN in row["notes"] else "eval",
        samples="all" if row["samples"] in WHOLE else _count(number, row, "samples", UNKNOWN_SAMPLES),
        shots="mean" if row["shot"] == MEAN_SHOTS else _count(number, row, "shot", ""),
        metric=row["metric"],
    )


def _hindrances(row: Mapping[str, str], stage: Stage) -> Iterator[Reason]:
    """Yield what keeps a row from standing beside a cell, what no work could mend first."""
    if (row["source_file"], row["stage"]) == CONTRADICTED:
        yield "two_values_a_cell"
    if row["samples"] == UNKNOWN_SAMPLES:
        yield "unknown_samples"
    if row["lvlm"] == FLAMINGO:
        yield "other_lvlm"
    if stage.selector == "pointer_lora":
        yield "adapters_without_effect"
    if stage.selector in LEFT_OUT:
        yield "head_below_chance"


def _layers(row: Mapping[str, str], stage: Stage) -> int | None:
    of_sft = stage.part == "sft" and stage.selector.startswith(POINTER) and row["metric"] == ACCURACY
    return SFT_LAYERS if of_sft else stage.layers


def _stage(number: int, name: str) -> Stage:
    for beginning, stage in STAGES.items():
        if name.startswith(beginning):
            return stage
    raise _unknown(number, "stage", name, STAGES)


def _known(number: int, row: Mapping[str, str], column: str, names: Mapping[str, str]) -> str:
    if row[column] not in names:
        raise _unknown(number, column, row[column], names)
    return names[row[column]]


def _count(number: int, row: Mapping[str, str], column: str, unknown: str) -> int | None:
    if row[column] in ("", unknown):
        return None
    if not row[column].isdecimal():
        raise _unknown(number, column, row[column], ("a count",))
    return int(row[column])


def _unknown(number: int, column: str, found: str, known: Iterable[str]) -> RecordError:
    return RecordError(
        f"published reference, row {number}, {column}: expected one of {', '.join(known)}",
        found=repr(found),
        do="Restore the file, or say in lever_pipe/report/grid/published.py what that is.",
    )


class Coordinates(NamedTuple):
    """Coordinates of a cell of ours, as a published row has them."""

    dataset: str
    sampler: str
    selector: str
    objective: str
    layers: int | None
    samples: int
    shots: int | Literal["mean"]


class Beside(NamedTuple):
    """What the reference holds of one part, and how much of it stands beside a cell of ours."""

    part: Part
    n_rows: int
    n_targets: int
    """Of accuracies on evaluation questions, which cells can stand beside; counts and losses have their own tables."""
    n_filled: int
    left_out: dict[Reason, int]


def beside(rows: Iterable[PlacedRow], cells: Mapping[Coordinates, T]) -> tuple[list[Beside], list[tuple[PlacedRow, T]]]:
    """Return the parts of the reference with their counts, and each row that a cell has the coordinates of.

    Args:
        rows: placed.
        cells: a run's cells by their coordinates, `layers` None where a network has none.
    """
    listed = list(rows)
    found = [(row, cells[at]) for row in listed if (at := _coordinates(row)) is not None and at in cells]
    filled = {row.number for row, _ in found}
    parts = []
    for part in get_args(Part):
        own = [row for row in listed if row.part == part]
        reasons = [row.reason for row in own if row.reason != "comparable"]
        targets = [row for row in own if _coordinates(row) is not None]
        n_filled = sum(row.number in filled for row in own)
        parts.append(
            Beside(part, len(own), len(targets), n_filled, {of: reasons.count(of) for of in dict.fromkeys(reasons)})
        )
    return parts, found


def _coordinates(row: PlacedRow) -> Coordinates | None:
    """Return where a cell would stand beside an accuracy over counted questions; None where none could."""
    is_accuracy = row.metric == ACCURACY and row.split == "eval"
    if row.reason != "comparable" or not is_accuracy or not isinstance(row.samples, int) or row.shots is None:
        return None
    layers = row.layers if row.selector.startswith(POINTER) else None
    return Coordinates(row.dataset, row.sampler, row.selector, row.objective, layers, row.samples, row.shots)
