"""The planned jobs with their reasons to run, and the planned jobs that each depends on.

`lever-pipe why` prints the reasons of the check as sentences, `lever-pipe plan` in a few words (`in_short`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.artefacts import absolute, label
from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import first
from lever_pipe.runtime.reruns.check import Reason, reasons
from lever_pipe.runtime.snakemake_adapter import PlannedJob

RUNS, ONLY_IF, UNCHANGED = "runs", "only if", "as made"


class Explained(NamedTuple):
    """A planned job with its reasons to run.

    Attributes:
        manifest: its manifest's path; empty for a rule without one.
        reasons: its own reasons; without any, it runs only if an upstream job changes its inputs.
        follows: indices of the planned jobs whose outputs it reads.
    """

    job: PlannedJob
    name: str
    manifest: str
    reasons: tuple[Reason, ...]
    follows: tuple[int, ...]

    @property
    def status(self) -> str:
        """Return `RUNS`, `ONLY_IF` another job's output changes, or `UNCHANGED`."""
        return RUNS if self.reasons else ONLY_IF if self.follows else UNCHANGED

    @property
    def in_short(self) -> str:
        """Return the reasons in a few words."""
        words = list(dict.fromkeys(reason.short for reason in self.reasons))
        return first(words) or ("input rebuilt" if self.follows else UNCHANGED)


def explain(jobs: Sequence[PlannedJob], *, results: Path, digests: Digests) -> list[Explained]:
    """Explain each planned job, in the order of the plan; `results` is the folder with the code records."""
    remade = {absolute(path): i for i, job in enumerate(jobs) for path in job.outputs}
    explained = []
    for i, job in enumerate(jobs):
        own = [Reason("this is forced" if word == "forced" else f"its {word} changed", word) for word in job.triggers]
        own += _reasons(job, results, remade, digests)
        # Inputs without a planned maker get the job's own index, and are dropped with it.
        follows = dict.fromkeys(remade[name] for name in map(absolute, job.inputs) if remade.get(name, i) != i)
        manifest = str(job.call.manifest) if job.call else ""
        name = label(job.rule, manifest or next(iter(job.outputs), ""))
        explained.append(Explained(job, name, manifest, tuple(own), tuple(follows)))
    return explained


def _reasons(job: PlannedJob, results: Path, remade: dict[str, int], digests: Digests) -> Iterator[Reason]:
    if job.call is not None:
        yield from reasons(job.call, digests, results=results, remade=remade)
    elif missing := [path for path in job.outputs if not Path(path).exists()]:
        yield Reason(f"of its outputs these are missing: {first(missing)}", "missing output")


def walk(explained: Sequence[Explained], targets: Sequence[int]) -> list[tuple[int, int]]:
    """Return (index, distance) of the targets and of all planned jobs upstream of them, nearest first."""
    distance = dict.fromkeys(targets, 0)
    queue = list(targets)  # grows during the loop: a breadth-first search, so the first distance is the shortest
    for index in queue:
        for other in explained[index].follows:
            if other not in distance:
                distance[other] = distance[index] + 1
                queue.append(other)
    return sorted(distance.items(), key=lambda item: (item[1], item[0]))
