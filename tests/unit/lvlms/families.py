"""Tiny random folders of families: of the fast one, and of others that `hf` answers with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import tiny_idefics3
import tiny_internvl
import tiny_qwen2_5_vl
import tiny_qwen3_vl
import tiny_smolvlm

FAST: dict[str, Callable[[Path], None]] = {"qwen2_5_vl": tiny_qwen2_5_vl.save}
"""Fast member -> what writes its folder."""
FOLDERS: dict[str, Callable[[Path], None]] = {
    **FAST,
    "idefics3": tiny_idefics3.save,
    "internvl": tiny_internvl.save,
    "internvl with qwen3": partial(tiny_internvl.save, text="qwen3"),
    "qwen3_vl": tiny_qwen3_vl.save,
    "smolvlm": tiny_smolvlm.save,
}
"""Family -> what writes its folder."""
