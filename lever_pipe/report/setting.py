"""What a run is: its worlds and models, and the hyper-parameters of every preset side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lever_pipe.report.cells import Cell, Code, level, part, say, sentences
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.lineage import flat
from lever_pipe.report.material import Material
from lever_pipe.report.selector.answer import SIMILAR
from lever_pipe.report.table import Column, Table, TableLine

AS_PUBLISHED = "published"
"""The preset whose values are those that the documents name."""

ABOUT = {
    ("lever", True): (
        "The selector: a generated microworld with images, questions and a small {model} that "
        "answers them from demonstrations."
    ),
    ("lever", False): "The selector: questions and images from files, answered by {model}.",
    ("intention", True): (
        "The agent: generated tasks with hidden details, played by a {model} against a rule-based user."
    ),
    ("intention", False): "The agent: tasks from files, played by {model}.",
}
LIMITS = {
    "intervals": (
        "**Intervals** hold 95 %: of other questions or tasks and, where several seeds ran, of "
        "other seeds. One seed says nothing about others, however narrow its interval."
    ),
    "tests": (
        "**Tests** are paired by question or task. Two settings are separated where Holm p lies "
        "below 0.05 within the family that a table names; the primary endpoint is fixed in the "
        "configuration before the run, all else is secondary."
    ),
    "lever": (
        "**The selector's** primary endpoint is VQA accuracy, as the official tool counts it, "
        "mean over shots at the largest sample count after the last GRPO epoch. Sample counts "
        "are the first questions in order of their ids, as published. Offline and on-policy GRPO "
        "are two recipes, so their difference is not the mode's alone."
    ),
    "intention": (
        "**The agent's** primary endpoint is the held-out reward as a share of its ceiling, "
        "under both decodings. The documents decode greedily; sampling repeats each task and is "
        "less noisy."
    ),
    "trace": (
        "**Every number** names a line of `report/evidence.csv`: hold the pointer over it. "
        "Published numbers are copied from the repository's reference and have no interval."
    ),
    "world": (
        "**The embedded world** shows mechanisms, not levels: compare the pattern of a table with the published one."
    ),
}


def tables(material: Material) -> Iterator[Table]:
    """Yield the presets side by side: where they differ, and whole."""
    known = material.config.presets
    presets = {arm.preset: known[arm.preset] for arm in material.config.arms if arm.preset in known}
    if not material.has("lever") or not presets:
        return
    of = {name: dict(flat(preset.model_dump(mode="json"))) for name, preset in presets.items()}
    keys = list(dict.fromkeys(key for values in of.values() for key in values))
    differing = [key for key in keys if len({str(values.get(key)) for values in of.values()}) > 1]
    columns = (Column(say("Setting"), "name"), *(Column(Code(name), "words") for name in of))
    lines = {key: TableLine((Code(key), *(_value(values.get(key)) for values in of.values()))) for key in keys}
    shown = [lines[key] for key in differing or [key for key in keys if key.startswith(("selector.", "start_from"))]]
    rows = {row.subject.split("/")[0]: row for row in material.evidence.where(metric="n_parameters", study="lever")}
    counts = [level(rows.get(f"preset~{name}"), 0, interval=False) for name in of]
    if any(count is not None for count in counts):
        shown.append(TableLine((say("trained parameters"), *counts)))
    yield Table("presets", "run", say("Settings in which the presets differ"), columns, tuple(shown))
    yield Table("presets-all", "data", say("Every setting of every preset"), columns, tuple(lines.values()))


def texts(material: Material) -> Iterator[tuple[str, Cell]]:
    """Yield what ran where, why the tables show the main preset, what the published one does here, and the method."""
    for study in material.config.studies:
        yield "run", say(ABOUT[study.name, study.is_world], model=study.model)
    if material.has("lever"):
        yield "run", sentences(_size(material), _why_main(material))
    parts = ["intervals", "tests", *(study.name for study in material.config.studies), "trace"]
    parts += ["world"] if material.is_world else []
    yield from (("limits", say(LIMITS[name])) for name in parts)


def _size(material: Material) -> Cell:
    arm = next((arm for arm in material.config.arms if arm.preset == material.main.preset), None)
    row = material.accuracy(material.main.last_rce or "")
    if arm is None or row is None:
        return None
    return say(
        ("Accuracies count {n} questions; {seeds:seed|seeds}, KL_BETA {betas}, {epochs:epoch|epochs} of GRPO."),
        n=part(row, "n", 0),
        seeds=len(arm.seeds),
        betas=list(arm.kl_betas),
        epochs=arm.grpo_epochs,
    )


def _why_main(material: Material) -> Cell:
    """Return what the preset with the documents' own values does in this run."""
    other = next((arm for arm in material.presets[1:] if arm.preset == AS_PUBLISHED), None)
    if other is None or not other.rce:
        return None
    first, last = (material.accuracy(other.rce[epoch]) for epoch in (min(other.rce), max(other.rce)))
    similar = max(filter(None, map(material.accuracy, SIMILAR)), key=lambda row: row.value, default=None)
    if first is None or last is None or similar is None:
        return None
    learns = last.value > max(similar.value, first.value)
    return say(
        (
            "The documents' tables show preset {main}. Preset {preset} has the documents' own "
            "values of training; its RCE goes from {first} to {last} in {epochs:epoch|epochs}, beside {similar} "
            "for the most similar demonstrations."
        )
        if learns
        else (
            "The documents' tables show preset {main}, because preset {preset}, with the documents' "
            "own values of training, does not learn here: RCE goes from {first} to {last} in "
            "{epochs:epoch|epochs}, while the most similar demonstrations give {similar}."
        ),
        main=Code(material.main.preset),
        preset=Code(AS_PUBLISHED),
        first=_plain(first),
        last=_plain(last),
        similar=_plain(similar),
        epochs=max(other.rce),
    )


def _plain(row: EvidenceRow) -> Cell:
    return level(row, 1, interval=False)


def _value(value: Any) -> Cell:
    match value:
        case None | True | False:
            return say("none" if value is None else "yes" if value else "no")
        case list():
            return ", ".join(f"{each:g}" for each in value)
        case str():
            return Code(value)
        case _:
            return f"{value:g}" if isinstance(value, float) else str(value)
