"""The dimension legend and its check at the door of every loss.

B  queries in a batch            G  selections per query (a group)
S  shots, demonstrations a selection            K  candidates in the pool            D  width of an embedding
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class ShapeError(ValueError):
    """A tensor does not have the documented shape: a programmer's fault, not the user's."""


def require_shapes(*specs: tuple[str, str, Tensor]) -> dict[str, int]:
    """Return the size of every named dimension after checking `(name, "B G S", tensor)` triples.

    A letter binds to the first size it meets; a number must match exactly.

    Raises:
        ShapeError: a tensor has another rank, or a letter stands for two sizes.
    """
    sizes: dict[str, int] = {}
    for name, spec, tensor in specs:
        dims = spec.split()
        shape = tuple(tensor.shape)
        if len(dims) != len(shape):
            raise ShapeError(f"{name} must be [{spec}], got shape {list(shape)}")
        for dim, size in zip(dims, shape, strict=True):
            expected = int(dim) if dim.isdigit() else sizes.setdefault(dim, size)
            if expected != size:
                raise ShapeError(f"{name} must be [{spec}] with {dim}={expected}, got {list(shape)}")
    return sizes
