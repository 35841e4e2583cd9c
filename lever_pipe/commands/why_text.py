"""Reasons as sentences, nearest first, each once; and as plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lever_pipe.runtime.rerun.why import ONLY_IF, RUNS, Explained, walk

NAMED_DISTANCE = 1
"""Up to here consequences are told by their distance: the target, and what it reads."""
MOST_NAMES = 3
"""So many jobs of a rule are named one by one in a sentence."""


def sentences(explained: Sequence[Explained], targets: Sequence[int]) -> list[str]:
    """Return the chain of reasons from the targets up to the root causes, nearest first.

    All jobs with the same cause share its sentence. Jobs that have none of their own share one with those of the same
    rule, the nearest apart.
    """
    causes: dict[tuple[object, ...], list[int]] = {}
    for place, distance in walk(explained, targets):
        found = explained[place]
        for cause in found.causes:
            causes.setdefault((RUNS, cause.text), []).append(place)
        if not found.causes:
            causes.setdefault((found.status, min(distance, NAMED_DISTANCE + 1), found.job.rule), []).append(place)
    return [_sentence(explained, places, str(key[0]), str(key[1])) for key, places in causes.items()]


def as_object(
    explained: Sequence[Explained], targets: Sequence[int], made: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the same as plain values: the jobs from the targets upwards, and what up-to-date targets were made from.

    A job's `follows` holds the places, in this list, of the jobs whose outputs it reads, with the inputs' names.
    """
    places = walk(explained, targets)
    order = {place: i for i, (place, _) in enumerate(places)}
    return {
        "jobs": [
            {
                "name": found.name,
                "rule": found.job.rule,
                "wildcards": found.job.wildcards,
                "outputs": list(found.job.outputs),
                "distance": distance,
                "status": found.status,
                "causes": [{"kind": c.kind, "text": c.text, "details": c.details} for c in found.causes],
                "follows": {str(order[other]): list(names) for other, names in found.follows.items()},
                "snakemake": found.job.reason,
            }
            for found, distance in ((explained[place], distance) for place, distance in places)
        ],
        "up_to_date": list(made),
    }


def made_text(made: Mapping[str, Any]) -> str:
    """Return what an artefact was made from, for one that need not run."""
    state = f"{made['commit'][:12]}{' with uncommitted changes' if made['dirty'] else ''}"
    inputs = "".join(f"\n    {name} {digest[:16]}" for name, digest in sorted(made["inputs"].items())[:12])
    more = f"\n    ... and {len(made['inputs']) - 12} more" if len(made["inputs"]) > 12 else ""
    astray = [f"{state}: {', '.join(made[state])}" for state in ("missing", "damaged", "replaced") if made[state]]
    found = f"nothing that would run needs it anew ({'; '.join(astray)})" if astray else "everything is as it was made"
    return (
        f"{made['name']} does not run: {found}.\n"
        f"  made {made['when']} by {made['stage']}, code {made['code']}, commit {state}, "
        f"on {made['device']}, {made['seconds']} s\n  from{inputs}{more}"
        + ("" if inputs else " nothing but its configuration")
    )


def _sentence(explained: Sequence[Explained], places: Sequence[int], status: str, cause: str) -> str:
    found = [explained[place] for place in places]
    several = len(found) > 1
    if status == RUNS:
        return f"{_who(found)} {'run' if several else 'runs'} because {cause}."
    if status == ONLY_IF:
        follows = {other for each in found for other in each.follows}
        above = [explained[i] for i in sorted(follows.difference(places) or follows)]
        one_of = "one of " if len(above) > 1 else ""
        return (
            f"{_who(found)} {'run' if several else 'runs'} only if {one_of}{_who(above)} comes out with other content."
        )
    verb = "are planned, but count" if several else "is planned, but counts"
    return f"{_who(found)} {verb} as made: all that went in is the same (Snakemake says: {found[0].job.reason})."


def _who(found: Sequence[Explained]) -> str:
    """Return the names of jobs, or where they are many, how many of each rule."""
    names = sorted({each.name for each in found})
    if len(names) <= MOST_NAMES:
        return _listed(names)
    counts = Counter(each.job.rule for each in found)
    return _listed([f"{n} jobs of {rule}" if n > 1 else rule for rule, n in sorted(counts.items())])


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
