"""Why planned jobs would run: each job's own causes, and which other jobs it only follows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base.contents import Digests, is_card
from lever_pipe.base.records import RunCard
from lever_pipe.experiment import agent_stage_configs, stage_configs
from lever_pipe.runtime import plan
from lever_pipe.runtime.rerun import code_records
from lever_pipe.runtime.rerun.artefacts import Verdict
from lever_pipe.runtime.rerun.forecast import PlannedJob
from lever_pipe.runtime.rerun.why_inputs import Cause, Makers, absolute, input_causes, makers_of
from lever_pipe.runtime.rerun.why_names import first, flat, label

RUNS, ONLY_IF, AS_MADE = "runs", "only if", "as made"
MODEL = "model_identity"
"""Last part of the config keys that hold a model folder's digest."""
LONGEST_VALUE = 60


class Explained(NamedTuple):
    """A planned job with why it would run.

    Attributes:
        name: what it is called.
        card: its run card's path; empty for a rule without one.
        causes: its own; where there are none, it runs at most as a consequence.
        follows: places of the planned jobs whose outputs it reads, with the names of these inputs.
    """

    job: PlannedJob
    name: str
    card: str
    causes: tuple[Cause, ...]
    follows: dict[int, tuple[str, ...]]

    @property
    def status(self) -> str:
        """Return whether it runs, runs only if another job's output changes, or counts as made already."""
        return RUNS if self.causes else ONLY_IF if self.follows else AS_MADE


class Call(NamedTuple):
    """What a planned job's command calls its stage with; `inputs` maps a name to its paths."""

    config: dict[str, Any]
    code: str
    inputs: dict[str, list[str]]


def explain(
    jobs: Sequence[PlannedJob], verdicts: Sequence[Verdict], *, results: Path, digests: Digests
) -> list[Explained]:
    """Return why each planned job would run, in the order of the plan.

    Args:
        jobs: as Snakemake plans them.
        verdicts: on all artefacts below the results.
        results: the results folder, where code records lie.
        digests: contents of files.
    """
    by_card = {absolute(verdict.artefact.card): verdict for verdict in verdicts}
    remade = {absolute(path): i for i, job in enumerate(jobs) for path in job.outputs}
    makers, found = makers_of(verdicts), []
    for i, job in enumerate(jobs):
        card = next((path for path in job.outputs if is_card(Path(path))), "")
        call, verdict = call_of(job), by_card.get(absolute(card)) if card else None
        causes = tuple(_causes(job, call, verdict, remade=remade, makers=makers, results=results, digests=digests))
        name = label(job.rule, card or next(iter(job.outputs), ""))
        found.append(Explained(job, name, card, causes, _follows(i, job, call, remade)))
    return found


def call_of(job: PlannedJob) -> Call | None:
    """Return what a job's command calls its stage with; None for a command that calls none."""
    with suppress(ValueError, LookupError, TypeError):
        words = shlex.split(job.command)
        spec = json.loads(words[words.index("--spec") + 1])
        inputs: dict[str, list[str]] = {}
        for word in words:
            name, separator, path = word.partition("=")
            own = next((own for own in job.inputs if separator and (own == path or own.endswith(f"/{path}"))), "")
            if own and name.isidentifier():
                inputs.setdefault(name, []).append(own)
        return Call(spec["config"], str(spec["code"]), inputs)
    return None


