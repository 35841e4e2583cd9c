"""What published rows have in common, told below the tables that print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lever_pipe.report.tables.lineage import REMARK, Lineages
from lever_pipe.report.tables.text import listing, sentences

EVALUATED = ("pool", "evaluated", "dropout", "seeds")
"""Fields in which the published runs differ most from ours: a reader must know them to read the numbers."""
TRAINED = ("base_checkpoint", "rl_data", "kl_beta_applied", "learning_rate", "kl_control", "trained")
"""Fields of single runs, which a file name does not tell."""


def shared_by(published: Lineages, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return one sentence on how the published rows were made and one on their runs, none without such rows.

    Only fields of one value in all these rows stand there; the others are footnotes.

    Args:
        published: the fields of the published groups of a table.
        labels: what a field is called.
    """
    parts = {"rows": _shared(published, EVALUATED, labels), "runs": _shared(published, TRAINED, labels)}
    return tuple(f"Published {name}: {listing(items)}." for name, items in parts.items() if items)


def remarks_of(groups: Lineages) -> dict[str, str]:
    """Return the remarks of the groups by the field that they are about, each sentence once."""
    found: dict[str, list[str]] = {}
    for fields in groups.values():
        for name, text in fields.items():
            if name.startswith(REMARK):
                found.setdefault(name.removeprefix(REMARK), []).append(text)
    return {field: sentences(*dict.fromkeys(texts)) for field, texts in found.items()}


def _shared(published: Lineages, fields: Sequence[str], labels: Mapping[str, str]) -> list[str]:
    values = {field: {of[field] for of in published.values() if field in of} for field in fields}
    return [f"{labels[field]} ({found.pop()})" for field, found in values.items() if len(found) == 1]
