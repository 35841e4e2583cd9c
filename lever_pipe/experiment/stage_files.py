"""Roles of a stage's files, declared by the types of the stage's parameters.

The call and the manifest follow from these types; a test compares them with the rule of the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints


class Role(Enum):
    """The role of a file or folder in a stage."""

    INPUT = "input"
    OUTPUT = "output"
    EXTERNAL = "external"
    STATE = "state"


Input = Annotated[Path, Role.INPUT]
Inputs = Annotated[tuple[Path, ...], Role.INPUT]
Output = Annotated[Path, Role.OUTPUT]
Outputs = Annotated[tuple[Path, ...], Role.OUTPUT]
External = Annotated[Path, Role.EXTERNAL]
"""A folder of a model or of images. No rule creates it; the spec or an input identifies its content."""
State = Annotated[Path, Role.STATE]
"""A folder with a stage's progress, for resuming a killed run. It is deleted after the manifest is written."""


class Declared(NamedTuple):
    """The declaration of a file parameter."""

    role: Role
    several: bool
    """Whether it takes a tuple of paths, possibly empty."""


def declared(stage: Callable[..., Any]) -> dict[str, Declared]:
    """Return the file parameters of a stage by name, in the signature's order."""
    typed = {name: get_args(hint) for name, hint in get_type_hints(stage, include_extras=True).items()}
    return {n: Declared(h[1], h[0] is not Path) for n, h in typed.items() if h and isinstance(h[-1], Role)}
