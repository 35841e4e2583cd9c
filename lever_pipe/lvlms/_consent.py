"""What a ledger holds of other engines of a model: told, left alone, and not asked again on a GPU without consent."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lever_pipe.base.errors import ConfigError
from lever_pipe.lvlms.asking.ledger import Ledger, engines_of

log = logging.getLogger(__name__)

MANY = 1000
"""Answers that a GPU does not make again without consent."""


def require_consent(
    ledger: Ledger, digest: str, identity: Mapping[str, Any], n_missing: int, *, ask_again: bool
) -> None:
    """Tell, before an engine's first answer, what the ledger holds of other engines of its model.

    Args:
        ledger: all rows, whoever answered.
        digest: this engine's.
        identity: what this engine is; `weights` names the model.
        n_missing: prompts that are to be asked.
        ask_again: whether they may be, whatever they cost.

    Raises:
        ConfigError: many answers are there, this engine runs on a GPU, and `ask_again` is false.
    """
    counts, engines = ledger.rows_by_engine(), engines_of(ledger.folder)
    if counts[digest]:
        return
    # Rows of a ledger without descriptions are of earlier keys, whose model nobody can tell.
    others = {key: n for key, n in counts.items() if engines.get(key, identity).get("weights") == identity["weights"]}
    held = sum(others.values())
    if not held:
        return
    nearest = engines.get(max(others, key=lambda key: others[key]))
    why = _differences(nearest, identity) if nearest else "their keys are those of an earlier version"
    told = f"{ledger.folder}: {held} answers of this model stay unused ({why}), {n_missing} prompts are asked"
    if identity["device"] == "cpu" or held < MANY or ask_again:
        log.warning("%s.", told)
        return
    raise ConfigError(
        f"{ledger.folder}: expected answers of this engine, or few of others, before a GPU answers",
        found=f"{held} answers of this model that stay unused ({why})",
        do=f"To ask all {n_missing} prompts again, set lvlm.ask_again: true; to use what is there, go back to the code "
        "and libraries that answered.",
    )


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return what of two engines differs, for example `numerics: same_everywhere, here fastest`."""
    names = [name for name in here if there.get(name) != here[name]]
    return "; ".join(f"{name}: {there.get(name)}, here {here[name]}" for name in names)
