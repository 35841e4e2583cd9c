from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import claim_files
import pytest
import yaml

from lever_pipe.base.errors import RecordError
from lever_pipe.report.catalogue import read_catalogue
from lever_pipe.report.claims.book import read_claims

VALUES = yaml.safe_load(claim_files.CLAIMS.read_text(encoding="utf-8"))


def test_the_file_holds_few_claims_of_every_document_each_once() -> None:
    claims = claim_files.book().claims
    assert len({claim.id for claim in claims}) == len(claims) <= 40
    assert [claim.document for claim in claims] == sorted(claim.document for claim in claims)
    decisive = [claim for claim in claims if claim.decisive]
    assert len(decisive) == 10
    assert {claim.document for claim in decisive} == {"000", "001", "002", "003", "004"}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_claim_is_a_sentence_of_its_own_in_a_section(language: str) -> None:
    texts = read_catalogue([claim_files.RESOURCES / "messages" / language / "claims.yaml"])
    claims = claim_files.book().claims
    assert {name for name in texts if name.startswith("claim.")} == {f"claim.{claim.id}" for claim in claims}
    assert {name for name in texts if name.startswith("claims.place.")} == {f"claims.place.{c.section}" for c in claims}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"computation": "curve_fall"},
            "unknown computation 'curve_fall' for document 000. Did you mean 'curve_falls'?",
        ),
        ({"computation": "changes_less"}, "unknown computation 'changes_less' for document 000"),  # of agents
        ({"arguments": {"metric": "kl"}}, "missing a required argument: 'betas'"),
        ({"arguments": {"metric": "kl", "betas": [0.1], "middle": 1}}, "got an unexpected keyword argument 'middle'"),
        ({"rule": "guess"}, "claims.0.rule"),
        ({"note": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_an_entry_that_cannot_be_computed_is_refused(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    values = copy.deepcopy(VALUES)
    values["claims"][0].update(changes)
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(RecordError, match="expected claims that can be computed") as refusal:
        read_claims(path)
    assert fault in str(refusal.value)
