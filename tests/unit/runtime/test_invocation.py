"""What is done around the jobs of one call of Snakemake."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from snakemake.cli import get_argument_parser
from snakemake.scheduling.job_scheduler import JobRateLimiter
from snakemake.settings.types import MaxJobsPerTimespan

from lever_pipe.runtime.snakemake_adapter import leave_pace_to_cores

REPOSITORY = Path(__file__).parents[3]
SNAKEFILE = """
from lever_pipe.runtime.snakemake_adapter import leave_pace_to_cores

rule all:
    input: expand("{n}", n=range(JOBS))

rule one:
    output: "{n}"
    shell: "sleep 0.2; touch {output}"

onstart:
    PACE
"""
JOBS = 6


def looks(folder: Path, pace: str) -> int:
    """Run jobs one by one and return how often the scheduler looked at those that are ready."""
    folder.mkdir()
    (folder / "Snakefile").write_text(SNAKEFILE.replace("JOBS", str(JOBS)).replace("PACE", pace))
    words = ("--cores", "1", "--scheduler", "greedy", "--verbose")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "snakemake", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stderr.count("Ready jobs: ")


def test_the_scheduler_looks_once_a_job(tmp_path: Path) -> None:
    own = looks(tmp_path / "own", "leave_pace_to_cores(workflow.scheduler)")
    assert own <= JOBS + 2  # at the start, after each job, and for the target rule
    assert looks(tmp_path / "usual", "pass") > own, (
        "Snakemake does so by itself: leave_pace_to_cores is of no use any more"
    )


def test_a_rate_that_a_user_gives_is_kept() -> None:
    usual = get_argument_parser(None).parse_args([]).max_jobs_per_timespan
    given = MaxJobsPerTimespan.parse_choice("5/1m")
    for limit, is_kept in ((usual, False), (given, True)):
        scheduler = SimpleNamespace(job_rate_limiter=JobRateLimiter(limit))
        leave_pace_to_cores(scheduler)
        assert (scheduler.job_rate_limiter is not None) == is_kept
