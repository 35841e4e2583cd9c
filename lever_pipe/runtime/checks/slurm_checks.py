"""Whether SLURM will take the planned jobs, run them, and tell the executor plugin how they end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.experiment import configuration
from lever_pipe.runtime.checks.findings import Outcome, fault, ok, warning
from lever_pipe.runtime.rerun.why_names import counted, first
from lever_pipe.runtime.slurm import squeue as slurm
from lever_pipe.runtime.slurm.requests import OTHER_CLUSTER, JobRequest, distinct, refused

CHECKS_PER_RECORD = 3  # the plugin trusts squeue when it remembers a job for so many first waits
CLUSTER, STATUS, REQUEUE = "SLURM", "status command", "requeue"
DEFAULT_COMMAND = "the plugin's default, sacct"
ASK_ADMIN = "Ask the cluster's administrators, or start the run again when `scontrol ping` says UP."
LONGER_MEMORY = "Ask the administrators for a MinJobAge of 300 s, SLURM's default."


class SlurmSettings(NamedTuple):
    """What jobs are submitted with: the executor plugin's own settings."""

    own: Any

    @property
    def wait(self) -> int:
        """Return the seconds between a submission and the first question about it."""
        return self.own.init_seconds_before_status_checks or 40

    @property
    def partitions(self) -> tuple[str, ...]:
        """Return the partitions of the plugin's file, from which it chooses for a job that names none."""
        file = self.own.partition_config or os.environ.get("SNAKEMAKE_SLURM_PARTITIONS")
        return tuple(configuration.read_file(Path(file)).get("partitions") or ()) if file else ()


def check(settings: SlurmSettings, jobs: Sequence[Mapping[str, Any]]) -> Iterator[Outcome]:
    """Yield what is found about the cluster, the plugin's settings and the planned jobs."""
    known = slurm.settings()
    if known is None:
        found = "none: the controller is down or unreachable, or this is no machine of the cluster"
        yield fault(CLUSTER, "an answer to `scontrol show config` within 20 s", found=found, do=ASK_ADMIN)
        yield from _settings_alone(settings)
        return
    yield ok(CLUSTER, f"cluster {known.get('ClusterName', '?')}, version {known.get('SLURM_VERSION', '?')}")
    yield status_command(settings, known)
    yield from _settings_alone(settings)
    for (looked_at, complaint, said), rules in refused(jobs).items():
        yield fault(looked_at, complaint.expected, found=f"{said} ({first(rules)})", do=complaint.do)
    if named := os.environ.get("SBATCH_CLUSTERS"):
        found = f"SBATCH_CLUSTERS={named} in the environment"
        yield fault("other cluster", OTHER_CLUSTER.expected, found=found, do=OTHER_CLUSTER.do)
    yield from accounts(jobs, known)
    partitions = slurm.partitions()
    if partitions is None:
        yield fault("partitions", "an answer of scontrol and sinfo", found="none", do=ASK_ADMIN)
        return
    yield from requests(jobs, partitions, settings.partitions)


def status_command(settings: SlurmSettings, known: dict[str, str]) -> Outcome:
    """Return whether the plugin will learn how jobs end: by a command that answers, and that it really uses."""
    wait, age = settings.wait, slurm.seconds(known.get("MinJobAge", ""))
    needed = CHECKS_PER_RECORD * wait
    has_accounting = slurm.has_accounting(known)
    complaint = warning if has_accounting else fault
    if settings.own.status_command != "squeue":
        lacks = "which overlooks cancelled jobs"
        lacks = lacks if has_accounting else "but SLURM keeps no accounts: the plugin sees no job end"
        return complaint(
            STATUS,
            "slurm-status-command: squeue",
            found=f"{settings.own.status_command or DEFAULT_COMMAND}, {lacks}",
            do="Set slurm-status-command: squeue in the profile.",
        )
    if age is not None and age >= needed:
        return ok(STATUS, f"squeue; SLURM remembers an ended job for {age} s")
    lacks = "" if has_accounting else ", which knows nothing here: ends of jobs would be missed"
    possible = (age or 0) // CHECKS_PER_RECORD
    return complaint(
        STATUS,
        f"MinJobAge of at least {needed} s, {CHECKS_PER_RECORD} x slurm-init-seconds-before-status-checks",
        found=f"{known.get('MinJobAge', 'none')}, so that the plugin asks sacct{lacks}",
        do=f"Set slurm-init-seconds-before-status-checks: {possible} in the profile." if possible else LONGER_MEMORY,
    )


def _settings_alone(settings: SlurmSettings) -> Iterator[Outcome]:
    if not (settings.own.requeue or settings.own.no_requeue):  # the plugin itself refuses both
        yield warning(
            REQUEUE,
            "one of slurm-no-requeue and slurm-requeue",
            found="neither, so that the cluster's default decides",
            do="Set slurm-no-requeue: true in the profile: Snakemake's retries then run a job again, and nobody else.",
        )
    else:
        yield ok(REQUEUE, "slurm-requeue" if settings.own.requeue else "slurm-no-requeue")
    if settings.own.array_jobs:
        yield fault(
            "array jobs",
            "none: the plugin mistakes the states of an array's tasks and deletes finished outputs",
            found=f"slurm-array-jobs: {settings.own.array_jobs}",
            do="Drop slurm-array-jobs from the profile.",
        )


