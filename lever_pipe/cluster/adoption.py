"""What jobs of a killed main process finished is judged by what it is, like everything else.

Snakemake's main process records under which params an output was made. If it is killed, its SLURM jobs go on, and
what they finish has no record, or that of an earlier configuration: Snakemake would trust it whatever the configuration
says now. The run card beside each output says what it was made with. So after such an end the next main process writes
the missing records from the run cards, and Snakemake compares them with its plan as it does with its own.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lever_pipe import ownership, snapshot, storage
from lever_pipe.errors import RecordError
from lever_pipe.provenance import canonical_json
from lever_pipe.records import RunCard

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
MARKER = snapshot.FOLDER / "running.json"
"""Names the main process that runs; whoever finds it without that process knows how the last run ended."""
RECORDS = Path(".snakemake/metadata")
FORMAT = 6
"""Version of Snakemake's records; a test compares."""
NO_CARDS = {"ledger", "train2014", "val2014"}

Workflow = Any  # snakemake.workflow.Workflow


def begin() -> None:
    """Note that a main process runs in this folder."""
    storage.write_text(MARKER, ownership.this_process().model_dump_json() + "\n")


def end() -> None:
    """Note that it has seen the end of all its jobs."""
    MARKER.unlink(missing_ok=True)


def adopt(workflow: Workflow, results: Path) -> list[Path]:
    """Record what jobs of a killed main process finished here; return the run cards of those artefacts.

    Does nothing in a job, after a run that ended orderly, and while the main process lives.
    """
    if not workflow.is_main_process or not MARKER.exists() or _is_alive():
        return []
    adopted = [card for card in unrecorded(results) if _record(workflow, card)]
    if adopted:
        log.warning(
            f"{len(adopted)} artefacts were finished after the last run was killed; recorded from their run cards"
        )
    return adopted


def unrecorded(results: Path) -> Iterator[Path]:
    """Yield each run card that Snakemake has no record of, or an older one."""
    for folder, subfolders, names in os.walk(results):
        subfolders[:] = sorted(set(subfolders) - NO_CARDS)
        for name in sorted(names):
            card = Path(folder) / name
            if (name == "run.json" or name.endswith(".run.json")) and _is_news(card):
                yield card


def record_of(path: str) -> Path:
    """Return where Snakemake keeps the record of an output."""
    name = base64.urlsafe_b64encode(path.encode()).decode()
    width = os.pathconf(RECORDS if RECORDS.exists() else ".", "PC_NAME_MAX") - 1
    *folders, last = (name[start : start + width] for start in range(0, len(name), width))
    return RECORDS.joinpath(*(f"@{folder}" for folder in folders), last)


def _is_news(card: Path) -> bool:
    try:
        return record_of(str(card)).stat().st_mtime < card.stat().st_mtime
    except FileNotFoundError:
        return card.exists()


def _record(workflow: Workflow, card: Path) -> bool:
    """Write the records of all outputs of the job that wrote a run card; return whether a rule makes it."""
    rule = next((rule for rule in workflow.rules if rule.is_producer(str(card))), None)
    try:
        made = storage.read_row(card, RunCard)
    except RecordError:
        return False
    if rule is None or made.stage != rule.name:
        return False
    written = card.stat().st_mtime
    values = {
        "rule": rule.name,
        "params": [repr(canonical_json({"code": made.code, "config": made.config}))],
        "record_format_version": FORMAT,
        "starttime": written - made.seconds,
        "endtime": written,
        "incomplete": False,
    }
    for output in rule.expand_output(rule.get_wildcards(str(card)))[0]:
        storage.write_text(record_of(str(output)), json.dumps(values))
    return True


def _is_alive() -> bool:
    """Return whether the main process that the marker names runs on this machine; on another nobody can tell."""
    try:
        owner = ownership.Owner.model_validate_json(MARKER.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    is_here = owner.machine == ownership.this_process().machine
    return is_here and ownership.process_start(owner.pid) == owner.started
