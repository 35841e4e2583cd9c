"""Long-format files as frames of text."""

from __future__ import annotations

from pathlib import Path

import pandas as pd


def read_text_columns(path: Path) -> pd.DataFrame:
    """Return a CSV file with every column as text and empty fields as empty text."""
    return pd.read_csv(path, dtype=str, keep_default_na=False)
