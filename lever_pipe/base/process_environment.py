"""Environment variables that jobs inherit from the caller and that can break them or change their numbers.

A job has the variables of the shell or notebook that starts it, on SLURM too (`sbatch --export=ALL`). The package
applies this table when it is imported: in the main process, in each job's own Snakemake, in the server of forked jobs
and in a stage that is called directly. Children inherit the result.

Other modules set further variables: the instructions of numeric libraries (`base/numerics.py`), the GPUs of
a job (`runtime/gpu_slots.py`), the threads and the temporary folder of a job (`runtime/forks.py`, and Snakemake for
other commands), and the switches of vLLM (`lvlms/vllm.py`).

Deliberately kept: CUDA_VISIBLE_DEVICES and the allocator settings of CUDA, which users need; HF_HOME and other caches
of models, because stages only read folders of models and a shared cache may be read-only; HF_TOKEN and HF_ENDPOINT for
downloads; PYTHONHASHSEED, because no result depends on it; PYTHONSTARTUP, because only interactive Python reads it.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import NamedTuple

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Numbers of threads, which each job gets from its rule; that of OpenBLAS is part of `base/numerics.py`."""
TEMPORARY = ("TMPDIR", "TMP", "TEMPDIR", "TEMP")
PYTHONPATH = "PYTHONPATH"
VERSIONED = re.compile(r"(python\d+\.\d+)/(?:site|dist)-packages/?$")


def is_writable(value: str) -> bool:
    """Return whether files can be written in an existing folder."""
    return os.path.isdir(value) and os.access(value, os.W_OK | os.X_OK)  # noqa: PTH112 - the value may be no path


def can_be_created(value: str) -> bool:
    """Return whether a folder is writable, or can be created below one that is."""
    return is_writable(str(nearest_existing(Path(value).expanduser())))


def nearest_existing(path: Path) -> Path:
    """Return a path if it exists, otherwise the nearest folder above it that does."""
    whole = path.absolute()
    return next(folder for folder in (whole, *whole.parents) if folder.exists())


def in_kernel(_: str) -> bool:
    """Return whether this process is the kernel of a notebook, which needs its own backend of Matplotlib."""
    return "ipykernel" in sys.modules


class Variables(NamedTuple):
    """Variables that are removed or replaced for jobs.

    Attributes:
        names: of the variables.
        reason: the problem with a value of the caller.
        keeps: returns whether a value of the caller is harmless.
        value: the replacement; None removes the variable.
    """

    names: tuple[str, ...]
    reason: str
    keeps: Callable[[str], bool] | None = None
    value: str | None = None


TABLE = (
    Variables(("MPLBACKEND",), "Jupyter sets a backend that only its kernel can import", in_kernel, "agg"),
    Variables(("MATPLOTLIBRC",), "another style sheet changes the figures, and a missing one stops them"),
    Variables(("MPLCONFIGDIR",), "Matplotlib writes its list of fonts there", can_be_created),
    Variables(TEMPORARY, "a folder of the login node or of an ended job may be absent on a node", is_writable),
    Variables(("PYTHONHOME",), "the standard library of another Python"),
    Variables(("PYTHONWARNINGS",), "`error` turns each warning of a library into a failure"),
    Variables(("PYTHONOPTIMIZE",), "removes the assertions and docstrings that libraries rely on"),
    Variables(("TORCH_LOGS", "TORCH_LOGS_OUT", "TORCH_TRACE"), "PyTorch cannot be imported with an unknown name"),
    Variables(("NPY_ENABLE_CPU_FEATURES",), "NumPy cannot be imported with this and NPY_DISABLE_CPU_FEATURES"),
    Variables(
        ("MKL_ENABLE_INSTRUCTIONS", "DNNL_MAX_CPU_ISA"), "other instructions than those of `numerics` change bits"
    ),
    Variables(
        ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"), "products in bfloat16 change bits on the CPU"
    ),
    Variables(
        ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"), "products in TF32 change numbers on the GPU"
    ),
    Variables(
        ("OMP_DYNAMIC", "MKL_DYNAMIC", "OMP_THREAD_LIMIT", "MKL_DOMAIN_NUM_THREADS"),
        "fewer threads than the rule of a job sets change the order of sums",
    ),
    Variables(
        ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"), "several threads change the order of sums in products of NumPy"
    ),
    Variables(
        ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
        "concurrent jobs would pin their threads to the same cores",
    ),
    Variables(
        ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU"),
        "of the allocation that the caller is in; srun refuses them next to the memory of a job",
    ),
)


def apply(environment: MutableMapping[str, str] = os.environ) -> None:
    """Change the variables of the table, and remove packages of another version of Python from the search path."""
    if "PYTHONWARNINGS" in environment:  # this process has read it, so its removal below is too late
        warnings.simplefilter("default")
    for row in TABLE:
        for name in row.names:
            value = environment.get(name)
            if value is None or (row.keeps is not None and row.keeps(value)):
                continue
            if row.value is None:
                del environment[name]
            else:
                environment[name] = row.value
    if PYTHONPATH in environment:
        _leave_out_foreign_packages(environment, sys.path)


def _leave_out_foreign_packages(environment: MutableMapping[str, str], search_path: list[str]) -> None:
    """Remove packages of another version of Python: a cluster's `module load` adds them, and they shadow ours."""
    entries = environment[PYTHONPATH].split(os.pathsep)
    foreign = [entry for entry in entries if is_foreign(entry)]
    if foreign:
        environment[PYTHONPATH] = os.pathsep.join(entry for entry in entries if entry not in foreign)
        # In place, because `sys.path` itself must change.
        search_path[:] = [entry for entry in search_path if entry not in foreign]


def is_foreign(entry: str) -> bool:
    """Return whether a folder contains packages of another version of Python, as in .../lib/python3.9/site-packages."""
    named = VERSIONED.findall(entry)
    return bool(named) and named[-1] != f"python{sys.version_info.major}.{sys.version_info.minor}"


def set_threads(count: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the number of threads of numeric libraries; it affects only libraries that are imported later."""
    environment.update(dict.fromkeys(THREADS, str(count)))
