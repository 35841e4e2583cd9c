"""A ledger's answers of another engine are reported and kept; a GPU answers them again only on request."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from ledger_lines import written

from lever_pipe.base.errors import ConfigError
from lever_pipe.lvlms.asking.ledger import MANY, Ledger, register, require_confirmation

OWN, OTHER, THIRD = "a" * 16, "b" * 16, "c" * 16
HERE = {"weights": "w", "device": "cuda", "numerics": "", "code": "2"}


def ledger_of(folder: Path, rows: dict[str, int], **identities: dict[str, str]) -> Ledger:
    with written(folder) as ledger:
        for engine, count in rows.items():
            for number in range(count):
                ledger.put(f"{engine}{number:048x}", {"text": "red", "tokens": [1]})
    for engine, identity in identities.items():
        register(folder, engine, identity)
    return Ledger(folder)


def test_a_gpu_asks_again_only_with_confirmation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = ledger_of(tmp_path, {OTHER: MANY}, **{OTHER: HERE | {"code": "1"}})
    with pytest.raises(ConfigError) as caught:
        require_confirmation(ledger, OWN, HERE, 70, ask_again=False)
    for words in (str(tmp_path), f"{MANY} answers", "code: 1, here 2", "all 70 prompts", "lvlm.ask_again: true"):
        assert words in str(caught.value)
    with caplog.at_level(logging.WARNING):
        require_confirmation(ledger, OWN, HERE, 70, ask_again=True)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("rows", "here", "n_messages"),
    [
        ({OTHER: MANY - 1}, HERE, 1),  # few
        ({OTHER: MANY}, HERE | {"device": "cpu"}, 1),  # cheap
        ({OTHER: MANY, OWN: 1}, HERE, 0),  # this engine has begun before
        ({}, HERE, 0),
    ],
)
def test_else_one_line_says_what_stays_unused(
    rows: dict[str, int], here: dict[str, str], n_messages: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = ledger_of(tmp_path, rows, **{OTHER: HERE | {"code": "1"}})
    with caplog.at_level(logging.WARNING):
        require_confirmation(ledger, OWN, here, 70, ask_again=False)
    assert len(caplog.records) == n_messages
