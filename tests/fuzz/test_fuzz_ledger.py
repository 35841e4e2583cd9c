"""Ledger files: what a flipped, cut or rewritten line says is never used."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from bad_input import harmed, harmed_bytes, inputs, law_of
from hypothesis import given

from lever_pipe.commands import ledger_tools
from lever_pipe.lvlms.asking.ledger import Ledger, parse_row

ROWS = {
    f"{number:064x}": {
        "tokens": [7, number],
        "text": "r\u00e9d",
        "token_log_probs": [-0.5, -0.25],
        "scores": {"7": [-0.5]},
    }
    for number in range(3)
}


def line(content: str) -> str:
    """Return a line with the digest that its content has."""
    return f'{content[:-1]},"sha256":"{hashlib.sha256(content[:-1].encode()).hexdigest()[:16]}"}}\n'


WHOLE = "".join(line(json.dumps({"key": key, **row})) for key, row in ROWS.items()).encode()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledger") / "a.jsonl"


@inputs
@given(content=harmed_bytes(WHOLE))
def test_only_rows_that_were_written_are_used(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    taken, ledger = law_of("ledger bytes", lambda: Ledger(path.parent), names=f"{path}:")
    if taken:
        assert all(ROWS[key] == row for key, row in ledger._rows.items())
    copy = path.parent.parent / "merged"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path.parent, copy)
    merged, _ = law_of("ledger merge", lambda: ledger_tools.merge(copy), names=path.name)
    assert merged is taken
    assert bool(ledger_tools.merge(copy, drop=True).damaged) is not taken
    assert all(ROWS[key] == row for key, row in Ledger(copy)._rows.items())


@inputs
@given(content=harmed({"key": "ab" * 32, **ROWS[f"{0:064x}"]}))
def test_a_line_is_a_row_with_a_key(path: Path, content: bytes) -> None:
    body = content.removesuffix(b"}")
    digest = hashlib.sha256(body).hexdigest()[:16].encode()
    whole = body + b',"sha256":"' + digest + b'"}\n'
    taken, found = law_of("ledger line", lambda: parse_row(whole, path, 5), names=f"{path}:5: ")
    if taken:
        key, row = found
        assert isinstance(key, str)
        assert "sha256" not in row
