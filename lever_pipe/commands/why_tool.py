"""`lever-pipe why TARGET [words for Snakemake]`: why the target would run again, up to the root causes.

TARGET is an output, a folder, a policy as the tables name it (`preset~world/rce/seed~0/epoch~2`), or a rule. The words
are those of the run itself, as for `plan`: `--configfile`, `--config`. Each job is named with why it runs, the target
first. A job without a reason of its own runs only if one that it reads from comes out with other content; otherwise it
counts as made. If nothing runs, it is said what the target was made from. Nothing is run, and no more is written than
by a dry run.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lever_pipe.base import contents
from lever_pipe.base.errors import ConfigError, UnknownNameError
from lever_pipe.base.records import Manifest
from lever_pipe.base.sections import did_you_mean
from lever_pipe.runtime.rerun.artefacts import Artefact, absolute, manifests_below, read_artefact
from lever_pipe.runtime.rerun.decision import check
from lever_pipe.runtime.rerun.explain import ONLY_IF, RUNS, Explained, explain, walk
from lever_pipe.runtime.rerun.why_names import DISPLAY_LIMIT, STUDIES, label
from lever_pipe.runtime.snakemake_adapter import experiment_of, planned_jobs


def main(words: Sequence[str]) -> int:
    """Print the reasons and return 0."""
    target, *rest = words[1:] or [""]
    if target in ("-h", "--help"):
        sys.stdout.write(__doc__ or "")
        return 0
    if not target.strip() or target.startswith("-"):
        do = "Name an output, a policy or a rule first."
        raise ConfigError("why: expected a target, then words for Snakemake", found=f"'{target}'", do=do)
    explained, targets, run = reasons(target, rest)
    lines = sentences(explained, targets)
    if targets and run:
        lines.append(f"{len(run)} other artefacts of this name do not run.")
    else:
        lines += [origin_text(artefact, manifest) for artefact, manifest in run]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def reasons(target: str, words: Sequence[str]) -> tuple[list[Explained], list[int], list[tuple[Artefact, Manifest]]]:
    """Return all planned jobs explained, the places of those that make the target, and what of it need not be made."""
    results, jobs, digests = Path(experiment_of(words)[0].results), planned_jobs(words), contents.remembered()
    artefacts = [check(read_artefact(manifest), digests) for manifest in manifests_below(results)]
    sound = [(artefact, artefact.origin) for artefact in artefacts if artefact.origin is not None]
    targets = _indices_of([(job.rule, job.outputs) for job in jobs], target, results)
    locations = _indices_of(
        [(run.stage, tuple(map(str, artefact.written))) for artefact, run in sound], target, results
    )
    if not targets and not locations:
        do = "Name a file below the results that the run needs, or a rule; give the run's --configfile."
        raise UnknownNameError(
            "why: expected an output, an artefact's folder, a policy or a rule",
            found=f"'{target}'",
            do=did_you_mean(target, {job.rule for job in jobs} | {run.stage for _, run in sound}, do),
        )
    explained = explain(jobs, results=results, digests=digests)
    planned = {absolute(explained[location].manifest) for location in targets if explained[location].manifest}
    rest = [sound[location] for location in locations if absolute(sound[location][0].manifest) not in planned]
    return explained, targets, rest


def _indices_of(makers: Sequence[tuple[str, Sequence[str]]], target: str, results: Path) -> list[int]:
    """Return the places of the stages, each with its outputs, that a target means.

    It names the stage, an output, a part of an output folder, or a folder above.
    """
    paths_meant = [absolute(root / target) for root in (Path(), results, *(results / study for study in STUDIES))]

    def is_meant(path: str) -> bool:
        return any(path == want or path.startswith(f"{want}/") or want.startswith(f"{path}/") for want in paths_meant)

    return [i for i, (stage, paths) in enumerate(makers) if stage == target or any(map(is_meant, map(absolute, paths)))]


def sentences(explained: Sequence[Explained], targets: Sequence[int]) -> list[str]:
    """Return the chain of reasons from the targets up to the root causes, nearest first.

    All jobs with the same cause share its sentence. Jobs that have none of their own share one with those of the same
    rule, the nearest apart.
    """
    causes: dict[tuple[object, ...], list[int]] = {}
    for location, distance in walk(explained, targets):
        entry = explained[location]
        for cause in dict.fromkeys(entry.causes):  # an artefact may read a file by two names
            causes.setdefault((RUNS, cause.text), []).append(location)
        if not entry.causes:  # the target, and what it reads, have sentences of their own
            causes.setdefault((entry.status, min(distance, 2), entry.job.rule), []).append(location)
    return [_sentence(explained, locations, str(key[0]), str(key[1])) for key, locations in causes.items()]


def origin_text(artefact: Artefact, run: Manifest) -> str:
    """Return what an artefact was made from, for one that need not run."""
    astray = [*artefact.damaged, *artefact.replaced, *(name for name in artefact.missing if name in run.outputs)]
    reason = f"nothing that would run needs {', '.join(astray)} anew" if astray else "everything is as it was made"
    lines = [
        f"{label(run.stage, str(artefact.manifest))} does not run: {reason}.",
        f"  made by {run.stage}, code {run.code}, commit {run.commit[:12]}, {run.device}, {run.seconds} s, from",
        *(f"    {name} {digest[:16]}" for name, digest in sorted(run.inputs.items())),
    ]
    return "\n".join(lines)


def _sentence(explained: Sequence[Explained], locations: Sequence[int], status: str, cause: str) -> str:
    jobs = [explained[location] for location in locations]
    names, run = _names(jobs), "run" if len(jobs) > 1 else "runs"
    if status == RUNS:
        return f"{names} {run} because {cause}."
    if status == ONLY_IF:
        follows = {other for job in jobs for other in job.follows}
        above = [explained[i] for i in sorted(follows.difference(locations) or follows)]
        return f"{names} {run} only if {'one of ' * (len(above) > 1)}{_names(above)} comes out with other content."
    counts = "are planned, but count" if len(jobs) > 1 else "is planned, but counts"
    return f"{names} {counts} as made: all that went in is the same (Snakemake says: {jobs[0].job.reason})."


def _names(jobs: Sequence[Explained]) -> str:
    """Return the names of jobs, or where they are many, how many of each rule."""
    names = sorted({job.name for job in jobs})
    if len(names) > DISPLAY_LIMIT:
        counts = Counter(job.job.rule for job in jobs)
        names = [f"{n} jobs of {rule}" if n > 1 else rule for rule, n in sorted(counts.items())]
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
