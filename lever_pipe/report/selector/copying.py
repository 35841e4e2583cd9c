"""Does a selector help the LVLM, or does it only bring the answer into the prompt?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lever_pipe.report.cells import level, message
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import EvidenceRow
from lever_pipe.report.inference.families import ORACLE
from lever_pipe.report.labels import label, reading_order
from lever_pipe.report.table import SUBJECTS, Table, framed

MEASURES = {
    "llm": "LVLM",
    "vote": "Vote",
    "shown": "Right answer shown",
    "llm.shown": "LVLM, shown",
    "llm.unshown": "LVLM, not displayed",
    "copied": "Answers copied",
}
CONTROLS = {
    "llm.blank": "Images blank",
    "llm.moved": "Answers moved",
    "llm.reversed": "Order reversed",
}
"""Columns of the table and their heads; the controls exist for one run or draw of some groups."""


def measured(context: ReportContext, group: str, measure: str) -> EvidenceRow | None:
    """Return a measure of copying for a group, at the largest shot count."""
    return context.evidence.find(group, f"copying.{measure}", shots=max(context.shots, default=0))


def groups_of(context: ReportContext) -> list[str]:
    """Return the groups whose prompts have demonstrations, in reading order: baselines, RCE, GRPO, the oracle."""
    main = context.main
    baselines_in_order = reading_order([name for name in context.baselines if name != ORACLE])
    candidates = [
        *baselines_in_order,
        main.last_rce,
        *main.last_grpo.values(),
        *main.on_policy_groups.values(),
        *main.extra_groups,
        ORACLE,
    ]
    return [group for group in candidates if group and measured(context, group, "vote") is not None]


def tables(context: ReportContext) -> Iterator[Table]:
    """Yield the table of copied answers."""
    groups = groups_of(context) if context.has("lever") and context.samples else []
    are_controlled = any(measured(context, group, measure) for group in groups for measure in CONTROLS)
    columns = MEASURES | (CONTROLS if are_controlled else {})
    rows = [
        {
            "Policy": label(group, with_epoch=False),
            **{head: level(measured(context, group, measure), 1, scale=100) for measure, head in columns.items()},
            SUBJECTS: (group,),
        }
        for group in groups
    ]
    count = max(context.shots, default=0)
    title = message(
        (
            "Does the selector help, or just show the answer? {n} demonstration, in %",
            "Does the selector help, or just show the answer? {n} demonstrations, in %",
        ),
        n=count,
    )
    yield Table("copying", "selector", title, framed(rows), {"are_controlled": are_controlled})


def best_and_base(context: ReportContext) -> dict[str, Any] | None:
    """Return the copying measures of the best trained policy, next to its base; None without either.

    Its controls (`blank`, `moved`, `reversed`) are None if they are not measured.
    """
    groups = [group for group in groups_of(context) if not group.startswith("baseline/")] if context.samples else []
    base = context.main.last_rce if groups else None
    best = max(groups, key=lambda group: getattr(measured(context, group, "llm"), "value", -1.0), default=None)
    if best is None or base is None or best == base:
        return None
    numbers = {name.replace(".", "_"): level(measured(context, best, name), 1, scale=100) for name in MEASURES}
    numbers["before"] = level(measured(context, base, "llm.unshown"), 1, scale=100)
    labels = {"policy": label(best, with_epoch=False), "base": label(base, with_epoch=False)}
    if None in numbers.values():
        return None
    controls = {name.removeprefix("llm."): level(measured(context, best, name), 1, scale=100) for name in CONTROLS}
    return {**numbers, **controls, **labels, "n": len(groups), "shots": max(context.shots)}
