"""`python -m lever_pipe why TARGET [words for Snakemake]`: why the target would run again, up to the root causes.

TARGET is an output path, an artefact's folder, a policy as the tables name it (`preset~world/rce/seed~0/epoch~2`, or
without its seed for all of them), or a rule. The words are those of the run itself, as for `plan`: `--configfile`,
`--config`. Each job is named with why it runs, the target first. A job without a reason of its own runs only if one
that it reads from comes out with other content; otherwise it counts as made. If nothing runs, it is said what the
target was made from. Nothing is run, and no more is written than by a dry run.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from lever_pipe.base import contents
from lever_pipe.base.errors import ConfigError, UnknownMemberError
from lever_pipe.base.policy_names import group_of
from lever_pipe.base.records import RunCard
from lever_pipe.base.sections import did_you_mean
from lever_pipe.runtime.rerun.artefacts import Artefact, absolute, cards_below, read_artefact
from lever_pipe.runtime.rerun.decision import judge
from lever_pipe.runtime.rerun.explain import ONLY_IF, RUNS, Explained, explain, walk
from lever_pipe.runtime.rerun.why_names import STUDIES, label
from lever_pipe.runtime.snakemake_adapter import PlannedJob, UnplannableError, planned_jobs, results_folder

CARD = "run.json"
MOST_NAMES = 3
"""So many jobs of a rule are named one by one in a sentence."""


def main(words: Sequence[str]) -> int:
    """Print the reasons and return 0."""
    target, *rest = words[1:] or [""]
    if target in ("-h", "--help"):
        sys.stdout.write(__doc__ or "")
        return 0
    if not target.strip() or target.startswith("-"):
        do = "Name an output, a policy or a rule first."
        raise ConfigError("why: expected a target, then words for Snakemake", found=f"'{target}'", do=do)
    explained, targets, made = reasons(target, rest)
    lines = sentences(explained, targets)
    if targets and made:
        lines.append(f"{len(made)} other artefacts of this name do not run.")
    else:
        lines += [made_text(artefact, card) for artefact, card in made]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def reasons(target: str, words: Sequence[str]) -> tuple[list[Explained], list[int], list[tuple[Artefact, RunCard]]]:
    """Return all planned jobs explained, the places of those that make the target, and what of it need not be made."""
    jobs, results, digests = planned_jobs(words), results_folder(words), contents.remembered()
    artefacts = [judge(read_artefact(card), digests) for card in cards_below(results)]
    whole = [(artefact, artefact.made) for artefact in artefacts if artefact.made is not None]
    targets = _meant([job.outputs for job in jobs], [job.rule for job in jobs], target, results)
    there = _meant([each.written for each, _ in whole], [made.stage for _, made in whole], target, results)
    if not targets and not there:
        jobs = _planned_for(target, words, known={job.rule for job in jobs} | {made.stage for _, made in whole})
        targets = _meant([job.outputs for job in jobs], [job.rule for job in jobs], target, results)
    explained = explain(jobs, artefacts, results=results, digests=digests)
    planned = {absolute(explained[place].card) for place in targets if explained[place].card}
    rest = [whole[place] for place in there if absolute(whole[place][0].card) not in planned]
    return explained, targets, rest


def _meant(outputs: Sequence[Sequence[str | Path]], stages: Sequence[str], target: str, results: Path) -> list[int]:
    """Return the places of what a target means, a stage or one of the outputs: the nearest kind of match.

    An output is named as the file itself, by its folder's own card, as a part of an output folder, by its folder, or by
    a folder above. A name without its seed means every seed's.
    """
    if named := [i for i, stage in enumerate(stages) if stage == target]:
        return named

    def forms(path: str) -> set[str]:
        return {path} if "seed~" in target else {path, group_of(path)}

    roots = (Path(), results, *(results / study for study in STUDIES))
    wanted = {form for root in roots for form in forms(absolute(root / target))}
    written = [{form for path in paths for form in forms(absolute(path))} for paths in outputs]
    kinds: tuple[Callable[[str, str], bool], ...] = (
        lambda path, form: path in (form, f"{form}/{CARD}"),
        lambda path, form: form.startswith(f"{path}/"),
        lambda path, form: str(Path(path).parent) == form,
        lambda path, form: path.startswith(f"{form}/"),
    )
    for is_meant in kinds:
        places = [
            i for i, paths in enumerate(written) if any(is_meant(path, form) for path in paths for form in wanted)
        ]
        if places:
            return places
    return []


def _planned_for(target: str, words: Sequence[str], *, known: set[str]) -> list[PlannedJob]:
    """Return what Snakemake plans for a target that the run itself does not need."""
    behind = ["--", target] if "--" not in words else [target]
    try:
        return planned_jobs([*words, *behind])
    except UnplannableError as fault:
        if "MissingRule" not in fault.found:
            raise
        raise UnknownMemberError(
            "why: expected an output, an artefact's folder, a policy or a rule",
            found=f"'{target}'",
            do=did_you_mean(target, known, "Name a file below the results, or a rule."),
        ) from None


def sentences(explained: Sequence[Explained], targets: Sequence[int]) -> list[str]:
    """Return the chain of reasons from the targets up to the root causes, nearest first.

    All jobs with the same cause share its sentence. Jobs that have none of their own share one with those of the same
    rule, the nearest apart.
    """
    causes: dict[tuple[object, ...], list[int]] = {}
    for place, distance in walk(explained, targets):
        each = explained[place]
        for cause in each.causes:
            causes.setdefault((RUNS, cause.text), []).append(place)
        if not each.causes:  # the target, and what it reads, have sentences of their own
            causes.setdefault((each.status, min(distance, 2), each.job.rule), []).append(place)
    return [_sentence(explained, places, str(key[0]), str(key[1])) for key, places in causes.items()]


def made_text(artefact: Artefact, made: RunCard) -> str:
    """Return what an artefact was made from, for one that need not run."""
    states = {
        "missing": [name for name in artefact.missing if name in made.outputs],
        "damaged": artefact.damaged,
        "replaced": list(artefact.replaced),
    }
    astray = "; ".join(f"{state}: {', '.join(names)}" for state, names in states.items() if names)
    found = f"nothing that would run needs it anew ({astray})" if astray else "everything is as it was made"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(artefact.card.stat().st_mtime))
    commit = f"{made.commit[:12]}{' with uncommitted changes' if made.dirty else ''}"
    inputs = "".join(f"\n    {name} {digest[:16]}" for name, digest in sorted(made.inputs.items())[:12])
    more = f"\n    ... and {len(made.inputs) - 12} more" if len(made.inputs) > 12 else ""
    return (
        f"{label(made.stage, str(artefact.card))} does not run: {found}.\n"
        f"  made {when} by {made.stage}, code {made.code}, commit {commit}, on {made.device}, {made.seconds} s\n"
        f"  from{inputs or ' nothing but its configuration'}{more}"
    )


def _sentence(explained: Sequence[Explained], places: Sequence[int], status: str, cause: str) -> str:
    jobs = [explained[place] for place in places]
    several = len(jobs) > 1
    if status == RUNS:
        return f"{_who(jobs)} {'run' if several else 'runs'} because {cause}."
    if status == ONLY_IF:
        follows = {other for each in jobs for other in each.follows}
        above = [explained[i] for i in sorted(follows.difference(places) or follows)]
        one_of = "one of " if len(above) > 1 else ""
        return (
            f"{_who(jobs)} {'run' if several else 'runs'} only if {one_of}{_who(above)} comes out with other content."
        )
    verb = "are planned, but count" if several else "is planned, but counts"
    return f"{_who(jobs)} {verb} as made: all that went in is the same (Snakemake says: {jobs[0].job.reason})."


def _who(jobs: Sequence[Explained]) -> str:
    """Return the names of jobs, or where they are many, how many of each rule."""
    names = sorted({each.name for each in jobs})
    if len(names) <= MOST_NAMES:
        return _listed(names)
    counts = Counter(each.job.rule for each in jobs)
    return _listed([f"{n} jobs of {rule}" if n > 1 else rule for rule, n in sorted(counts.items())])


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
