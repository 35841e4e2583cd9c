"""No variable of the caller breaks a job or changes its numbers; those that users need stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lever_pipe.base import process_environment

REPOSITORY = Path(__file__).parents[3]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
INLINE = "module://matplotlib_inline.backend_inline"


def run(code: str, **variables: str) -> str:
    """Return the output of a Python process with these variables."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


FIGURES = "import lever_pipe.report.figures.style"
NUMBERS = "import lever_pipe, numpy"
CHILD = "import lever_pipe, subprocess, sys; subprocess.run([sys.executable, '-c', {!r}], check=True)"


@pytest.mark.parametrize(
    ("code", "variables"),
    [
        (FIGURES, {"MPLBACKEND": INLINE}),
        (
            CHILD.format("import matplotlib.pyplot"),
            {"MPLBACKEND": INLINE},
        ),  # a conda job, whose stage is another Python
        (FIGURES, {"MPLBACKEND": "nbAgg2", "MPLCONFIGDIR": "/proc/none", "TMPDIR": "/proc/none"}),
        (NUMBERS, {"NPY_ENABLE_CPU_FEATURES": "AVX2", "NPY_DISABLE_CPU_FEATURES": ""}),
        ("import lever_pipe, torch", {"TORCH_LOGS": "+everything", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
        ("import lever_pipe, warnings; warnings.warn('old')", {"PYTHONWARNINGS": "error"}),
        ("import lever_pipe, subprocess; subprocess.run(['mktemp', '-u'], check=True)", {"TMPDIR": "/scratch/job/1"}),
    ],
)
def test_a_variable_of_the_caller_breaks_no_job(code: str, variables: dict[str, str]) -> None:
    run(code, **variables)


def test_packages_of_another_python_do_not_hide_ours(tmp_path: Path) -> None:
    """As after `module load` on a cluster: PYTHONPATH=/apps/python/3.9/lib/python3.9/site-packages."""
    foreign, own = tmp_path / "lib/python3.9/site-packages", tmp_path / "plugins"
    foreign.mkdir(parents=True)
    (foreign / "numpy.py").write_text("raise ImportError('of another Python')\n")
    own.mkdir()
    (own / "mine.py").touch()
    path = os.pathsep.join(map(str, (foreign, REPOSITORY, own)))
    run(f"{NUMBERS}, mine", PYTHONPATH=path)
    run(CHILD.format("import numpy, mine"), PYTHONPATH=path)


def test_variables_that_break_jobs_go_and_those_of_users_stay(tmp_path: Path) -> None:
    kept = {
        "CUDA_VISIBLE_DEVICES": "1",
        "HF_HOME": "/proc/shared",
        "HF_TOKEN": "a",
        "MPLCONFIGDIR": str(tmp_path / "new"),
        "OMP_NUM_THREADS": "4",
        "PATH": "/bin",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), f"/sw/PyTorch/lib/{PYTHON}/site-packages", ""]),
        "SLURM_CONF": "/etc/slurm.conf",
        "TMPDIR": str(tmp_path),
    }
    broken = {
        "KMP_AFFINITY": "compact",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "NVIDIA_TF32_OVERRIDE": "1",
        "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
        "SLURM_MEM_PER_CPU": "100",
        "TEMP": "/proc/none",
        "TMP": "",
    }
    environment = kept | broken | {"MPLBACKEND": "Qt5Agg"}
    process_environment.apply(environment)
    assert environment == kept | {"MPLBACKEND": "agg"}


def test_a_stage_that_is_called_directly_has_the_threads_of_its_option() -> None:
    code = "import os; from lever_pipe.__main__ import main; main({!r}); print(os.environ['OMP_NUM_THREADS'])"
    numbers = [
        run(code.format(["stage", "prepare_tasks", *words]), OMP_NUM_THREADS="7", MKL_NUM_THREADS="7").strip()
        for words in ([], ["--threads", "2"])
    ]
    assert numbers == ["1", "2"]


def test_a_notebook_keeps_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    environment = {"MPLBACKEND": INLINE}
    process_environment.apply(environment)
    assert environment == {"MPLBACKEND": INLINE}
