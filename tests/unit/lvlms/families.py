"""Tiny random folders of every fast family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import tiny_internvl
import tiny_qwen2_5_vl

FOLDERS: dict[str, Callable[[Path], None]] = {
    "internvl": tiny_internvl.save,
    "qwen2_5_vl": tiny_qwen2_5_vl.save,
}
"""Fast member -> what writes its folder."""
VARIANTS: dict[str, tuple[str, Callable[[Path], None]]] = {
    **{member: (member, save) for member, save in FOLDERS.items()},
    "internvl with qwen3": ("internvl", partial(tiny_internvl.save, text="qwen3")),
}
"""What tells folders of one member apart -> the member and what writes the folder."""
