"""Choose the CPU instructions of the numeric libraries before they are imported.

MKL, ATen, oneDNN, OpenBLAS and NumPy detect the CPU and use its widest instructions. Each instruction set adds in
another order. The libraries read the variables below at first use, so the package sets them on import, before any of
its modules can import torch. Child processes inherit them.

`portable` limits all of them to AVX2, and MKL to its mode COMPATIBLE, whose kernels do not depend on the CPU's vendor.
With the kernels of `base/portable.py`, x86-64 CPUs with AVX2 and FMA compute the same bits. `fastest` uses the widest
instructions, and MKL's mode STRICT, in which rows of a product do not depend on each other.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

Mode = Literal["portable", "fastest"]
Level = Literal["avx512", "avx2", "less"]


MODE = "LEVER_PIPE_NUMERICS"
"""Variable that passes the mode to child processes."""
PORTABLE: Mapping[str, str] = {
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}
STRICT: Mapping[Level, str] = {"avx512": "AVX512,STRICT", "avx2": "AVX2,STRICT", "less": "AVX2,STRICT"}
AVX2 = {"avx2", "fma"}
AVX512 = {"avx512f", "avx512dq", "avx512bw", "avx512vl"}
CPUINFO = Path(os.environ.get("LEVER_PIPE_CPUINFO", "/proc/cpuinfo"))
"""Description of the CPU; under an emulator, which shows the host's CPU there, another file."""


class Cpu(NamedTuple):
    """The properties of a CPU that determine the bits it computes."""

    vendor: str
    model: str  # family and model
    level: Level


class NumericPath(NamedTuple):
    """A numeric path: its name, and the environment variables of its processes."""

    name: str
    variables: dict[str, str]


def settings(mode: str, level: Level) -> dict[str, str]:
    """Return the variables of a mode on a CPU."""
    if mode == "fastest":
        return {"MKL_CBWR": STRICT[level]}
    return dict(PORTABLE)


def chosen(mode: str, environment: Mapping[str, str], cpu: Cpu) -> NumericPath:
    """Return the numeric path of a mode in an environment; variables of the user are kept and enter its name.

    Variables from an ancestor process do not count as the user's.
    """
    defaults, inherited = settings(mode, cpu.level), _set_by_ancestors(environment.get(MODE, ""))
    own = {name: environment[name] for name in PORTABLE if name in environment}
    own = {name: value for name, value in own.items() if (name, value) not in inherited}
    differing = [f"{name}={value}" for name, value in sorted(own.items()) if defaults.get(name) != value]
    covered = mode == "portable" and cpu.level != "less" and not differing
    return NumericPath(
        mode if covered else " ".join([mode, *filter(None, cpu), *differing]), {**defaults, **own, MODE: mode}
    )


def choose(mode: str | None = None) -> None:
    """Set the variables of a mode for this process and its children; by default the mode of the parent process.

    If torch is imported already, nothing changes: the libraries have read their variables, and the path is `given`.
    """
    if "torch" in sys.modules:
        return
    path = chosen(mode or os.environ.get(MODE) or "portable", os.environ, cpu_here())
    # `fastest` must not inherit the limits of a `portable` parent.
    for name in PORTABLE.keys() - path.variables.keys():
        os.environ.pop(name, None)
    os.environ.update(path.variables)
    _PATH[0] = path.name


def path() -> str:
    """Return the name of the numeric path: processes with the same name compute the same bits.

    `portable` alone covers every x86-64 CPU with AVX2 and FMA. Other names contain the CPU and the user's differing
    variables.
    """
    return _PATH[0]


def is_portable() -> bool:
    """Return whether this process must compute the bits of every x86-64 CPU."""
    return path() == "portable"


@cache
def cpu_here() -> Cpu:
    """Return this machine's CPU."""
    try:
        return cpu_of(CPUINFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return cpu_of("")


def cpu_of(cpuinfo: str) -> Cpu:
    """Return the first processor in Linux's `/proc/cpuinfo`; without an entry, the machine's type."""
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    values = {name.strip(): value.strip() for name, _, value in lines}
    flags = set(values.get("flags", "").split())
    level: Level = "avx512" if flags >= AVX512 else "avx2" if flags >= AVX2 else "less"
    model = "-".join(values[name] for name in ("cpu family", "model") if name in values)
    return Cpu(values.get("vendor_id") or platform.machine(), model, level)


def _set_by_ancestors(mode: str) -> set[tuple[str, str]]:
    """Return the variables that a mode sets on any CPU; none without a mode."""
    # An ancestor on another node, such as a login node, may have another CPU than this process.
    levels: tuple[Level, ...] = ("avx512", "avx2") if mode else ()
    return {pair for level in levels for pair in settings(mode, level).items()}


_PATH = [" ".join(["given", *filter(None, cpu_here())])]
