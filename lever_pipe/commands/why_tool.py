"""`python -m lever_pipe why TARGET [words for Snakemake]`: why the target would run again, up to the root causes.

TARGET is an output path, an artefact's folder, a policy as the tables name it (`preset~world/rce/seed~0/epoch~2`, or
without its seed for all of them), or a rule. The words are those of the run itself, as for `plan`: `--configfile`,
`--config`. Each job is named with why it runs, the target first. A job without a reason of its own runs only if one
that it reads from comes out with other content; otherwise it counts as made. If nothing runs, it is said what the
target was made from. `--json` prints the same for programs. Nothing is run, and no more is written than by a dry run.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lever_pipe.base import contents
from lever_pipe.base.errors import ConfigError, UnknownMemberError
from lever_pipe.base.parsing import nearest
from lever_pipe.base.policy_names import group_of
from lever_pipe.commands import why_text
from lever_pipe.runtime.rerun import why
from lever_pipe.runtime.rerun.artefacts import Artefact, Verdict, cards_below, judge, read_artefact
from lever_pipe.runtime.rerun.forecast import PlannedJob, UnplannableError, options_of, planned_jobs
from lever_pipe.runtime.rerun.why_inputs import absolute
from lever_pipe.runtime.rerun.why_names import STUDIES
from lever_pipe.runtime.snakemake_adapter import configuration_of

DEFAULT_CONFIG, DEFAULT_RESULTS = "config.yaml", "results"
CARD = "run.json"


def main(words: Sequence[str]) -> int:
    """Print the reasons and return 0.

    Raises:
        ConfigError: no target, or Snakemake fails.
        UnknownMemberError: nothing of this name is made or was made.
    """
    rest = list(words[1:])
    if {"-h", "--help"} & set(rest):
        sys.stdout.write(__doc__ or "")
        return 0
    as_json = "--json" in rest
    rest = [word for word in rest if word != "--json"]
    if not rest or not rest[0].strip() or rest[0].startswith("-"):
        raise ConfigError(
            "why: expected a target, then words for Snakemake",
            found=f"'{rest[0]}'" if rest else "nothing",
            do="Name an output, a policy or a rule first.",
        )
    explained, targets, made = reasons(rest[0], rest[1:])
    if as_json:
        sys.stdout.write(json.dumps(why_text.as_object(explained, targets, made), indent=2, ensure_ascii=False) + "\n")
        return 0
    lines = why_text.sentences(explained, targets)
    if targets and made:
        lines.append(f"{len(made)} other artefacts of this name do not run.")
    elif made:
        lines += [why_text.made_text(each) for each in made]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def reasons(target: str, words: Sequence[str]) -> tuple[list[why.Explained], list[int], list[dict[str, Any]]]:
    """Return all planned jobs explained, the places of those that make the target, and what the others are made from.

    Raises:
        UnplannableError: Snakemake fails.
        UnknownMemberError: nothing of this name is made or was made.
    """
    jobs, results = planned_jobs(words), results_folder(words)
    artefacts = [read_artefact(card) for card in cards_below(results)]
    targets = jobs_of(jobs, target, results)
    there = artefacts_of(artefacts, target, results)
    if not targets and not there:
        jobs = _planned_for(target, words, known=[*jobs], artefacts=artefacts)
        targets = jobs_of(jobs, target, results)
    digests = contents.remembered()
    verdicts = [judge(artefact, digests) for artefact in artefacts]
    explained = why.explain(jobs, verdicts, results=results, digests=digests)
    planned = {absolute(each.card) for each in map(explained.__getitem__, targets) if each.card}
    rest = {absolute(each.card) for each in there} - planned
    return explained, targets, [_told(each) for each in verdicts if absolute(each.artefact.card) in rest]


def results_folder(words: Sequence[str]) -> Path:
    """Return the results folder of a run with these words, which Snakemake understands.

    Raises:
        ConfigError: a configuration file or word that has not one reading.
    """
    options, default = options_of(words), Path(DEFAULT_CONFIG)
    files = [*([default] if default.exists() else []), *(options.get("configfile") or ())]
    return Path(str(configuration_of(files, options.get("config")).get("results") or DEFAULT_RESULTS))


def jobs_of(jobs: Sequence[PlannedJob], target: str, results: Path) -> list[int]:
    """Return the places of the planned jobs that a target means."""
    named = [i for i, job in enumerate(jobs) if job.rule == target]
    return named or _nearest_outputs([list(job.outputs) for job in jobs], target, results)


def artefacts_of(artefacts: Sequence[Artefact], target: str, results: Path) -> list[Artefact]:
    """Return the artefacts that a target means."""
    whole = [each for each in artefacts if each.made is not None]
    named = [each for each in whole if each.made is not None and each.made.stage == target]
    outputs = [
        [str(path) for name, path in each.paths.items() if each.made and name not in each.made.inputs] for each in whole
    ]
    return named or [whole[i] for i in _nearest_outputs(outputs, target, results)]


def _nearest_outputs(outputs: Sequence[Sequence[str]], target: str, results: Path) -> list[int]:
    """Return the places of the lists with an output of this name: the file, its folder's own card, or what lies below.

    A name without its seed means every seed's.
    """
    roots = (Path(), results, *(results / study for study in STUDIES))
    forms = {absolute(root / target) for root in roots}
    wanted = forms if "seed~" in target else forms | {group_of(form) for form in forms}

    def means(path: str, *, of: str) -> bool:
        candidates = {path} if "seed~" in target else {path, group_of(path)}
        match of:
            case "file":
                return bool(candidates & wanted)
            case "card":
                return any(candidate == f"{form}/{CARD}" for candidate in candidates for form in wanted)
            case "part":
                return any(form.startswith(f"{candidate}/") for candidate in candidates for form in wanted)
            case "folder":
                return any(str(Path(candidate).parent) == form for candidate in candidates for form in wanted)
            case _:
                return any(candidate.startswith(f"{form}/") for candidate in candidates for form in wanted)

    full = [[absolute(path) for path in paths] for paths in outputs]
    for kind in ("file", "card", "part", "folder", "below"):
        found = [i for i, paths in enumerate(full) if any(means(path, of=kind) for path in paths)]
        if found:
            return found
    return []


def _planned_for(
    target: str, words: Sequence[str], *, known: Iterable[PlannedJob], artefacts: Sequence[Artefact]
) -> list[PlannedJob]:
    """Return what Snakemake plans for a target that the run itself does not need.

    Raises:
        UnknownMemberError: no rule makes it.
    """
    behind = ["--", target] if "--" not in words else [target]
    try:
        return planned_jobs([*words, *behind])
    except UnplannableError as fault:
        if "MissingRule" not in fault.found:
            raise
        names = {job.rule for job in known} | {each.made.stage for each in artefacts if each.made}
        near = nearest(target, names)
        raise UnknownMemberError(
            "why: expected an output, an artefact's folder, a policy or a rule",
            found=f"'{target}'",
            do=f"Did you mean '{near}'?" if near else "Name a file below the results, or a rule.",
        ) from None


def _told(verdict: Verdict) -> dict[str, Any]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(verdict.artefact.card.stat().st_mtime))
    return why.made_from(verdict) | {"when": when}
