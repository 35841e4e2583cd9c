"""Snakemake's records say what the run cards say, before Snakemake plans.

Snakemake compares large files by time, trusts an output that it has no record of, and keeps its records in one place
that a user may delete. Here the run card beside each artefact decides. Before anything is planned, each one is judged
by the contents that it was made from and those that there are now. Snakemake's record of it gets the identity that the
card states, and where the artefact has to be made again, the reason. So Snakemake's own plan follows content: a touched
or copied file reruns nothing, an exchanged one reruns exactly what read it, whatever its time says; what jobs of a
killed run finished counts for what it is; and a deleted `.snakemake` loses nothing.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from lever_pipe.base import contents
from lever_pipe.base.provenance import canonical_json
from lever_pipe.base.records import RunCard
from lever_pipe.runtime.rerun.artefacts import (
    CARD,
    Verdict,
    accept,
    cards_below,
    files_without_card,
    judge,
    read_artefact,
    refresh,
)

log = logging.getLogger(f"snakemake.logging.{__name__}")  # also in the run's own log file
RECORDS = Path(".snakemake/metadata")
FORMAT = 6
"""Version of Snakemake's records; a test compares."""
SHOWN = 5

Workflow = Any  # snakemake.workflow.Workflow


def reconcile(workflow: Workflow, results: Path) -> list[Verdict]:
    """Bring Snakemake's records in line with the run cards below the results; return the verdicts on all artefacts.

    Does nothing in a job's own Snakemake.
    """
    if not workflow.is_main_process:
        return []
    digests = contents.remembered()
    verdicts = [judge(artefact, digests) for artefact in map(read_artefact, cards_below(results))]
    for verdict in sources_first(verdicts):
        try:
            accept(verdict, digests)
            _record(workflow, verdict)
            refresh(verdict)
        except OSError as fault:  # another user's results
            log.warning(f"{verdict.artefact.card}: cannot be brought in line with its files: {fault}")
    known = {path for verdict in verdicts for path in _made(verdict)}
    for rule, outputs in without_card(workflow, results, known):
        _record_all(rule, outputs, [repr("no run card")], {})
    digests.save()
    _tell(verdicts)
    return verdicts


def sources_first(verdicts: list[Verdict]) -> Iterator[Verdict]:
    """Yield each verdict after those on the artefacts that its artefact was made from."""
    makers = {path: index for index, verdict in enumerate(verdicts) for path in _made(verdict)}
    graph = {index: {makers[path] for path in _read_by(v) if path in makers} for index, v in enumerate(verdicts)}
    try:
        yield from (verdicts[index] for index in TopologicalSorter(graph).static_order())
    except CycleError:  # cards that no run has written
        yield from verdicts


def _made(verdict: Verdict) -> list[Path]:
    made, paths = verdict.artefact.made, verdict.artefact.paths
    return [path for name, path in paths.items() if made is not None and name not in made.inputs]


def _read_by(verdict: Verdict) -> list[Path]:
    made, paths = verdict.artefact.made, verdict.artefact.paths
    return [path for name, path in paths.items() if made is not None and name in made.inputs]


def record_of(path: str) -> Path:
    """Return where Snakemake keeps the record of an output."""
    name = base64.urlsafe_b64encode(path.encode()).decode()
    width = os.pathconf(RECORDS if RECORDS.exists() else ".", "PC_NAME_MAX") - 1
    *folders, last = (name[start : start + width] for start in range(0, len(name), width))
    return RECORDS.joinpath(*(f"@{folder}" for folder in folders), last)


def params_of(made: RunCard, reason: str = "") -> list[str]:
    """Return the params that Snakemake finds equal to those planned only if identity and inputs are."""
    identity = repr(canonical_json({"code": made.code, "config": made.config}))
    return [identity, repr(reason)] if reason else [identity]


def _record(workflow: Workflow, verdict: Verdict) -> None:
    """Write the records of all outputs of an artefact, unless they say so already."""
    artefact = verdict.artefact
    rule, outputs = _outputs(workflow, verdict)
    if rule is None:
        return
    is_own = artefact.made is not None and artefact.made.stage == rule.name
    params = [repr("no run card of this rule")]
    if artefact.made is not None and is_own:
        params = params_of(artefact.made, verdict.reason)
    made = artefact.made
    values: dict[str, Any] = {}
    if made is not None:
        written = _time(artefact.card)
        values = {"starttime": written - made.seconds, "endtime": written}
        values["input"] = sorted(str(path) for name, path in artefact.paths.items() if name in made.inputs)
    _record_all(rule, outputs, params, values)