def members_of(stage: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that a stage's config selects by name; none for a stage of another version."""
    name = "".join(part.capitalize() for part in stage.split("_")) + "Config"
    parsed = getattr(stage_configs, name, None) or getattr(agent_stage_configs, name, None)
    with suppress(ValueError):
        return plan.members_of(parsed.model_validate(config)) if parsed else ()
    return ()


def config_causes(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Cause]:
    """Yield each key in which two configs differ, the model folders apart."""
    before, after = flat(was), flat(now)
    for key in dict.fromkeys([*after, *before]):
        if key in before and key in after and before[key] == after[key]:
            continue
        details = {"key": key} | ({"was": before[key]} if key in before else {})
        details |= {"is": after[key]} if key in after else {}
        if key.endswith(MODEL):
            text = f"the model folder holds another model: {key} is {after.get(key)}, was {before.get(key)}"
            yield Cause("model", text, details)
        else:
            yield Cause("config", f"the configuration differs: {_key_text(key, before, after)}", details)


def code_cause(made: RunCard, call: Call, results: Path) -> Cause:
    """Return which modules of a stage differ, as far as it is recorded."""
    found = code_records.differing(results, made.code, made.stage, members_of(made.stage, call.config))
    details: dict[str, Any] = {"was": made.code, "is": call.code}
    if found is None:
        text = f"the code differs ({made.code} then, {call.code} now; no record says in which modules)"
        return Cause("code", text, details)
    parts = [f"{name} changed" for name in found.changed]
    parts += [f"{name} is imported now" for name in found.added]
    parts += [f"{name} is not imported any more" for name in found.removed]
    parts += [f"Python {found.python[0]} then, {found.python[1]} now"] if found.python else []
    text = f"the code differs: {first(parts) or 'in nothing that is recorded'}"
    return Cause("code", text, details | found._asdict())


def walk(explained: Sequence[Explained], targets: Sequence[int]) -> list[tuple[int, int]]:
    """Return the places of the targets and of all planned jobs above them with their distance, nearest first."""
    distance = dict.fromkeys(targets, 0)
    queue = list(targets)
    for place in queue:
        for other in explained[place].follows:
            if other not in distance:
                distance[other] = distance[place] + 1
                queue.append(other)
    return sorted(distance.items(), key=lambda item: (item[1], item[0]))


def _causes(
    job: PlannedJob,
    call: Call | None,
    verdict: Verdict | None,
    *,
    remade: Mapping[str, int],
    makers: Makers,
    results: Path,
    digests: Digests,
) -> Iterator[Cause]:
    """Yield a job's own causes, nearest to the user first."""
    yield from _wanted(job)
    if verdict is None:
        yield _unmade(job)
        return
    made = verdict.artefact.made
    if made is None:
        text = f"the run card {verdict.artefact.card} cannot be read"
        yield Cause("unreadable_card", text, {"path": str(verdict.artefact.card)})
        return
    yield from _output_causes(job, verdict)
    if call is None:
        yield Cause("unknown", f"Snakemake says so ({job.reason}); the command tells no more", {"reason": job.reason})
        return
    yield from config_causes(made.config, call.config)
    if made.code != call.code:
        yield code_cause(made, call, results)
    yield from input_causes(call.inputs, verdict.artefact, remade=remade, makers=makers, digests=digests)


def _wanted(job: PlannedJob) -> Iterator[Cause]:
    """Yield what a user asked for, or an edit of the rule."""
    head = job.reason.split("Params have changed")[0]
    if "Forced execution" in head:
        yield Cause("forced", "this is forced", {})
    if "Code has changed" in head:
        yield Cause("command", f"the command of rule {job.rule} changed", {"rule": job.rule})
    if "Software environment definition has changed" in head:
        yield Cause("environment", f"the software environment of rule {job.rule} changed", {"rule": job.rule})


def _unmade(job: PlannedJob) -> Cause:
    """Return the cause of a job without a run card."""
    there = [path for path in job.outputs if Path(path).exists()]
    if not there:
        return Cause("never_made", "there is none here yet", {})
    text = f"the run card is missing, so nobody can tell whether what lies there is whole ({first(there)})"
    return Cause("no_card", text, {"there": there})


def _output_causes(job: PlannedJob, verdict: Verdict) -> Iterator[Cause]:
    missing = [path for path in job.outputs if not Path(path).exists()]
    if missing:
        text = f"{'outputs are' if len(missing) > 1 else 'an output is'} missing: {first(missing)}"
        yield Cause("missing_output", text, {"missing": missing})
    damaged = [str(verdict.artefact.paths[name]) for name in verdict.damaged]
    if damaged:
        text = f"{'outputs are' if len(damaged) > 1 else 'an output is'} damaged: {first(damaged)}"
        yield Cause("damaged_output", text, {"damaged": damaged})


def _follows(place: int, job: PlannedJob, call: Call | None, remade: Mapping[str, int]) -> dict[int, tuple[str, ...]]:
    named = call.inputs if call else {"": list(job.inputs)}
    found: dict[int, list[str]] = {}
    for name, paths in named.items():
        for path in paths:
            other = remade.get(absolute(path))
            if other is not None and other != place:
                found.setdefault(other, []).append(name)
    return {other: tuple(dict.fromkeys(names)) for other, names in found.items()}


def _key_text(key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    if key not in before:
        return f"{key} is {_short(after[key])}, was not set"
    if key not in after:
        return f"{key} was {_short(before[key])}, is not set any more"
    was, now = before[key], after[key]
    if isinstance(was, list) and isinstance(now, list):
        gone, came = [v for v in was if v not in now], [v for v in now if v not in was]
        if len(_short(was)) > LONGEST_VALUE / 2 and (gone or came):
            parts = [
                f"{sign}{len(values)} ({_short(values[0])}{', ...' * (len(values) > 1)})"
                for sign, values in (("+", came), ("-", gone))
                if values
            ]
            return f"{key} lists others: {', '.join(parts)}"
    return f"{key} is {_short(now)}, was {_short(was)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def made_from(verdict: Verdict) -> dict[str, Any]:
    """Return how an artefact came to be and what is not as then, as plain values; empty if its card cannot be read."""
    artefact, made = verdict.artefact, verdict.artefact.made
    if made is None:
        return {}
    missing = [name for name in made.outputs if name in artefact.paths and not artefact.paths[name].exists()]
    return {
        "missing": missing,
        "damaged": list(verdict.damaged),
        "replaced": list(verdict.replaced),
        "name": label(made.stage, str(artefact.card)),
        "card": str(artefact.card),
        "stage": made.stage,
        "code": made.code,
        "commit": made.commit,
        "dirty": made.dirty,
        "device": made.device,
        "seconds": made.seconds,
        "inputs": dict(made.inputs),
        "outputs": dict(made.outputs),
    }
