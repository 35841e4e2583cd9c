"""What a ledger holds of another engine is told and left alone; a GPU does not answer it again unasked."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lever_pipe.base.errors import ConfigError
from lever_pipe.lvlms.asking.ledger import MANY, Ledger, introduce, require_consent

OWN, OTHER, THIRD = "a" * 16, "b" * 16, "c" * 16
HERE = {"weights": "w", "device": "cuda", "numerics": "", "code": "2"}


def ledger_of(folder: Path, rows: dict[str, int], **identities: dict[str, str]) -> Ledger:
    with Ledger(folder) as ledger:
        for engine, count in rows.items():
            for number in range(count):
                ledger.put(f"{engine}{number:048x}", {"text": "red", "tokens": [1]})
    for engine, identity in identities.items():
        introduce(folder, engine, identity)
    return Ledger(folder)


def test_a_gpu_asks_again_only_with_consent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = ledger_of(tmp_path, {OTHER: MANY}, **{OTHER: HERE | {"code": "1"}})
    with pytest.raises(ConfigError) as caught:
        require_consent(ledger, OWN, HERE, 70, ask_again=False)
    for words in (str(tmp_path), f"{MANY} answers", "code: 1, here 2", "all 70 prompts", "lvlm.ask_again: true"):
        assert words in str(caught.value)
    with caplog.at_level(logging.WARNING):
        require_consent(ledger, OWN, HERE, 70, ask_again=True)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("rows", "here", "told"),
    [
        ({OTHER: MANY - 1}, HERE, 1),  # few
        ({OTHER: MANY}, HERE | {"device": "cpu"}, 1),  # cheap
        ({OTHER: MANY, OWN: 1}, HERE, 0),  # this engine has begun before
        ({}, HERE, 0),
    ],
)
def test_else_one_line_says_what_stays_unused(
    rows: dict[str, int], here: dict[str, str], told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = ledger_of(tmp_path, rows, **{OTHER: HERE | {"code": "1"}})
    with caplog.at_level(logging.WARNING):
        require_consent(ledger, OWN, here, 70, ask_again=False)
    assert len(caplog.records) == told


def test_another_models_answers_are_no_matter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = ledger_of(tmp_path, {OTHER: MANY}, **{OTHER: HERE | {"weights": "of another"}})
    with caplog.at_level(logging.WARNING):
        require_consent(ledger, OWN, HERE, 70, ask_again=False)
    assert not caplog.records


def test_answers_of_earlier_keys_count_since_nobody_knows_whose_they_are(tmp_path: Path) -> None:
    keys = [f"{number * 7919:064x}"[::-1] for number in range(1, MANY + 1)]  # they begin with no engine's digest
    with Ledger(tmp_path) as ledger:
        for key in keys:
            ledger.put(key, {"text": "red", "tokens": [1]})
    with pytest.raises(ConfigError, match="nothing tells which engine"):
        require_consent(Ledger(tmp_path), OWN, HERE, 70, ask_again=False)


def test_a_damaged_description_hides_nothing(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, {OTHER: MANY}, **{OTHER: HERE})
    (tmp_path / f"engine-{OTHER}.json").write_text("{")
    with pytest.raises(ConfigError):
        require_consent(ledger, OWN, HERE, 70, ask_again=False)
