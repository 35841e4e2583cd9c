"""What planned jobs ask of SLURM, each kind of request once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from lever_pipe.runtime.slurm import squeue as slurm

WHOLE = ("mem_mb", "mem_mb_per_cpu", "runtime", "gpu", "nodes", "tasks", "cpus_per_task", "threads")
UNKNOWN = "<TBD>"  # Snakemake's word for what is known only when the inputs are there
CLUSTERS = ("cluster", "clusters", "slurm_cluster")
NAMES_CLUSTER = re.compile(r"""(?:^|[\s'"])(?:-M|--clusters?[=\s])""")  # in slurm_extra

Key = TypeVar("Key")


class Refusal(NamedTuple):
    """What is expected of a request instead, and how to mend it."""

    expected: str
    do: str


WHOLE_NUMBER = Refusal("a whole number", "Write it with digits alone: YAML reads 1e3 as text.")
DOUBLED_GPUS = Refusal(
    "GPUs asked for either with gpu or with gres",
    "Use one of them in set-resources: the one that gpu_request in default-resources of the profile names.",
)
OTHER_CLUSTER = Refusal(
    "jobs of this machine's own cluster: of another one squeue tells nothing here, so that a job which runs there"
    " would count as vanished and be started twice",
    "Drop it, and start the run on a machine of that cluster.",
)


class JobRequest(NamedTuple):
    """What jobs ask for; 0 or empty where they do not ask.

    Attributes:
        partitions: any of them will do.
        gres: number on one node of each generic resource, by `name` or `name:type`.
        minutes: of run time.
    """

    partitions: tuple[str, ...]
    accounts: tuple[str, ...]
    cpus: int
    mem_mb: int
    gres: tuple[tuple[str, int], ...]
    minutes: int

    @property
    def words(self) -> str:
        """What one node must offer."""
        found = [
            f"{self.cpus} CPU" + ("s" if self.cpus > 1 else ""),
            f"{self.mem_mb} MB",
            *(f"{number} {name}" for name, number in self.gres),
        ]
        return ", ".join(found)


def distinct(jobs: Iterable[Mapping[str, Any]]) -> dict[JobRequest, list[str]]:
    """Return every kind of request and the rules that make it.

    Args:
        jobs: resources of each job, `rule` and `threads` among them.
    """
    return _by(lambda job: [request_of(job)], jobs)


def request_of(job: Mapping[str, Any]) -> JobRequest:
    """Return what a job asks for, as the executor plugin hands it to `sbatch`."""
    cpus = whole(job.get("cpus_per_task")) or whole(job.get("threads")) or 1
    on_one_node = whole(job.get("nodes")) <= 1
    n_tasks = max(1, whole(job.get("tasks"))) if on_one_node else 1
    mem_mb = whole(job.get("mem_mb_per_cpu")) * cpus or whole(job.get("mem_mb"))
    return JobRequest(
        partitions=names(job.get("slurm_partition")),
        accounts=names(job.get("slurm_account")),
        cpus=cpus * n_tasks,
        mem_mb=mem_mb,
        gres=tuple(sorted({**_gres(job), **(_gpus(job) if on_one_node else {})}.items())),
        minutes=whole(job.get("runtime")),
    )


def refused(jobs: Iterable[Mapping[str, Any]]) -> dict[tuple[str, Refusal, str], list[str]]:
    """Return what no job may ask for, and the rules that do: what was looked at, its refusal, and the words.

    No fraction or text where SLURM takes a whole number; no GPUs in two ways, of which `sbatch` would get --gres and
    --gpus; no other cluster.
    """

    def of(job: Mapping[str, Any]) -> list[tuple[str, Refusal, str]]:
        values = {name: job[name] for name in WHOLE if job.get(name) not in (None, "")}
        found = [(f"resource {n}", WHOLE_NUMBER, repr(value)) for n, value in values.items() if not _is_whole(value)]
        of_gpus = {name: job[name] for name in ("gpu", "gpu_model") if job.get(name)}
        if of_gpus and "gpu" in slurm.gres(str(job.get("gres") or "")):
            said = ", ".join(f"{name}={value}" for name, value in {**of_gpus, "gres": job["gres"]}.items())
            found.append(("resource gpu", DOUBLED_GPUS, said))
        extra = str(job.get("slurm_extra") or "")
        named = [f"{name}={job[name]}" for name in CLUSTERS if job.get(name)]
        named += [f"slurm_extra={extra}"] if NAMES_CLUSTER.search(extra) else []
        return found + [("other cluster", OTHER_CLUSTER, said) for said in named]

    return _by(of, jobs)


def whole(value: object) -> int:
    """Return a resource as a number; 0 where it is none, or not known yet."""
    return int(str(value)) if _is_whole(value) and str(value) != UNKNOWN else 0


def names(value: object) -> tuple[str, ...]:
    """Return the names of a resource such as `a,b`; a name of digits alone arrives as a number."""
    return tuple(str(value).replace(",", " ").split()) if value not in (None, "") else ()


def _by(keys_of: Callable[[Mapping[str, Any]], list[Key]], jobs: Iterable[Mapping[str, Any]]) -> dict[Key, list[str]]:
    """Return the rules of the jobs for each key that a job has."""
    found: dict[Key, set[str]] = {}
    for job in jobs:
        for key in keys_of(job):
            found.setdefault(key, set()).add(str(job.get("rule", "?")))
    return {key: sorted(rules) for key, rules in found.items()}


def _is_whole(value: object) -> bool:
    return str(value) == UNKNOWN or (str(value).isdecimal() and not isinstance(value, bool))


def _gpus(job: Mapping[str, Any]) -> dict[str, int]:
    """Return `gpu` and `gpu_model`; `sbatch --gpus` could spread them, but a job's processes share one node."""
    number, model = whole(job.get("gpu")), job.get("gpu_model")
    if model:
        return {f"gpu:{model}": number or 1}
    return {"gpu": number} if number else {}


def _gres(job: Mapping[str, Any]) -> dict[str, int]:
    """Return what `gres` names; of a name with a type that alone, as it says more."""
    found = slurm.gres(str(job.get("gres") or ""))
    typed = {name.partition(":")[0] for name in found if ":" in name}
    return {name: number for name, number in found.items() if name not in typed}
