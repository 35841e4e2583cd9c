from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import claim_files
import pytest
import yaml
from pydantic import ValidationError

from lever_pipe.base.errors import RecordError
from lever_pipe.report.catalogue import read_catalogue
from lever_pipe.report.claims.book import computations, read_claims
from lever_pipe.report.claims.verdicts import VERDICTS

VALUES = yaml.safe_load(claim_files.CLAIMS.read_text(encoding="utf-8"))
FIRST = "000-kl-differences"


def with_first(**changes: Any) -> dict[str, Any]:
    values = copy.deepcopy(VALUES)
    values["claims"][0].update(changes)
    return values


def fault_of(values: Any) -> str:
    with TemporaryDirectory() as folder, pytest.raises(RecordError) as fault:
        path = Path(folder, "claims.yaml")
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        read_claims(path)
    assert "expected claims that can be computed; found" in str(fault.value)
    assert "Mend these entries" in str(fault.value)
    return str(fault.value)


def test_the_file_covers_every_document() -> None:
    book = read_claims(claim_files.CLAIMS)
    assert len(book.claims) >= 100
    counts = {name: sum(c.document == name for c in book.claims) for name in ("000", "001", "002", "003", "004")}
    assert min(counts.values()) >= 15
    assert [c.document for c in book.claims] == sorted(c.document for c in book.claims)
    assert {c.rule for c in book.claims} == {"identity", "fact", "order", "noise", "sameness", "cause"}


def test_the_file_holds_no_verdict() -> None:
    entries = yaml.safe_dump(VALUES["claims"])
    for verdict in (*VERDICTS, "verdict"):
        assert verdict not in entries.lower(), verdict


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_claim_is_a_sentence_of_its_own_in_a_section(language: str) -> None:
    texts = read_catalogue([claim_files.RESOURCES / "messages" / language / "claims.yaml"])
    claims = claim_files.book().claims
    assert {name for name in texts if name.startswith("claim.")} == {f"claim.{claim.id}" for claim in claims}
    assert {name for name in texts if name.startswith("claims.place.")} == {f"claims.place.{c.section}" for c in claims}
    for claim in claims:
        assert len(texts[f"claim.{claim.id}"]) <= 125, claim.id
        assert texts[f"claim.{claim.id}"][-1] in ".。"


def test_ten_claims_stand_on_the_main_page() -> None:
    decisive = [claim for claim in claim_files.book().claims if claim.decisive]
    assert len(decisive) == 10
    assert {claim.document for claim in decisive} == {"000", "001", "002", "003", "004"}
    assert not any(claim.load for claim in decisive)


def test_every_computation_is_used() -> None:
    named = {claim["computation"] for claim in VALUES["claims"]}
    assert named == set(computations("000")) | set(computations("003"))


def test_a_claim_is_frozen() -> None:
    claim = claim_files.book().claims[0]
    with pytest.raises(ValidationError, match="frozen"):
        claim.rule = "order"  # type: ignore[misc]


def test_arguments_become_the_computations_types() -> None:
    by_id = {claim.id: claim for claim in claim_files.book().claims}
    assert by_id["000-kl-changes"].values["claimed"] == {0.12: "-32.24", 0.15: "-32.01"}
    assert by_id["001-identity-epoch-1"].values["betas"] == (0.12, 0.145, 0.155, 0.18)


def test_an_unknown_computation_is_named_with_the_nearest() -> None:
    text = fault_of(with_first(computation="curve_difference_are"))
    assert f"{FIRST}: unknown computation" in text
    assert "did you mean 'curve_differences_are'?" in text


def test_a_computation_of_the_other_study_is_unknown() -> None:
    text = fault_of(with_first(computation="best_is", arguments={"run": "kl", "claimed": "1"}))
    assert "unknown computation 'best_is' for document 000" in text


def test_missing_unknown_and_mistyped_arguments_are_named() -> None:
    text = fault_of(with_first(arguments={"metric": "kl", "left": "often", "claimed": {"mean": "1"}, "middle": 1}))
    assert "argument 'right': Field required" in text
    assert "argument 'middle': Extra inputs are not permitted" in text
    assert "argument 'left': Input should be a valid number" in text
    assert text.count(FIRST) == 1


def test_a_claimed_number_must_be_quoted() -> None:
    # unquoted, 0.10 would lose the decimal that says how it is rounded
    arguments = {**VALUES["claims"][0]["arguments"], "claimed": {"mean": 0.10}}
    text = fault_of(with_first(arguments=arguments))
    assert FIRST in text and "argument 'claimed.mean': Input should be a valid string" in text


def test_a_repeated_id_is_named() -> None:
    values = copy.deepcopy(VALUES)
    values["claims"].append(copy.deepcopy(values["claims"][0]))
    assert f"each id must stand once, got {FIRST} (2 times)" in fault_of(values)


def test_form_faults_are_named_by_entry() -> None:
    text = fault_of(with_first(rule="guess", note="x"))
    assert f"{FIRST}: 'rule':" in text
    assert f"{FIRST}: 'note': Extra inputs are not permitted" in text
    values = copy.deepcopy(VALUES)
    del values["claims"][2]["section"]
    assert f"{values['claims'][2]['id']}: 'section': Field required" in fault_of(values)
    values["claims"][2] = "text"
    assert "entry 2: Input should be" in fault_of(values)


def test_all_faults_are_named_at_once() -> None:
    values = with_first(computation="no.such")
    values["claims"][1]["arguments"] = {}
    text = fault_of(values)
    assert "found 2 faults" in text
    assert f"{FIRST}: unknown computation" in text
    assert "000-kl-changes: argument 'metric': Field required" in text


@pytest.mark.parametrize("values", [None, [], {"claims": []}, {"claims": VALUES["claims"]}])
def test_another_form_is_refused(values: Any) -> None:
    assert "fault" in fault_of(values)


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"expected a file; found none\. Restore it"):
        read_claims(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("claims: [", encoding="utf-8")
    with pytest.raises(RecordError, match="expected YAML"):
        read_claims(broken)
