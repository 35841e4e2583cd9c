"""Read the user's configuration: YAML or JSON files, then `--config NAME=VALUE`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import plain_yaml
from lever_pipe.base.errors import ConfigError, shortened
from lever_pipe.base.sections import displayed
from lever_pipe.base.storage import distinct_keys, text_in

NAME = re.compile(r"[a-zA-Z_][\w-]*(\.[\w-]+|\[[0-9]+\])*")
DEFAULT_FILE = Path("config.yaml")


class Override(NamedTuple):
    """A value of `--config`: `arms.0.seeds` has the path `("arms", "0", "seeds")`."""

    path: tuple[str, ...]
    value: Any

    @property
    def name(self) -> str:
        """Return the path as a user writes it."""
        return ".".join(self.path)


class Configuration(NamedTuple):
    """Values with their sources.

    Attributes:
        values: merged values of all files and overrides, not validated.
        sources: the files in order, then `--config`.
        results: each source that sets `results`, with its value.
    """

    values: dict[str, Any]
    sources: tuple[str, ...]
    results: tuple[tuple[str, Any], ...] = ()

    @property
    def source(self) -> str:
        """Return the sources as one text."""
        return " + ".join(self.sources)

    def destination(self, results: str) -> str:
        """Return a message with the folder of results; empty if config.yaml alone sets it.

        Args:
            results: the value of the validated configuration.
        """
        by = self.results[-1][0] if self.results else "the default"
        is_usual = by in (str(DEFAULT_FILE), "the default")
        if is_usual and len([source for source in self.sources if source != "--config"]) <= 2:
            return ""
        others = [f"{name} sets {value}" for name, value in self.results[:-1] if name != str(DEFAULT_FILE)]
        return f"Results go to {results} ({by}{'; overridden: ' if others else ''}{', '.join(others)})."


def read(files: Iterable[Path], words: Sequence[str] | None = None) -> Configuration:
    """Return the merged values of files and `--config` words.

    Each file overrides the files before it, and the words override all files.

    Raises:
        ConfigError: an unreadable file or word, or a path that does not exist.
    """
    values: dict[str, Any] = {}
    sources, results = list[str](), list[tuple[str, Any]]()
    for path in files:
        part = read_file(path)
        values = laid_over(values, part)
        sources.append(str(path))
        results += [(str(path), part["results"])] if "results" in part else []
    for override in read_words(words):
        values = _overridden(values, override, ())
        results += [("--config", override.value)] if override.path == ("results",) else []
    return Configuration(values, (*sources, *(["--config"] if words else [])), tuple(results))


def laid_over(below: Any, above: Any) -> Any:
    """Merge two values: mappings key by key, everything else (lists too) is replaced."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: laid_over(below.get(key), value) for key, value in above.items()}}


def read_file(path: Path) -> dict[str, Any]:
    """Return the values of a configuration file.

    Raises:
        ConfigError: the file is missing, not UTF-8, or not unambiguous YAML or JSON.
    """
    values = _read(_text(path), str(path), is_file=True)
    if not isinstance(values, dict):
        found = "no key" if values is None else f"a {'list' if isinstance(values, list) else type(values).__name__}"
        raise ConfigError(f"{path}: expected keys and values", found=found, do="Write it as config.yaml, KEY: VALUE.")
    return values


def read_words(words: Sequence[str] | None) -> list[Override]:
    """Return the values of `--config NAME=VALUE ...`; VALUE is YAML, NAME a key or a path such as `arms.0.seeds`.

    Raises:
        ConfigError: not such a pair, a repeated name, or invalid YAML.
    """
    overrides: dict[tuple[str, ...], Override] = {}
    for word in words or ():
        name, separator, text = word.partition("=")
        if not separator or not NAME.fullmatch(name):
            do = "Write data.n_eval=20 or arms.0.kl_betas='[0, 0.1]'."
            raise ConfigError("--config: expected NAME=VALUE", found=repr(shortened(word)), do=do)
        path = tuple(re.split(r"\.|\[", name.replace("]", "")))
        if path in overrides:
            raise ConfigError("--config: expected each name once", found=f"{name} twice", do="Remove one of them.")
        overrides[path] = Override(path, _read(text, f"--config {name}", is_file=False))
    return list(overrides.values())


def _overridden(values: Any, override: Override, done: tuple[str, ...]) -> Any:
    """Return values with an override applied, without changing the argument.

    Args:
        values: the values at path `done`; null counts as an empty mapping.
        override: path and value.
        done: the processed part of the path.
    """
    if len(done) == len(override.path):
        return laid_over(values, override.value)
    part, at = override.path[len(done)], ".".join(done)
    if isinstance(values, list):
        position = _position(part, values, override, at)
        entry = _overridden(values[position], override, (*done, part))
        return [*values[:position], entry, *values[position + 1 :]]
    if values is None and part.isdecimal():
        do = f"Write the whole list: {at}='[...]'."
        raise ConfigError(f"--config {override.name}: expected a list at {at}", found="none in the files", do=do)
    if not isinstance(values, Mapping | None):
        do = f"Name one of its keys' owners, or {at} itself."
        raise ConfigError(f"--config {override.name}: expected keys below {at}", found=displayed(values), do=do)
    values = values or {}
    return {**values, part: _overridden(values.get(part), override, (*done, part))}


def _position(part: str, values: list[Any], override: Override, at: str) -> int:
    if part.isdecimal() and int(part) < len(values):
        return int(part)
    positions = f"a position from 0 to {len(values) - 1}" if values else "entries"
    do = f"Count from 0, or write the whole list: {at}='[...]'."
    raise ConfigError(f"--config {override.name}: expected {positions} in the list {at}", found=part, do=do)


def _text(path: Path) -> str:
    expected = "expected a configuration file, UTF-8 text"
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        found = error.strerror or "" if isinstance(error, OSError) else str(error)
        do = "Name a file that exists and can be read."
        raise ConfigError(f"{path}: {expected}", found=found.lower(), do=do) from None
    try:
        return text_in(content)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        is_utf_16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
        found = "UTF-16" if is_utf_16 else f"the byte 0x{content[error.start]:02x}"
        raise ConfigError(f"{path}:{line}: {expected}", found=found, do="Save it as UTF-8.") from None


def _read(text: str, source: str, *, is_file: bool) -> Any:
    # A failure here is not final: the YAML reader refuses the same text, with the line number.
    with suppress(ValueError, RecursionError):
        return json.loads(text, object_pairs_hook=distinct_keys, parse_int=_integer)
    try:
        return plain_yaml.read(text)
    except plain_yaml.PlainYamlError as error:
        location = f"{source}:{error.line}" if is_file else source
        raise ConfigError(f"{location}: expected {error.expected}", found=error.found, do=error.do) from None


def _integer(digits: str) -> int:
    # The same limit as in YAML; `_read` suppresses the error, so that the YAML reader reports the number and its line.
    if len(digits) > plain_yaml.MAX_DIGITS:
        raise ValueError
    return int(digits)
