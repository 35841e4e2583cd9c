"""Where the fields of a stage's identity come from.

`identity_of` names the section that a stage's fields are taken from, by their own names; a field that comes from
elsewhere says so itself.
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
    """Source of a field, or of all of them: what a function of `runtime.plan.PLANNED` makes of the configuration."""

    name: str


class StageIdentity(NamedTuple):
    """How a stage's identity is formed."""

    config: type[Section]
    section: Setting | Planned | None
    """Where fields come from that name no source of their own."""
    plugins: tuple[str, ...]
    """Modules that the identity selects by name, as `lever.samplers.{pools.sampler}`; they are code of the stage."""


IDENTITIES: dict[str, StageIdentity] = {}
"""By stage."""
S = TypeVar("S", bound=Section)


def identity_of(stage: str, *plugins: str, section: str | Planned | None = None) -> Callable[[type[S]], type[S]]:
    """Declare a model as the identity of a stage; see `StageIdentity`."""

    def declare(config: type[S]) -> type[S]:
        IDENTITIES[stage] = StageIdentity(config, Setting(section) if isinstance(section, str) else section, plugins)
        return config

    return declare
