"""The setup of a run: settings of every preset, results of the published preset, and signs of an error."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from lever_pipe.report.cells import Cell, code, level, part
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.lineage import EXCHANGED, Lineages, flat
from lever_pipe.report.selector.answer import SIMILAR
from lever_pipe.report.table import Row, Table, framed

NUMERICS, PORTABLE = "version.numerics", "portable"
"""The lineage's field of the numeric path, and its value on x86-64 CPUs with AVX2 (`base/numerics.py`)."""
AS_PUBLISHED = "published"
"""The preset with the documents' own values."""


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the presets side by side: the settings that differ, and all settings."""
    configured = context.config.presets
    presets = {arm.preset: configured[arm.preset] for arm in context.config.arms if arm.preset in configured}
    if not context.has("lever") or not presets:
        return
    settings = {name: dict(flat(preset.model_dump(mode="json"))) for name, preset in presets.items()}
    keys = list(dict.fromkeys(key for values in settings.values() for key in values))
    differing = [key for key in keys if len({str(values.get(key)) for values in settings.values()}) > 1]
    rows: dict[str, Row] = {
        key: {"Setting": code(key), **{code(name): _value(values.get(key)) for name, values in settings.items()}}
        for key in keys
    }
    # With a single preset nothing differs, so its network is shown instead.
    lines = [rows[key] for key in differing or [key for key in keys if key.startswith(("selector.", "start_from"))]]
    sizes = {row.subject.split("/")[0]: row for row in context.evidence.where(metric="n_parameters", study="lever")}
    counts = {code(name): level(sizes.get(f"preset~{name}"), 0, interval=False) for name in settings}
    if any(count is not None for count in counts.values()):
        lines.append({"Setting": "trained parameters", **counts})
    yield Table("presets", "run", "Settings in which the presets differ", framed(lines))
    yield Table("presets-all", "data", "Every setting of every preset", framed(rows.values()))


def facts(context: ReportContext) -> dict[str, Any]:
    """Return the studies of a run, its size, and the results of the published preset."""
    has_selector = context.has("lever")
    return {
        "studies": context.config.studies,
        "size": _size(context) if has_selector else None,
        "published": _published_preset(context) if has_selector else None,
    }


def _size(context: ReportContext) -> dict[str, Any] | None:
    """Return the number of questions and seeds, the betas and the epochs of the main preset."""
    arm = next((arm for arm in context.config.arms if arm.preset == context.main.preset), None)
    row = context.accuracy(context.main.last_rce or "")
    if arm is None or row is None:
        return None
    betas = [f"{beta:g}" for beta in arm.kl_betas]
    return {"n": part(row, "n", 0), "seeds": len(arm.seeds), "betas": betas, "epochs": arm.grpo_epochs}


def _published_preset(context: ReportContext) -> dict[str, Any] | None:
    """Return the results of the preset with the documents' own values, next to the main preset."""
    other = next((arm for arm in context.presets[1:] if arm.preset == AS_PUBLISHED), None)
    if other is None or not other.rce:
        return None
    first, last = (context.accuracy(other.rce[epoch]) for epoch in (min(other.rce), max(other.rce)))
    similar = max(filter(None, map(context.accuracy, SIMILAR)), key=lambda row: row.value, default=None)
    if first is None or last is None or similar is None:
        return None
    return {
        "main": context.main.preset,
        "preset": AS_PUBLISHED,
        "learns": last.value > max(similar.value, first.value),
        "first": _plain(first),
        "last": _plain(last),
        "similar": _plain(similar),
        "epochs": max(other.rce),
    }


def _plain(row: EvidenceRow) -> Cell:
    return level(row, 1, interval=False)


def _value(value: Any) -> Cell:
    match value:
        case None | True | False:
            return "none" if value is None else "yes" if value else "no"
        case list():
            return ", ".join(f"{item:g}" for item in value)
        case str():
            return code(value)
        case _:
            return f"{value:g}" if isinstance(value, float) else str(value)


def doubts(evidence: Evidence, lineages: Lineages) -> dict[str, Any]:
    """Return signs of an error: exchanged files, no correct answer, equal policies, or no agent with a reward.

    A wrong model or prompt causes them more often than a real effect does. `paths` are the numeric paths whose bits
    other CPUs do not repeat.
    """
    exchanged = {file for fields in lineages.values() if EXCHANGED in fields for file in fields[EXCHANGED].split(", ")}
    accuracies = _measured(evidence, "accuracy", study="lever", subset="prefix")
    rewards = [row for row in _measured(evidence, "reward", study="intention") if row.mode]
    is_wrong = bool(accuracies) and not any(row.value for row in accuracies)
    paths = {fields[NUMERICS] for fields in lineages.values() if fields.get(NUMERICS, PORTABLE) != PORTABLE}
    return {
        "exchanged": sorted(exchanged),
        "paths": sorted(paths),
        "accuracies": "wrong" if is_wrong else "equal" if _are_equal(accuracies) else "",
        "no_reward": bool(rewards) and not any(row.value for row in rewards),
    }


def _measured(evidence: Evidence, metric: str, **parts: str) -> list[EvidenceRow]:
    rows = evidence.where(metric=metric, against="", quoted="", **parts)
    return [row for row in rows if not row.printed and not row.subject.startswith("published")]


def _are_equal(rows: list[EvidenceRow]) -> bool:
    """Return whether there are several subjects, with one value at each sample and shot count."""
    cells: defaultdict[tuple[str, str], set[float]] = defaultdict(set)
    for row in rows:
        cells[row.samples, row.shots].add(row.value)
    return len({row.subject for row in rows}) > 1 and all(len(values) == 1 for values in cells.values())
