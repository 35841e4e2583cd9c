"""Tiny random folders of every fast family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import tiny_idefics3
import tiny_internvl
import tiny_qwen2_5_vl
import tiny_qwen3_vl
import tiny_smolvlm

FOLDERS: dict[str, Callable[[Path], None]] = {
    "idefics3": tiny_idefics3.save,
    "internvl": tiny_internvl.save,
    "qwen2_5_vl": tiny_qwen2_5_vl.save,
    "qwen3_vl": tiny_qwen3_vl.save,
    "smolvlm": tiny_smolvlm.save,
}
"""Fast member -> what writes its folder."""
VARIANTS: dict[str, tuple[str, Callable[[Path], None]]] = {
    **{member: (member, save) for member, save in FOLDERS.items()},
    "internvl with qwen3": ("internvl", partial(tiny_internvl.save, text="qwen3")),
}
"""What tells folders of one member apart -> the member and what writes the folder."""
