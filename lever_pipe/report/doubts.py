"""Results that a wrong model or prompt leaves behind more often than a finding: told below the title of the page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from lever_pipe.report.cells import Code, Message, say
from lever_pipe.report.evidence import Evidence, EvidenceRow
from lever_pipe.report.lineage import EXCHANGED, Lineages


def doubts(evidence: Evidence, lineages: Lineages) -> Iterator[Message]:
    """Yield what speaks against a run: exchanged files, nothing right, equal policies, or no agent with a reward."""
    exchanged = {file for fields in lineages.values() if EXCHANGED in fields for file in fields[EXCHANGED].split(", ")}
    if exchanged:
        yield say(
            (
                "**Files were exchanged by hand:** {files}. What follows from them is marked by a "
                "footnote; delete them to have what their rules make."
            ),
            files=list(map(Code, sorted(exchanged))),
        )
    accuracies = _measured(evidence, "accuracy", study="lever", subset="prefix")
    if accuracies and not any(row.value for row in accuracies):
        yield say(
            "**No answer of any policy was right.** A wrong model, prompt or answer format does "
            "that; look at the samples before you read on."
        )
    elif _are_equal(accuracies):
        yield say(
            "**All policies have the same accuracies.** Demonstrations then made no difference: look "
            "at the samples, and whether the model sees them at all."
        )
    rewards = [row for row in _measured(evidence, "reward", study="intention") if row.mode]
    if rewards and not any(row.value for row in rewards):
        yield say(
            "**No agent ever earned a reward.** A model that never calls its tool does that; look at "
            "the dialogues before you read on."
        )


def _measured(evidence: Evidence, metric: str, **parts: str) -> list[EvidenceRow]:
    rows = evidence.where(metric=metric, against="", quoted="", **parts)
    return [row for row in rows if not row.printed and not row.subject.startswith("published")]


def _are_equal(rows: list[EvidenceRow]) -> bool:
    """Return whether several subjects have one value wherever they are measured alike."""
    cells: defaultdict[tuple[str, str], set[float]] = defaultdict(set)
    for row in rows:
        cells[row.samples, row.shots].add(row.value)
    return len({row.subject for row in rows}) > 1 and all(len(values) == 1 for values in cells.values())
