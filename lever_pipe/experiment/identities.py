"""Sources of the fields of a stage's identity.

`identity_of` names the configuration section that provides a stage's fields, by their names. Annotate a field with
`Setting`, `Wildcard` or `Planned` to take it from another source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from lever_pipe.base.sections import Section


class Setting(NamedTuple):
    """Source of a field: a key of the configuration, as `presets.{preset}.grpo`; braces name a wildcard or a key."""

    path: str


class Wildcard(NamedTuple):
    """Source of a field: a wildcard of the job."""

    name: str


class Planned(NamedTuple):
    """Source of a field, or of all fields: a function of `runtime.plan.PLANNED` that computes it."""

    name: str


class StageIdentity(NamedTuple):
    """The model of a stage's identity and the sources of its values."""

    config: type[Section]
    section: Setting | Planned | None
    """Source of the fields without an annotation."""
    plugins: tuple[str, ...]
    """Modules that the identity selects by name, as `lever.samplers.{pools.sampler}`; part of the stage's code."""


IDENTITIES: dict[str, StageIdentity] = {}
"""By stage."""
S = TypeVar("S", bound=Section)


def identity_of(stage: str, *plugins: str, section: str | Planned | None = None) -> Callable[[type[S]], type[S]]:
    """Declare a model as the identity of a stage; see `StageIdentity`."""

    def declare(config: type[S]) -> type[S]:
        IDENTITIES[stage] = StageIdentity(config, Setting(section) if isinstance(section, str) else section, plugins)
        return config

    return declare
