"""YAML files of plain values, by the compiled reader where the library has one: the other takes seven times as long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from lever_pipe.base.errors import RecordError
from lever_pipe.base.storage import read_bytes


def read_plain(path: Path, expected: str) -> Any:
    """Return the value of a file, which holds what is `expected`.

    Raises:
        RecordError: there is none, or it is not YAML of plain values in UTF-8.
    """
    try:
        text = read_bytes(path).decode()
        return yaml.load(text, Loader=yaml.CSafeLoader) if yaml.__with_libyaml__ else yaml.safe_load(text)
    except FileNotFoundError:
        raise RecordError(f"{path}: expected {expected}", found="none", do="Restore it.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as fault:
        raise RecordError(f"{path}: expected YAML", found=" ".join(str(fault).split()), do="Mend the file.") from None
