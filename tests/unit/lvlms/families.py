"""Tiny random folders of every fast family: member -> what writes its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tiny_idefics3
import tiny_qwen2_5_vl
import tiny_qwen3_vl
import tiny_smolvlm

FOLDERS: dict[str, Callable[[Path], None]] = {
    "idefics3": tiny_idefics3.save,
    "qwen2_5_vl": tiny_qwen2_5_vl.save,
    "qwen3_vl": tiny_qwen3_vl.save,
    "smolvlm": tiny_smolvlm.save,
}
