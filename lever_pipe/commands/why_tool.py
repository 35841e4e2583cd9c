"""`lever-pipe why TARGET [words for Snakemake]`: the reasons why a target would run again, up to the root causes.

TARGET is an output, a folder, a policy by its name in the tables (`preset~world/rce/seed~0/epoch~2`), or a rule. The
words are the same as for the run, as for `plan`: `--configfile`, `--config`. The output lists each job with its reason,
the target first. A job without its own reason runs only if the content of one of its inputs changes; otherwise it
counts as made. If nothing runs, the output lists the inputs of the target. Nothing is run, and only the files of a dry
run are written.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lever_pipe.base import contents
from lever_pipe.base.artefacts import STUDIES, Artefact, absolute, label, manifests_below, read_artefact
from lever_pipe.base.errors import ConfigError, UnknownNameError
from lever_pipe.base.records import Manifest
from lever_pipe.base.sections import did_you_mean
from lever_pipe.runtime.reruns.manifest import state_of
from lever_pipe.runtime.reruns.why import ONLY_IF, RUNS, Explained, explain, walk
from lever_pipe.runtime.snakemake_adapter import experiment_of, planned_jobs

MOST_NAMES = 3


def main(words: Sequence[str]) -> int:
    """Print the reasons and return 0."""
    target, *rest = words[1:] or [""]
    if target in ("-h", "--help"):
        sys.stdout.write(__doc__ or "")
        return 0
    if not target.strip() or target.startswith("-"):
        do = "Name an output, a policy or a rule first."
        raise ConfigError("why: expected a target, then words for Snakemake", found=f"'{target}'", do=do)
    explained, targets, unaffected = reasons(target, rest)
    lines = sentences(explained, targets)
    if targets and unaffected:
        lines.append(f"{len(unaffected)} other artifacts of this name do not run.")
    else:
        lines += [origin_text(artefact, origin) for artefact, origin in unaffected]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def reasons(target: str, words: Sequence[str]) -> tuple[list[Explained], list[int], list[tuple[Artefact, Manifest]]]:
    """Return all planned jobs with reasons, the indices of those that make the target, and its unaffected artifacts."""
    results, jobs = Path(experiment_of(words)[0].results), planned_jobs(words)
    artefacts = [read_artefact(manifest) for manifest in manifests_below(results)]
    sound = [(artefact, artefact.origin) for artefact in artefacts if artefact.origin is not None]
    targets = _indices_of([(job.rule, job.outputs) for job in jobs], target, results)
    indices = _indices_of(
        [(origin.stage, tuple(map(str, artefact.written))) for artefact, origin in sound], target, results
    )
    if not targets and not indices:
        do = "Name a file below the results that the run needs, or a rule; give the run's --configfile."
        raise UnknownNameError(
            "why: expected an output, an artifact's folder, a policy or a rule",
            found=f"'{target}'",
            do=did_you_mean(target, {job.rule for job in jobs} | {origin.stage for _, origin in sound}, do),
        )
    explained = explain(jobs, results=results, digests=contents.remembered())
    planned = {absolute(explained[index].manifest) for index in targets if explained[index].manifest}
    rest = [sound[index] for index in indices if absolute(sound[index][0].manifest) not in planned]
    return explained, targets, rest


def _indices_of(makers: Sequence[tuple[str, Sequence[str]]], target: str, results: Path) -> list[int]:
    """Return the indices of the stages, each with its outputs, that match a target.

    A target is a stage, an output, a part of an output folder, or a folder above.
    """
    # Targets may be relative to the working directory, the results or a study.
    paths_meant = [absolute(root / target) for root in (Path(), results, *(results / study for study in STUDIES))]

    def is_meant(path: str) -> bool:
        return any(path == want or path.startswith(f"{want}/") or want.startswith(f"{path}/") for want in paths_meant)

    return [i for i, (stage, paths) in enumerate(makers) if stage == target or any(map(is_meant, map(absolute, paths)))]


def sentences(explained: Sequence[Explained], targets: Sequence[int]) -> list[str]:
    """Return the chain of reasons from the targets up to the root causes, nearest first.

    Jobs with the same cause share a sentence. Jobs without their own cause share one with the others of their rule,
    except for the nearest.
    """
    causes: dict[tuple[object, ...], list[int]] = {}
    for index, distance in walk(explained, targets):
        entry = explained[index]
        for reason in dict.fromkeys(entry.reasons):  # an artifact may read a file under two names
            causes.setdefault((RUNS, reason.text), []).append(index)
        if not entry.reasons:  # the target and its direct inputs get separate sentences
            causes.setdefault((entry.status, min(distance, 2), entry.job.rule), []).append(index)
    return [_sentence(explained, indices, str(key[0]), str(key[1])) for key, indices in causes.items()]


def origin_text(artefact: Artefact, origin: Manifest) -> str:
    """Return the origin of an artifact that need not run."""
    state = state_of(artefact, contents.remembered())
    astray = [*state.damaged, *state.replaced, *(name for name in state.missing if name in origin.outputs)]
    reason = f"nothing that would run needs {', '.join(astray)} anew" if astray else "everything is as it was made"
    run = f"commit {origin.commit[:12]}, {origin.device}, {origin.seconds} s"
    lines = [
        f"{label(origin.stage, str(artefact.manifest))} does not run: {reason}.",
        f"  made by {origin.stage}, code {origin.code}, {run}, from",
        *(f"    {name} {digest[:16]}" for name, digest in sorted(origin.inputs.items())),
    ]
    return "\n".join(lines)


def _sentence(explained: Sequence[Explained], indices: Sequence[int], status: str, cause: str) -> str:
    jobs = [explained[index] for index in indices]
    names, run = _names(jobs), "run" if len(jobs) > 1 else "runs"
    if status == RUNS:
        return f"{names} {run} because {cause}."
    if status == ONLY_IF:
        follows = {other for job in jobs for other in job.follows}
        above = [explained[i] for i in sorted(follows.difference(indices) or follows)]
        return f"{names} {run} only if {'one of ' * (len(above) > 1)}{_names(above)} comes out with other content."
    counts = "are planned, but count" if len(jobs) > 1 else "is planned, but counts"
    return f"{names} {counts} as made: all that went in is the same (Snakemake says: {jobs[0].job.reason})."


def _names(jobs: Sequence[Explained]) -> str:
    """Return the names of jobs, or if they are many, their numbers by rule."""
    names = sorted({job.name for job in jobs})
    if len(names) > MOST_NAMES:
        counts = Counter(job.job.rule for job in jobs)
        names = [f"{n} jobs of {rule}" if n > 1 else rule for rule, n in sorted(counts.items())]
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
