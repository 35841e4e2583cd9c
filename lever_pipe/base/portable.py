"""The operations of torch whose bits depend on the vendor of the CPU, computed without that dependence.

On x86-64, torch calls MKL for products of matrices and for `exp`, `log` and `sqrt`. MKL selects kernels by vendor, so
AMD and Intel CPUs round differently. Its mode COMPATIBLE (`base/numerics.py`) computes the same bits on both, but
products of matrices take twice as long. `install` therefore registers other kernels with torch:

* products with the transposed weight of a linear layer: oneDNN, whose rows do not depend on each other either;
* other products of two matrices, mostly those of gradients: NumPy, which calls OpenBLAS, with one thread, because
  several add in another order;
* `log` and `sqrt`, which differ in MKL's mode, too: NumPy.

Batched products, attention and `exp` stay with MKL. The registration covers gradients, and modules of plugins.
`benchmarks/bits.py` measures which operations of the default experiment give the same bits on emulated CPUs, and
`tests/unit/base/test_portable.py` refuses an operation that was not measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.library import Library

from lever_pipe.base.errors import MachineError

_aten = torch.ops.aten
_onednn = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001 - torch has no public name for it
_libraries: list[Library] = []
"""Registrations last as long as their library."""


def install() -> None:
    """Register the kernels for tensors on a CPU, for the rest of this process.

    Raises:
        MachineError: NumPy uses another library than OpenBLAS.
    """
    if _libraries:
        return
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    if "openblas" not in blas:
        expected = "`numerics: portable` needs NumPy with OpenBLAS, as in its wheels"
        raise MachineError(expected, found=blas, do="Call `make setup`, or set `numerics: fastest`.")
    library: Any = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # each operation has a kernel already
        library.impl("mm", _mm, "CPU")
        library.impl("addmm", _addmm, "CPU")
        for name, function in {"log": np.log, "sqrt": np.sqrt}.items():
            kernel = partial(_elementwise, function, getattr(_aten, name).out)
            library.impl(name, kernel, "CPU")
            library.impl(f"{name}_", partial(_in_place, kernel), "CPU")
    _libraries.append(library)


def is_installed() -> bool:
    """Return whether this process computes portable bits."""
    return bool(_libraries)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `rows @ weight.T + bias`, [..., N], float32, without a gradient; no row depends on the others.

    Args:
        rows: [..., K].
        weight: [N, K].
        bias: [N].
    """
    flat = rows.reshape(-1, rows.shape[-1]).contiguous()
    missing = -len(flat) % _unit(len(flat))
    if missing:
        flat = torch.cat([flat, flat.new_zeros(missing, flat.shape[1])])
    products: Tensor = _onednn(flat, weight, bias, "none", [], "")
    return products[: len(products) - missing].view(*rows.shape[:-1], -1)


def _unit(n_rows: int) -> int:
    """Return the divisor of the number of rows in a product.

    oneDNN uses another kernel for one row. It also generates code for each new shape, which takes longer than most
    products.
    """
    return 4 if n_rows <= 64 else 32 if n_rows <= 512 else 128


def _mm(x: Tensor, y: Tensor) -> Tensor:
    if _is_linear(x, y):
        return linear(x, y.t(), None)
    result = x.new_empty(len(x), y.shape[1])
    return _product(x, y, result) if _is_real(x) else _aten.mm.out(x, y, out=result)


def _addmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if _is_linear(x, y) and bias.dim() == 1 and beta == alpha == 1:
        return linear(x, y.t(), bias)
    result = x.new_empty(len(x), y.shape[1])
    if not _is_real(x):
        return _aten.addmm.out(bias, x, y, beta=beta, alpha=alpha, out=result)  # type: ignore[no-any-return]
    scaled = _product(x, y, result).mul_(alpha)
    return scaled.add_(bias, alpha=beta) if beta else scaled  # torch then ignores even an infinite bias


def _elementwise(function: Any, native: Any, x: Tensor) -> Tensor:
    if not _is_real(x):
        dtype = x.dtype if x.is_floating_point() or x.is_complex() else torch.get_default_dtype()
        return native(x, out=torch.empty_like(x, dtype=dtype))  # type: ignore[no-any-return]
    result = torch.empty_like(x)
    with np.errstate(divide="ignore", invalid="ignore"):  # infinity and NaN, as in torch
        function(_array(x), out=result.numpy())
    return result


def _in_place(kernel: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return x.copy_(kernel(x))


def _is_real(x: Tensor) -> bool:
    """Return whether MKL would compute this type: kernels of other types do not depend on the vendor."""
    return x.dtype in (torch.float32, torch.float64)


def _is_linear(x: Tensor, y: Tensor) -> bool:
    return x.dtype == torch.float32 and y.stride() == (1, len(y)) and min(x.numel(), y.numel()) > 0


def _product(x: Tensor, y: Tensor, result: Tensor) -> Tensor:
    np.matmul(_matrix(x), _matrix(y), out=result.numpy())
    return result


def _matrix(x: Tensor) -> Any:
    (height, width), (row, column) = x.shape, x.stride()
    # NumPy gives OpenBLAS only matrices with contiguous rows or columns; its own loop for others is slow.
    is_blas = (column == 1 and row >= width) or (row == 1 and column >= height)
    return _array(x if is_blas else x.contiguous())


def _array(x: Tensor) -> Any:
    return x.detach().numpy()
