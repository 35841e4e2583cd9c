"""Plugins of extension points: modules that the configuration names, in the package or beside it.

A folder that the environment variable `LEVER_PIPE_PLUGINS` names is laid out as the package is: its file
`lever/samplers/NAME.py` is imported as `lever_pipe.lever.samplers.NAME`, and enters the identity of the jobs that use
it as a module of the package does. A plugin of the package cannot be replaced in that way.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType

from pydantic import AfterValidator

import lever_pipe
from lever_pipe.base.errors import ConfigError, UnknownNameError, shortened
from lever_pipe.base.sections import did_you_mean

VARIABLE = "LEVER_PIPE_PLUGINS"
RENAMED_VARIABLE = "LEVER_PIPE_MEMBERS"
PACKAGE = Path(lever_pipe.__file__).parent
LISTED = "Name one of {}, or add the module."


def roots() -> list[Path]:
    """Return the folders that hold plugins: the package, then those that the environment names.

    Raises:
        ConfigError: the variable has its old name.
    """
    if RENAMED_VARIABLE in os.environ:
        found = f"{RENAMED_VARIABLE}, its old name"
        raise ConfigError(
            f"the environment variable {VARIABLE}", found=found, do=f"Rename it: export {VARIABLE}=FOLDER."
        )
    folders = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [PACKAGE, *(Path(folder).expanduser().resolve() for folder in folders if folder)]


def available(kind: str) -> list[str]:
    """Return the plugins of an extension point: the modules of its folders, without importing them."""
    paths = [path for root in roots() for path in (root / kind).glob("*.py")]
    return sorted({path.stem for path in paths if not path.stem.startswith("_") and path.stem != "protocol"})


def plugin(kind: str, name: str) -> ModuleType:
    """Return a plugin of an extension point, as `plugin("lever/samplers", "uniform")`.

    Raises:
        UnknownNameError: there is none; the message lists those that exist.
    """
    names = available(kind)
    if name not in names:
        raise UnknownNameError(f"a module of lever_pipe/{kind}", found=repr(name), do=LISTED.format(", ".join(names)))
    return load(f"{PACKAGE.name}.{kind.replace('/', '.')}.{name}")


def plugin_of(kind: str, *others: str) -> AfterValidator:
    """Return what holds a text of the configuration to the name of a plugin, or to one of the `others`."""

    def check(name: str) -> str:
        names = [*available(kind), *others]
        if name not in names:
            problem = f"must be a module of lever_pipe/{kind}, got {shortened(repr(name))}"
            raise ValueError(f"{problem}. {did_you_mean(name, names, LISTED.format(', '.join(names)))}")
        return name

    return AfterValidator(check)


def load(module: str) -> ModuleType:
    """Return a module of the package, or one that lies beside it as its plugin.

    Raises:
        ImportError: there is none, or it cannot be imported.
    """
    package = module.rpartition(".")[0]
    if package.startswith(f"{PACKAGE.name}."):
        import_module(package).__path__ = [str(root.joinpath(*package.split(".")[1:])) for root in roots()]
    return import_module(module)
