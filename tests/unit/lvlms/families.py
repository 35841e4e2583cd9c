"""Tiny random folders of every fast family: member -> what writes its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tiny_qwen2_5_vl

FOLDERS: dict[str, Callable[[Path], None]] = {
    "qwen2_5_vl": tiny_qwen2_5_vl.save,
}
