"""The dimension legend, and the check of what a name says of its tensor: `rewards_BG` is `[B, G]`.

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
    """A tensor does not have the shape that its name says: a programmer's problem, not the user's."""


def shaped(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function refuse tensors whose shapes are not those of its parameters' names; None stands for no tensor.

    Raises:
        ShapeError: by the decorated function: a tensor has another rank, or a letter stands for two sizes.
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
    """Refuse tensors whose shapes do not agree with their names and with each other.

    Raises:
        ShapeError: a tensor has another rank, or a letter stands for two sizes.
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
