"""Run cards that are no longer what was judged, or that name no file."""

from __future__ import annotations

import json
from pathlib import Path

import card_tree
import pytest

from lever_pipe.base.contents import Digests
from lever_pipe.runtime.rerun.artefacts import accept, judge, read_artefact

CARD = Path("results/made/run.json")


@pytest.fixture(autouse=True)
def artefact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    card_tree.write("results/read.txt", "read")
    outputs = {"made": ("results/made/made.txt", "made")}
    card_tree.make(str(CARD), "stage", outputs, inputs={"read": "results/read.txt"})


def test_what_somebody_put_there_is_noted() -> None:
    card_tree.write("results/made/made.txt", "somebody's", now=True)
    verdict = judge(read_artefact(CARD), Digests())
    assert (verdict.replaced, verdict.reason) == (("made",), "")
    accept(verdict, Digests())
    assert json.loads(CARD.read_text())["replaced"].keys() == {"made"}


def test_a_card_that_a_job_wrote_meanwhile_stays_as_it_is() -> None:
    card_tree.write("results/made/made.txt", "somebody's", now=True)
    verdict = judge(read_artefact(CARD), Digests())
    later = json.loads(CARD.read_text()) | {"seconds": 77.0}
    CARD.write_text(json.dumps(later))
    accept(verdict, Digests())
    assert json.loads(CARD.read_text()) == later


def test_a_path_that_no_file_can_have_makes_a_card_unreadable() -> None:
    row = json.loads(CARD.read_text())
    row["paths"]["read"] = "results/\0"
    CARD.write_text(json.dumps(row))
    assert judge(read_artefact(CARD), Digests()).reason == f"{CARD} cannot be read"