def _record_all(rule: Any, outputs: list[str], params: list[str], values: dict[str, Any]) -> None:
    """Write the records of a job's outputs, unless they say so already.

    An output that a wider configuration adds needs a record, too, or Snakemake compares nothing.
    """
    known = [_read(output) for output in outputs]
    said = {"rule": rule.name, "params": params}
    differs = [found for found in known if not _same_files(found.get("input"), values.get("input"))]
    if not differs and all(found.get(name) == value for found in known for name, value in said.items()):
        return
    if differs:
        said["input"] = values["input"]
    fresh = {"record_format_version": FORMAT, "incomplete": False, **values}
    for output, found in zip(outputs, known, strict=True):
        kept = found if found.get("rule") == rule.name else {}
        _write(record_of(output), json.dumps(fresh | kept | said))


def _same_files(recorded: Any, made_from: list[str] | None) -> bool:
    """Return whether a record names a card's inputs, if these are known; Snakemake keeps paths as a user wrote them."""
    if made_from is None or recorded == made_from:
        return True
    return isinstance(recorded, list) and sorted(map(_plain, recorded)) == sorted(map(_plain, made_from))


def _plain(path: Any) -> str:
    return os.path.normpath(str(path))


def without_card(workflow: Workflow, results: Path, known: set[Path]) -> Iterator[tuple[Any, list[str]]]:
    """Yield the rule and the outputs of each artefact whose run card is missing, though Snakemake may not miss it.

    Args:
        workflow: its rules.
        results: what is looked through.
        known: files and folders that a run card names as outputs.
    """
    rules = [rule for rule in workflow.rules if CARD in set(rule.output.keys())]
    seen: set[str] = set()
    for path in files_without_card(results, known):
        rule = next((rule for rule in rules if rule.is_producer(str(path))), None)
        if rule is None:
            continue
        outputs = rule.expand_output(rule.get_wildcards(str(path)))[0]
        card = str(outputs[CARD])
        if card not in seen and not Path(card).exists():
            seen.add(card)
            yield rule, list(map(str, outputs))


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _outputs(workflow: Workflow, verdict: Verdict) -> tuple[Any, list[str]]:
    """Return the rule that makes an artefact, or None, and its outputs as the rule names them."""
    card = str(verdict.artefact.card)
    made = verdict.artefact.made
    own = [rule for rule in workflow.rules if made is not None and rule.name == made.stage]
    rule = next((rule for rule in [*own, *workflow.rules] if rule.is_producer(card)), None)
    return rule, list(map(str, rule.expand_output(rule.get_wildcards(card))[0])) if rule else []


def _write(record: Path, text: str) -> None:
    """Write a record whole, without waiting for the disk: what is lost there follows from the run card again."""
    record.parent.mkdir(parents=True, exist_ok=True)
    temporary = record.with_name(f"{record.name[:100]}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(record)


def _read(output: str) -> dict[str, Any]:
    try:
        known = json.loads(record_of(output).read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _tell(verdicts: list[Verdict]) -> None:
    """Say what is not as its run card says."""
    for line in told(verdicts):
        log.warning(line)


def told(verdicts: list[Verdict]) -> Iterator[str]:
    """Yield a line for each file that is damaged or replaced, and for each card that cannot be read, up to a number."""
    lines = []
    for verdict in verdicts:
        paths = verdict.artefact.paths
        if verdict.artefact.made is None:
            lines.append(f"{verdict.artefact.card}: expected a run card; what it stands for is made again if needed")
        lines += [
            f"{paths[name]}: expected what its run card says; found damage. It is made again if needed"
            for name in verdict.damaged
        ]
        lines += [
            f"{paths[name]}: not what its rule made: somebody replaced it. What reads it is made again; to have the "
            "rule's own back, delete it"
            for name in verdict.replaced
        ]
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        kinds = Counter(kind for verdict in verdicts for kind in ("damaged",) * len(verdict.damaged))
        yield f"... and {len(lines) - SHOWN} more files like these ({kinds['damaged']} damaged in all)"
