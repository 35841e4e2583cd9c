"""Whether the partitions of the planned jobs have nodes for them; what else a request lacks, sbatch says."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.experiment import configuration
from lever_pipe.runtime.checks.findings import Outcome, fault, ok
from lever_pipe.runtime.rerun.why_names import counted, first
from lever_pipe.runtime.slurm import squeue as slurm

CLUSTER = "SLURM"
ASK_ADMIN = "Ask the cluster's administrators, or start the run again when `scontrol ping` says UP."


class SlurmSettings(NamedTuple):
    """What jobs are submitted with: the executor plugin's own settings."""

    own: Any

    @property
    def partitions(self) -> tuple[str, ...]:
        """Return the partitions of the plugin's file, from which it chooses for a job that names none."""
        file = self.own.partition_config or os.environ.get("SNAKEMAKE_SLURM_PARTITIONS")
        return tuple(configuration.read_file(Path(file)).get("partitions") or ()) if file else ()


class JobRequest(NamedTuple):
    """What jobs ask for; 0 or empty where they do not ask.

    Attributes:
        partitions: any of them will do.
        gres: number on one node of each generic resource, by `name` or `name:type`.
    """

    partitions: tuple[str, ...]
    cpus: int
    mem_mb: int
    gres: tuple[tuple[str, int], ...]
    minutes: int

    @property
    def words(self) -> str:
        """What one node must offer."""
        return _words(self.cpus, self.mem_mb, self.gres)

    def fits(self, node: slurm.ClusterNode) -> bool:
        """Return whether a node has all of it."""
        has_gres = all(node.gres.get(name, 0) >= number for name, number in self.gres)
        return self.cpus <= node.cpus and self.mem_mb <= node.mem_mb and has_gres


def request_of(job: Mapping[str, Any]) -> JobRequest:
    """Return what a job asks for, as the executor plugin hands it to `sbatch`."""
    cpus = _whole(job.get("cpus_per_task")) or _whole(job.get("threads")) or 1
    on_one_node = _whole(job.get("nodes")) <= 1
    gres = slurm.gres(str(job.get("gres") or ""))
    typed = {name.partition(":")[0] for name in gres if ":" in name}
    asked = {name: number for name, number in gres.items() if name not in typed}
    if on_one_node and (model := job.get("gpu_model")):
        asked[f"gpu:{model}"] = _whole(job.get("gpu")) or 1
    elif on_one_node and (number := _whole(job.get("gpu"))):
        asked["gpu"] = number
    return JobRequest(
        partitions=tuple(str(job.get("slurm_partition") or "").replace(",", " ").split()),
        cpus=cpus * (max(1, _whole(job.get("tasks"))) if on_one_node else 1),
        mem_mb=_whole(job.get("mem_mb_per_cpu")) * cpus or _whole(job.get("mem_mb")),
        gres=tuple(sorted(asked.items())),
        minutes=_whole(job.get("runtime")),
    )


def check(settings: SlurmSettings, jobs: Sequence[Mapping[str, Any]]) -> Iterator[Outcome]:
    """Yield for every partition whether it exists and suits the jobs that name it, or that it is offered to.

    Args:
        settings: what jobs are submitted with.
        jobs: resources of each job, `rule` and `threads` among them.
    """
    if settings.own.array_jobs:
        found, do = f"array-jobs: {settings.own.array_jobs}", "Drop it from the profile."
        yield fault("array jobs", "none: the plugin mistakes the states of an array's tasks", found=found, do=do)
    partitions = slurm.partitions()
    if partitions is None:
        found = "none: the controller is down or unreachable, or this is no machine of the cluster"
        yield fault(CLUSTER, "an answer of scontrol and sinfo", found=found, do=ASK_ADMIN)
        return
    standard = settings.partitions or tuple(name for name, partition in partitions.items() if partition.is_default)
    by_partition: dict[tuple[str, ...], dict[JobRequest, set[str]]] = {}
    for job in jobs:
        request = request_of(job)
        asked = by_partition.setdefault(request.partitions or standard, {})
        asked.setdefault(request, set()).add(str(job.get("rule", "?")))
    for names, of_names in by_partition.items():
        yield from _check(names, of_names, partitions)


def _check(
    names: Sequence[str], asked: Mapping[JobRequest, set[str]], partitions: Mapping[str, slurm.Partition]
) -> Iterator[Outcome]:
    check, unknown = f"partition {','.join(names)}".rstrip(), [name for name in names if name not in partitions]
    if unknown or not names:
        every = first(sorted(set[str]().union(*asked.values())))
        found = f"{', '.join(unknown) or 'none named, and none is the default'} ({every})"
        do = "Set slurm_partition in default-resources or set-resources of the profile."
        yield fault(check, f"one of {', '.join(sorted(partitions))}", found=found, do=do)
        return
    chosen = [partitions[name] for name in names]
    nodes = {node.name: node for partition in chosen for node in partition.nodes}.values()
    limits = [partition.minutes for partition in chosen]
    limit = None if None in limits else max(minutes or 0 for minutes in limits)
    if all(partition.state != "UP" for partition in chosen):
        yield fault(check, "a partition that is UP", found=chosen[0].state, do="Wait for it, or name another one.")
        return
    faults = dict[Outcome, None]()
    for request, rules in asked.items():
        if limit is not None and limit < request.minutes:
            found = f"{request.minutes} ({first(sorted(rules))}): such a job would wait for ever or be refused"
            do = "Set a lower runtime under set-resources of the profile, or name another slurm_partition."
            faults[fault(check, f"runtime of at most {limit} minutes", found=found, do=do)] = None
        if not any(request.fits(node) for node in nodes):
            names = sorted({name for node in nodes for name in node.gres})
            there = {name: max(node.gres.get(name, 0) for node in nodes) for name in names}
            largest = max((node.cpus for node in nodes), default=0), max((node.mem_mb for node in nodes), default=0)
            expected, found = f"a node with {request.words} ({first(sorted(rules))})", _words(*largest, there.items())
            do = "Ask for less under set-resources or set-threads of the profile, or name another slurm_partition."
            faults[fault(check, expected, found=f"at most {found} on a node", do=do)] = None
    yield from faults or [ok(check, f"{counted(len(nodes), 'node')}; {counted(len(asked), 'kind')} of jobs fit")]


def _words(cpus: int, mem_mb: int, gres: Iterable[tuple[str, int]]) -> str:
    return ", ".join((counted(cpus, "CPU"), f"{mem_mb} MB", *(f"{number} {name}" for name, number in gres)))


def _whole(value: object) -> int:
    """Return a resource as a number; 0 where it is none, or not known yet."""
    return int(str(value)) if str(value).isdecimal() else 0
