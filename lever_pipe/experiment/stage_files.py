"""What each file is to a stage, said once: by the types of the stage's parameters.

Call and manifest follow from them; a test holds the rule of the same name against them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints


class Role(Enum):
    """What a stage does with a file or folder."""

    INPUT = "input"
    OUTPUT = "output"
    EXTERNAL = "external"
    STATE = "state"


Input = Annotated[Path, Role.INPUT]
Inputs = Annotated[tuple[Path, ...], Role.INPUT]
Output = Annotated[Path, Role.OUTPUT]
Outputs = Annotated[tuple[Path, ...], Role.OUTPUT]
External = Annotated[Path, Role.EXTERNAL]
"""A folder of a model or of images: what it holds is part of the spec or of an input, and no rule makes it."""
State = Annotated[Path, Role.STATE]
"""A folder in which a stage keeps how far it came. It goes when the manifest stands: a killed run needs it."""


class Declared(NamedTuple):
    """What a signature says of a file parameter."""

    role: Role
    several: bool
    """Whether it takes several paths, maybe none."""


def declared(stage: Callable[..., Any]) -> dict[str, Declared]:
    """Return the file parameters of a stage by name, in their order."""
    typed = {name: get_args(hint) for name, hint in get_type_hints(stage, include_extras=True).items()}
    return {n: Declared(h[1], h[0] is not Path) for n, h in typed.items() if h and isinstance(h[-1], Role)}
