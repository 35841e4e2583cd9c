"""Plugins of extension points: modules that the configuration names, in the package or in a user's folder.

The environment variable `LEVER_PIPE_PLUGINS` names folders with the layout of the package. Their file
`lever/samplers/NAME.py` is imported as `lever_pipe.lever.samplers.NAME`, and enters the identity of the jobs that use
it like a module of the package. Such a file cannot replace a plugin of the package.
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
    """Return the folders that contain plugins: the package, then those in the environment variable."""
    folders = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [PACKAGE, *(Path(folder).expanduser().resolve() for folder in folders if folder)]


def require_current_name() -> None:
    """Refuse the old name of the environment variable, which `roots` ignores.

    Raises:
        ConfigError: the variable has its old name.
    """
    if RENAMED_VARIABLE in os.environ:
        expected, found = f"expected the environment variable {VARIABLE}", f"{RENAMED_VARIABLE}, its old name"
        raise ConfigError(expected, found=found, do=f"Rename it: export {VARIABLE}=FOLDER.")


def available(kind: str) -> list[str]:
    """Return the plugins of an extension point: the modules of its folders, without importing them."""
    paths = [path for root in roots() for path in (root / kind).glob("*.py")]
    # `protocol.py` defines the interface of an extension point.
    return sorted({path.stem for path in paths if not path.stem.startswith("_") and path.stem != "protocol"})


def plugin(kind: str, name: str) -> ModuleType:
    """Return a plugin of an extension point, as `plugin("lever/samplers", "uniform")`.

    Raises:
        UnknownNameError: no such plugin; the message lists the existing ones.
    """
    names = available(kind)
    if name not in names:
        raise UnknownNameError(f"a module of lever_pipe/{kind}", found=repr(name), do=LISTED.format(", ".join(names)))
    return load(f"{PACKAGE.name}.{kind.replace('/', '.')}.{name}")


def plugin_of(kind: str, *others: str) -> AfterValidator:
    """Return a validator that requires the name of a plugin, or one of the `others`."""

    def check(name: str) -> str:
        names = [*available(kind), *others]
        if name not in names:
            problem = f"must be a module of lever_pipe/{kind}, got {shortened(repr(name))}"
            raise ValueError(f"{problem}. {did_you_mean(name, names, LISTED.format(', '.join(names)))}")
        return name

    return AfterValidator(check)


def load(module: str) -> ModuleType:
    """Return a module of the package, or a user's plugin for it.

    Raises:
        ImportError: the module does not exist, or cannot be imported.
    """
    package = module.rpartition(".")[0]
    if package.startswith(f"{PACKAGE.name}."):
        # The package's folder is first in its search path, so its own modules win over a user's.
        import_module(package).__path__ = [str(root.joinpath(*package.split(".")[1:])) for root in roots()]
    return import_module(module)
