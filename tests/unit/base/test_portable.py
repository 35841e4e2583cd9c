"""Operations whose bits depend on the CPU's vendor are refused in what the default stages compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden_curves import CURVES
from lvlm_world import LVLM, lvlm_config, world
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lever_pipe.base import portable
from lever_pipe.base.errors import MachineError
from lever_pipe.base.storage import read_examples
from lever_pipe.experiment import execution
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.lever.trajectories import references_of
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import LvlmRequest

MEASURED = Path(__file__).parents[2] / "golden" / "operations.txt"
"""Operations that gave the same bits natively and on emulated CPUs of both vendors (`benchmarks/bits.py`)."""
EXACT = {"aten.set_.source_Storage_storage_offset", "aten.sub_.Tensor"}
"""Operations that no stage of the smoke run uses, and that move memory or round each element as IEEE 754 says."""
REPLACEMENTS = {
    "aten.erf": "use the tanh form of GELU",
    "aten.baddbmm": "use torch.bmm and an addition",
    "aten.mv": "use a product of matrices",
    "aten.dot": "use a product and a sum",
}
"""The operations that are likely to come back, with what to write in their place."""


class Refusing(TorchDispatchMode):
    """Fails on an operation on floating-point tensors that was not measured."""

    def __init__(self) -> None:
        super().__init__()
        self.measured = EXACT | set(MEASURED.read_text(encoding="utf-8").split())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
        if any(t.is_floating_point() for t in tensors) and str(func) not in self.measured:
            name = str(func).rpartition(".")[0]
            do = REPLACEMENTS.get(name, "measure it with benchmarks/bits.py")
            raise AssertionError(f"{func}: expected an operation with the same bits on every CPU; do: {do}")
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _portable() -> None:
    execution.prepare(Runtime())
    if not portable.is_installed():
        pytest.skip("this CPU has no AVX2")


@pytest.mark.parametrize("name", CURVES)
def test_trainings_use_measured_operations(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Refusing():
        CURVES[name](tmp_path, monkeypatch)


def test_answers_use_measured_operations() -> None:
    train = read_examples(world() / "train.jsonl")
    wording = Wording(lvlm_config().prompt)
    requests = [LvlmRequest(wording.prompt(q, train[8 : 8 + n]), references_of(q)) for n, q in enumerate(train[:4], 1)]
    with Refusing():
        lvlm = load_lvlm(lvlm_config(), LVLM, [(train, world() / "train_images")], Runtime())
        assert len(lvlm.run(requests)) == len(requests)


@pytest.mark.parametrize("function", [torch.erf, torch.lgamma])
def test_an_operation_that_was_not_measured_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    with Refusing(), pytest.raises(AssertionError, match=function.__name__):
        function(torch.ones(3))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "transposed": lambda x: x.t().contiguous().t(),
    "every second column": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "expanded": lambda x: x[:1].expand(len(x), -1),
}


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (70, 33, 130), (0, 4, 3), (3, 0, 2)])
def test_products_are_those_of_the_definition(
    left: str, right: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    rows, inner, columns = shape
    draw = torch.Generator().manual_seed(0)
    x = LAYOUTS[left](torch.randn(rows, inner, generator=draw, dtype=torch.float64)).to(dtype)
    y = LAYOUTS[right](torch.randn(inner, columns, generator=draw, dtype=torch.float64)).to(dtype)
    bias = torch.randn(columns, generator=draw, dtype=torch.float64).to(dtype)
    exact = (x.double().unsqueeze(2) * y.double().unsqueeze(0)).sum(1)
    # A sum of `inner` products of numbers around 1 has an error of at most about `inner` units of rounding.
    near = {"rtol": 0, "atol": 8 * max(1, inner) * torch.finfo(dtype).eps}
    torch.testing.assert_close((x @ y).double(), exact, **near)
    torch.testing.assert_close(torch.addmm(bias, x, y).double(), bias + exact, **near)
    torch.testing.assert_close(torch.addmm(bias, x, y, beta=2, alpha=-3).double(), 2 * bias - 3 * exact, **near)


def test_a_bias_without_weight_is_ignored() -> None:
    ones = torch.ones(3, 3)
    assert torch.equal(torch.addmm(torch.full((3,), torch.nan), ones, ones, beta=0), 3 * ones)


def test_a_linear_layer_and_its_gradients_are_those_of_float64() -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*s, generator=draw, requires_grad=True) for s in ((9, 20), (6, 20), (6,)))
    torch.nn.functional.linear(x, weight, bias).square().sum().backward()
    wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    ((wide[0].unsqueeze(1) * wide[1]).sum(-1) + wide[2]).square().sum().backward()
    for found, exact in zip((x, weight, bias), wide, strict=True):
        torch.testing.assert_close(found.grad, exact.grad.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 65, 511, 513])
def test_a_row_of_a_linear_layer_does_not_depend_on_the_others(count: int) -> None:
    draw = torch.Generator().manual_seed(0)
    rows, weight = torch.randn(600, 48, generator=draw), torch.randn(30, 48, generator=draw)
    whole = torch.nn.functional.linear(rows, weight)
    assert torch.equal(torch.nn.functional.linear(rows[-count:].clone(), weight), whole[-count:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logarithms_are_those_of_python(dtype: torch.dtype) -> None:
    x = torch.rand(999, generator=torch.Generator().manual_seed(0), dtype=torch.float64).add(1e-3).to(dtype)
    exact = torch.tensor([math.log(v) for v in x.double().tolist()], dtype=torch.float64)
    # NumPy promises errors below 4 units of rounding.
    torch.testing.assert_close(x.log().double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=0)
    assert torch.equal(x.clone().log_(), x.log())
    zero, negative = torch.tensor([0.0, -1.0]).log()
    assert zero == -torch.inf
    assert negative.isnan()


def test_roots_are_correctly_rounded() -> None:
    x = torch.rand(999, generator=torch.Generator().manual_seed(0)) * 100
    exact = torch.tensor([math.sqrt(v) for v in x.double().tolist()], dtype=torch.float64).float()
    assert torch.equal(x.sqrt(), exact)
    assert torch.equal(x.clone().sqrt_(), exact)
    assert x.new_full((1,), -1.0).sqrt().isnan().all()
    assert torch.arange(5).sqrt().dtype == torch.float32
    assert torch.equal(torch.full((2,), 4.0, dtype=torch.bfloat16).sqrt(), torch.full((2,), 2.0, dtype=torch.bfloat16))


def test_products_of_other_types_stay_with_torch() -> None:
    ones = torch.ones(3, 3)
    for dtype in (torch.int64, torch.bfloat16, torch.complex64):
        assert torch.equal(ones.to(dtype) @ ones.to(dtype), torch.full((3, 3), 3).to(dtype))


def test_numpy_without_openblas_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "_libraries", [])
    monkeypatch.setattr(np, "show_config", lambda mode: {"Build Dependencies": {"blas": {"name": "mkl-sdl"}}})
    with pytest.raises(MachineError, match="mkl-sdl"):
        portable.install()
