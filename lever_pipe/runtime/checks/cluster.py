"""Check that this machine can submit to SLURM, and that memory requests reach it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lever_pipe.base.errors import first
from lever_pipe.runtime.checks.findings import Outcome, problem

COMMANDS = ("squeue", "sbatch", "scancel")
PER_CPU = "mem_mb_per_cpu"
MEMORY_OPTION = re.compile(r"--mem\S*")
REPLACE = "Write `mem_mb: 4300 * attempt` in default-resources, or --set-resources RULE:mem_mb=MB for one rule."


def missing_commands() -> list[Outcome]:
    """Return a problem if SLURM commands are missing, otherwise nothing."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if not missing:
        return []
    names = " and ".join([", ".join(missing[:-1]), missing[-1]] if len(missing) > 1 else missing)
    do = "Start the run on a login node, with its SLURM module loaded, or leave out the profile to run on this machine."
    found = f"{names} not found: this is not a SLURM login node"
    return [problem("SLURM", f"the commands {', '.join(COMMANDS)}", found=found, do=do)]


def memory_requests(jobs: Sequence[Mapping[str, Any]]) -> Iterator[Outcome]:
    """Yield a problem for requests that override the memory of rules and do not grow with each attempt.

    With `mem_mb_per_cpu`, the plugin ignores `mem_mb`. For `mem_mb` it writes `--mem`, and SLURM accepts no second
    memory option.
    """
    if rules := sorted({str(job["rule"]) for job in jobs if job.get(PER_CPU)}):
        expected = (
            f"mem_mb alone, because {PER_CPU} replaces the memory of the rules and stays the same in each attempt"
        )
        yield problem("memory of jobs", expected, found=f"{PER_CPU} for {first(rules)}", do=REPLACE)
    options = {str(job["rule"]): MEMORY_OPTION.findall(str(job.get("slurm_extra") or "")) for job in jobs}
    for rule, given in options.items():
        if given:
            expected = "mem_mb alone, because SLURM refuses a second option for memory"
            yield problem("memory of jobs", expected, found=f"{given[0]} in slurm_extra for {rule}", do=REPLACE)
