"""Configuration files and `--config` words, read so that each has one reading: what is written is what is run.

Files are YAML 1.1 as PyYAML reads it safely, or JSON. Refused are repeated keys, which both take the last of, and what
is no plain UTF-8 text. Numbers in a notation that means another one than it looks like (`1:30` is 90, `010` is 8, `1_5`
is 15) and numbers that a float cannot hold stay texts, which `parsing` refuses where a number is expected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from math import isinf
from pathlib import Path
from typing import Any

import yaml

from lever_pipe.base.errors import ConfigError
from lever_pipe.base.parsing import require_plain, spells
from lever_pipe.base.sections import cut
from lever_pipe.base.storage import distinct_keys, open_regular

LARGEST_FILE = 300_000  # bytes, 50 times the default experiment
INT, FLOAT, BOOL, NULL = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null"))
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,99}|0x[0-9a-fA-F]{1,16})$")
_FLOAT = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)


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

    def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
        """Return the number of a plain notation; the text of another one, which only an explicit tag calls a number."""
        return super().construct_yaml_int(node) if _INT.match(node.value) else node.value

    def construct_yaml_float(self, node: yaml.ScalarNode) -> Any:
        """Return the number that a text spells, or the text."""
        is_number = _FLOAT.match(node.value) and "n" not in node.value.lower()
        endless = super().construct_yaml_float  # to be refused as such
        return _float(node.value) if is_number else endless(node) if _FLOAT.match(node.value) else node.value


class _WordReader(_Reader):
    """Of what stands behind `NAME=` on a command line, where quotes are the shell's: all but truth and null is text."""


def _name(key: yaml.Node) -> object:
    return (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)


def _float(text: str) -> float | str:
    """Return the number that a text spells; the text where it has more digits than a float: no integer may."""
    value = float(text)
    is_exact = spells(text, value) and (value == 0 or Decimal(text) == Decimal(repr(value)))
    return value if is_exact or isinf(value) else text


def _resolve() -> None:
    """Replace how plain words become numbers, and for words of the command line how they become anything."""
    old = yaml.SafeLoader.yaml_implicit_resolvers
    kept = {first: [(tag, form) for tag, form in forms if tag not in (INT, FLOAT)] for first, forms in old.items()}
    _Reader.yaml_implicit_resolvers = kept
    _Reader.add_implicit_resolver(INT, _INT, list("-+0123456789"))
    _Reader.add_implicit_resolver(FLOAT, _FLOAT, list("-+.0123456789"))
    for tag, method in ((INT, _Reader.construct_yaml_int), (FLOAT, _Reader.construct_yaml_float)):
        _Reader.add_constructor(tag, method)
    _WordReader.yaml_implicit_resolvers = {}
    _WordReader.add_implicit_resolver(BOOL, re.compile("(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    _WordReader.add_implicit_resolver(NULL, re.compile("(?:null|Null|NULL)?$"), ["n", "N", ""])


_resolve()


def read_file(path: Path) -> dict[str, Any]:
    """Return the values of a configuration file.

    Raises:
        ConfigError: no such file, no UTF-8, neither YAML nor JSON, repeated keys, or not the values of `require_plain`.
    """
    text = _text(path)
    values = _read(text, str(path))
    if not isinstance(values, dict):
        found = "no key" if values is None else f"a {type(values).__name__}"
        raise ConfigError(f"{path}: expected keys and values", found=found, do="Write it as config.yaml, KEY: VALUE.")
    require_plain(values, source=str(path))
    return values


def read_words(words: Sequence[str] | None) -> dict[str, Any]:
    """Return the values of `--config NAME=VALUE ...`; VALUE is YAML, but only `true`, `false` and `null` are no text.

    Raises:
        ConfigError: no such pair, a name twice, no YAML, or not the values of `require_plain`.
    """
    found: dict[str, Any] = {}
    for word in words or ():
        name, separator, text = word.partition("=")
        if not separator or not re.fullmatch(r"[a-zA-Z_][\w-]*", name) or name in found:
            seen = f"{name} twice" if name in found else repr(cut(word))
            raise ConfigError("--config: expected NAME=VALUE, each name once", found=seen, do="Write it so.")
        found[name] = _read(text, f"--config {name}", is_word=True)
    require_plain(found, source="--config")
    return found


def _text(path: Path) -> str:
    expected = f"{path}: expected a configuration file, UTF-8 text of at most {LARGEST_FILE:,} bytes"
    try:
        with open_regular(path) as handle:
            content = handle.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise ConfigError(expected, found="more", do="Name another file, or take out what is no configuration.")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        found = f"byte {content[fault.start] if fault.start < len(content) else 0:#04x} at {fault.start}"
        raise ConfigError(expected, found=found, do="Save it as UTF-8.") from None
    except (OSError, ValueError) as fault:
        found = fault.strerror or "" if isinstance(fault, OSError) else str(fault)
        raise ConfigError(expected, found=found.lower(), do="Name a file that is there and can be read.") from None


def _read(text: str, source: str, *, is_word: bool = False) -> Any:
    try:
        if is_word:
            return yaml.load(text, Loader=_WordReader)  # noqa: S506 - a SafeLoader
        with suppress(json.JSONDecodeError):  # most JSON is YAML, but not all, and some numbers are none there
            return json.loads(text, object_pairs_hook=distinct_keys, parse_float=_float)
        return yaml.load(text, Loader=_Reader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark
        found = f"{fault.problem}" + (f", line {mark.line + 1}, column {mark.column + 1}" if mark else "")
    except RecursionError:
        found = "values nested too deeply"
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as fault:
        found = " ".join(str(fault).split())
    raise ConfigError(f"{source}: expected YAML or JSON with one reading", found=cut(found), do="Mend it there.")
