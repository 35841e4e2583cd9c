"""Configuration files and `--config` words: YAML 1.1 as PyYAML reads it safely, or JSON.

Refused are repeated keys, which both take the last of, and what is no plain UTF-8 text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from lever_pipe.base.errors import ConfigError, shortened
from lever_pipe.base.storage import distinct_keys, text_in


class _Reader(yaml.SafeLoader):
    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Lay merged mappings below a mapping's own keys; of equal keys one is kept, however often they are merged."""
        seen: set[object] = set()
        for key, _ in node.value:
            if _name(key) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} twice", key.start_mark)
            seen.add(_name(key))
        super().flatten_mapping(node)
        node.value = list({_name(key): (key, value) for key, value in node.value}.values())


def _name(key: yaml.Node) -> object:
    return (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)


def read_file(path: Path) -> dict[str, Any]:
    """Return the values of a configuration file.

    Raises:
        ConfigError: no such file, no UTF-8, neither YAML nor JSON, or repeated keys.
    """
    text = _text(path)
    values = _read(text, str(path))
    if not isinstance(values, dict):
        found = "no key" if values is None else f"a {type(values).__name__}"
        raise ConfigError(f"{path}: expected keys and values", found=found, do="Write it as config.yaml, KEY: VALUE.")
    return values


def read_words(words: Sequence[str] | None) -> dict[str, Any]:
    """Return the values of `--config NAME=VALUE ...`; VALUE is YAML.

    Raises:
        ConfigError: no such pair, a name twice, or no YAML.
    """
    values: dict[str, Any] = {}
    for word in words or ():
        name, separator, text = word.partition("=")
        if not separator or not re.fullmatch(r"[a-zA-Z_][\w-]*", name) or name in values:
            seen = f"{name} twice" if name in values else repr(shortened(word))
            raise ConfigError("--config: expected NAME=VALUE, each name once", found=seen, do="Write it so.")
        values[name] = _read(text, f"--config {name}")
    return values


def _text(path: Path) -> str:
    expected = f"{path}: expected a configuration file, UTF-8 text"
    try:
        return text_in(path.read_bytes())
    except UnicodeDecodeError as fault:
        raise ConfigError(expected, found=str(fault), do="Save it as UTF-8.") from None
    except (OSError, ValueError) as fault:
        found = fault.strerror or "" if isinstance(fault, OSError) else str(fault)
        raise ConfigError(expected, found=found.lower(), do="Name a file that is there and can be read.") from None


def _read(text: str, source: str) -> Any:
    try:
        with suppress(json.JSONDecodeError):  # most JSON is YAML, but not all, and some numbers are none there
            return json.loads(text, object_pairs_hook=distinct_keys)
        return yaml.load(text, Loader=_Reader)  # noqa: S506 - a SafeLoader
    except RecursionError:
        found = "values nested too deeply"
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as fault:
        found = " ".join(str(fault).split())
    raise ConfigError(f"{source}: expected YAML or JSON", found=shortened(found), do="Change it there.")
