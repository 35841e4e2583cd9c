"""Both catalogues hold the same messages with the same arguments."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from lever_pipe.report.catalogue import SLOT, read_catalogue
from lever_pipe.report.claims import read_claims

MESSAGES, CLAIMS = Path("resources/messages"), Path("resources/claims.yaml")


@cache
def catalogue(language: str) -> dict[str, str]:
    texts = read_catalogue(sorted((MESSAGES / language).glob("*.yaml")))
    return texts | ({f"claim.{claim.id}": claim.quote for claim in read_claims(CLAIMS)} if language == "en" else {})


def slots_of(text: str) -> set[str]:
    return {match["name"] for match in SLOT.finditer(text)}


def test_both_languages_say_the_same_messages_with_the_same_arguments() -> None:
    english, chinese = catalogue("en"), catalogue("zh")
    assert english.keys() == chinese.keys()
    assert {name: slots_of(text) for name, text in english.items()} == {
        name: slots_of(text) for name, text in chinese.items()
    }


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_text_has_no_stray_brace(language: str) -> None:
    assert not [
        name for name, text in catalogue(language).items() if "{" in re.sub(r"\{\w+(?::[^{}|]*\|[^{}|]*)?\}", "", text)
    ]
