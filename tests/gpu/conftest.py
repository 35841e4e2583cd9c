"""Puts the tiny models of the LVLM tests on the import path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "unit" / "lvlms"))