def accounts(jobs: Sequence[Mapping[str, Any]], known: dict[str, str]) -> Iterator[Outcome]:
    """Yield whether this user may charge the accounts that jobs name."""
    asked = sorted({name for request in distinct(jobs) for name in request.accounts})
    if not asked:
        return
    if not slurm.has_accounting(known):
        yield fault(
            "account",
            "no slurm_account: SLURM keeps no accounts here, and the plugin fails at every submission",
            found=first(asked),
            do="Drop slurm_account from default-resources of the profile.",
        )
        return
    mine = slurm.accounts()
    if mine is None:
        yield fault("account", "an answer of sacctmgr", found="none", do=ASK_ADMIN)
        return
    if not mine:
        expected, do = "to see the accounts that you may charge", "Let it be if sbatch accepts the account."
        yield warning("account", expected, found="none listed by sacctmgr", do=do)
        return
    for name in asked:
        if name.lower() in {account.lower() for account in mine}:
            yield ok(f"account {name}", "known")
        else:
            yield fault(
                f"account {name}",
                f"one that you may charge: {', '.join(sorted(mine))}",
                found="none of them",
                do="Set slurm_account in default-resources of the profile.",
            )


def requests(
    jobs: Sequence[Mapping[str, Any]], partitions: dict[str, slurm.Partition], offered: tuple[str, ...]
) -> Iterator[Outcome]:
    """Yield for every partition whether it exists and suits the jobs that name it, or that it is `offered` to."""
    standard = offered or tuple(name for name, partition in partitions.items() if partition.is_default)
    by_partition: dict[tuple[str, ...], dict[JobRequest, list[str]]] = {}
    for request, rules in distinct(jobs).items():
        by_partition.setdefault(request.partitions or standard, {})[request] = rules
    for names, asked in by_partition.items():
        check, unknown = f"partition {','.join(names)}".rstrip(), [name for name in names if name not in partitions]
        if unknown or not names:
            rules = sorted({rule for those in asked.values() for rule in those})
            found = f"{', '.join(unknown) or 'none named, and none is the default'} ({first(rules)})"
            do = "Set slurm_partition in default-resources or set-resources of the profile."
            yield fault(check, f"one of {', '.join(sorted(partitions))}", found=found, do=do)
            continue
        chosen = [partitions[name] for name in names]
        offer = _together(chosen)
        unfit = (each for request, rules in asked.items() for each in _unfit(check, request, rules, offer))
        faults = list(dict.fromkeys(unfit))
        yield from faults or [ok(check, f"{_offered(offer)}; {counted(len(asked), 'kind')} of jobs fit")]
        if not any(node.is_working for node in offer.nodes):
            found = ", ".join(sorted({node.state for node in offer.nodes})) or "no node"
            yield warning(check, "a node that works", found=found, do="Jobs wait until one comes back.")


def _together(chosen: list[slurm.Partition]) -> slurm.Partition:
    """Return partitions of which any will do as one."""
    states, limits = [partition.state for partition in chosen], [partition.minutes for partition in chosen]
    nodes = {node.name: node for partition in chosen for node in partition.nodes}
    return chosen[0]._replace(
        state="UP" if "UP" in states else states[0],
        minutes=None if None in limits else max(limit or 0 for limit in limits),
        nodes=tuple(nodes.values()),
    )


def _unfit(check: str, request: JobRequest, rules: list[str], offer: slurm.Partition) -> Iterator[Outcome]:
    if offer.state != "UP":
        yield fault(check, "a partition that is UP", found=offer.state, do="Wait for it, or name another one.")
        return
    if offer.minutes is not None and offer.minutes < request.minutes:
        yield fault(
            check,
            f"runtime of at most {offer.minutes} minutes",
            found=f"{request.minutes} ({first(rules)}): such a job would wait for ever or be refused",
            do="Set a lower runtime under set-resources of the profile, or name another slurm_partition.",
        )
    if not any(_fits(request, node) for node in offer.nodes):
        yield fault(
            check,
            f"a node with {request.words} ({first(rules)})",
            found=f"at most {_largest(offer, request)} on a node",
            do="Ask for less under set-resources or set-threads of the profile, or name another slurm_partition.",
        )


def _fits(request: JobRequest, node: slurm.ClusterNode) -> bool:
    gres = all(node.gres.get(name, 0) >= number for name, number in request.gres)
    return request.cpus <= node.cpus and request.mem_mb <= node.mem_mb and gres


def _largest(offer: slurm.Partition, request: JobRequest) -> str:
    found = [counted(max((node.cpus for node in offer.nodes), default=0), "CPU")]
    found.append(f"{max((node.mem_mb for node in offer.nodes), default=0)} MB")
    for name, _ in request.gres:
        known = sorted({kind for node in offer.nodes for kind in node.gres if ":" in kind})
        number = max((node.gres.get(name, 0) for node in offer.nodes), default=0)
        found.append(f"{number} {name}" + (f" (there are {', '.join(known)})" if not number and known else ""))
    return ", ".join(found)


def _offered(offer: slurm.Partition) -> str:
    gpus = sum(node.gres.get("gpu", 0) for node in offer.nodes)
    return f"{counted(len(offer.nodes), 'node')}, {counted(gpus, 'GPU')}, {_limit(offer)}"


def _limit(offer: slurm.Partition) -> str:
    return "no time limit" if offer.minutes is None else f"at most {offer.minutes} minutes"
