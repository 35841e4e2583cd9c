"""Finds a member of an extension point by its name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from lever_pipe.base.errors import UnknownMemberError


def load_member(kind: str, name: str) -> ModuleType:
    """Return the module `lever_pipe/intention/KIND/NAME.py`.

    Raises:
        UnknownMemberError: there is none; the message lists those that exist.
    """
    names = sorted(p.stem for p in (Path(__file__).parent / kind).glob("[a-z]*.py") if p.stem != "protocol")
    if name not in names:
        raise UnknownMemberError(
            f"one of {', '.join(names)} in lever_pipe/intention/{kind}", found=repr(name), do="Name one of them."
        )
    return import_module(f"lever_pipe.intention.{kind}.{name}")
