"""The dimension legend, and a check of tensors against the dimensions in their names: `rewards_BG` is `[B, G]`.

B  queries in a batch            G  selections per query (a group)
S  shots, demonstrations a selection            K  candidates in the pool            D  width of an embedding
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
_DIMENSIONS = re.compile(r".*_([A-Z]+)")


class ShapeError(ValueError):
    """A tensor differs from the shape in its name: a programming error, not a user's error."""


def shaped(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function refuse tensors whose shapes differ from its parameters' names; None means no tensor.

    Raises:
        ShapeError: from the decorated function: a tensor has another rank, or a letter has two sizes.
    """
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    tensors = [name for name in names if _DIMENSIONS.fullmatch(name)]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = dict(zip(names[: len(args)], args, strict=True)) | kwargs
        require_shapes(**{name: given[name] for name in tensors if given.get(name) is not None})  # type: ignore[arg-type]
        return function(*args, **kwargs)

    return checked


def require_shapes(**tensors: Tensor) -> None:
    """Refuse tensors whose shapes do not match their names or each other.

    Raises:
        ShapeError: a tensor has another rank, or a letter has two sizes.
    """
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        dimensions, shape = name.rpartition("_")[2], tuple(tensor.shape)
        if len(dimensions) != len(shape):
            raise ShapeError(f"{name} must be {_listed(dimensions)}, got shape {list(shape)}")
        for dimension, size in zip(dimensions, shape, strict=True):
            if (expected := sizes.setdefault(dimension, size)) != size:
                listed = _listed(dimensions)
                raise ShapeError(f"{name} must be {listed} with {dimension}={expected}, got {list(shape)}")


def _listed(dimensions: str) -> str:
    return f"[{' '.join(dimensions)}]"
