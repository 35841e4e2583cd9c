"""The numeric path is chosen before torch is imported, independent of import order; the user's value has priority."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lever_pipe.base import numerics
from lever_pipe.base.numerics import MODE, PORTABLE, STRICT, Cpu, chosen, cpu_of

PACKAGE = Path(numerics.__file__).parents[1]
XEON = Cpu("GenuineIntel", "6-143", "avx512")
HASWELL = Cpu("GenuineIntel", "6-60", "avx2")
EPYC = Cpu("AuthenticAMD", "25-1", "avx2")
ARM = Cpu("aarch64", "", "less")
OLD = Cpu("GenuineIntel", "6-42", "less")

EVERY_MODULE = """
import os, sys

class Before:
    def find_spec(self, name, *_):
        if name == "torch":
            assert os.environ.get("MKL_CBWR") == "COMPATIBLE", "torch is imported before the path is chosen"
            print("torch met")
            sys.exit()  # it is looked for once

sys.meta_path.insert(0, Before())
import importlib, pkgutil
import lever_pipe
for module in pkgutil.walk_packages(lever_pipe.__path__, "lever_pipe."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import benchmarks.answering
"""


def run(code: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name not in (*PORTABLE, MODE)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=inherited | environment, cwd=PACKAGE.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_of_the_package_imports_torch_before_the_path_is_chosen() -> None:
    assert "torch met" in run(EVERY_MODULE)


PRINT_PATH = "import lever_pipe; from lever_pipe.base import numerics; print(numerics.path())"
SPAWN = "import lever_pipe, subprocess, sys; subprocess.run([sys.executable, '-c', {!r}], check=True)"


def test_every_way_into_the_package_takes_the_same_path_and_so_do_its_children() -> None:
    own = run(PRINT_PATH)
    assert own.startswith("portable")
    assert run(SPAWN.format(PRINT_PATH)) == own
    assert run(SPAWN.format("import os; print(os.environ['MKL_CBWR'])")) == "COMPATIBLE\n"


def test_where_torch_is_there_already_nothing_is_set() -> None:
    code = f"import torch, os; {PRINT_PATH}; print(*[n for n in {list(PORTABLE)} if n in os.environ])"
    path, variables = run(code).splitlines()
    assert path.startswith("given ")
    assert variables == ""


@pytest.mark.parametrize("cpu", [XEON, HASWELL, EPYC])
def test_cpus_with_avx2_share_one_path_whatever_else_they_can(cpu: Cpu) -> None:
    assert chosen("portable", {}, cpu) == ("portable", {**PORTABLE, MODE: "portable"})


@pytest.mark.parametrize(("cpu", "name"), [(ARM, "portable aarch64 less"), (OLD, "portable GenuineIntel 6-42 less")])
def test_other_cpus_name_themselves(cpu: Cpu, name: str) -> None:
    assert chosen("portable", {}, cpu).name == name


@pytest.mark.parametrize(("cpu", "bits"), [(XEON, STRICT["avx512"]), (HASWELL, STRICT["avx2"])])
def test_the_fastest_path_takes_the_widest_instructions_and_stays_strict(cpu: Cpu, bits: str) -> None:
    name, variables = chosen("fastest", {}, cpu)
    assert variables == {"MKL_CBWR": bits, MODE: "fastest"}
    assert name == f"fastest {cpu.vendor} {cpu.model} {cpu.level}"


def test_what_the_user_has_set_stays_and_is_part_of_the_name() -> None:
    name, variables = chosen("portable", {"MKL_CBWR": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}, XEON)
    assert variables == {**PORTABLE, "MKL_CBWR": "AVX2", MODE: "portable"}
    assert name == "portable GenuineIntel 6-143 avx512 MKL_CBWR=AVX2"


@pytest.mark.parametrize("of", [XEON, HASWELL])
@pytest.mark.parametrize("before", ["portable", "fastest"])
@pytest.mark.parametrize("after", ["portable", "fastest"])
def test_what_an_ancestor_has_set_is_not_the_users(of: Cpu, before: str, after: str) -> None:
    """A job may run on another CPU than the process that submitted it, and in another mode than its default."""
    inherited = chosen(before, {}, of).variables
    assert chosen(after, inherited, HASWELL) == chosen(after, {}, HASWELL)


def test_a_mode_that_sets_less_takes_back_what_another_has_set() -> None:
    code = "import os; from lever_pipe.base import numerics; numerics.choose('fastest'); print(dict(os.environ))"
    assert {name for name in PORTABLE if f"'{name}'" in run(code)} == {"MKL_CBWR"}


CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
flags\t\t: fpu avx2 fma avx512f avx512dq avx512bw avx512vl

processor\t: 1
vendor_id\t: AuthenticAMD
"""


def test_a_cpu_is_what_its_first_processor_is() -> None:
    assert cpu_of(CPUINFO) == XEON
    assert cpu_of(CPUINFO.replace(" avx512vl", "")) == XEON._replace(level="avx2")
    assert cpu_of("").level == "less"
    assert cpu_of("").vendor
