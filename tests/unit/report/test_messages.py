"""Both catalogues hold the same messages with the same arguments, and code uses exactly these."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lever_pipe.report.catalogue import read_catalogue, slots_of

MESSAGES = Path("resources/messages")


def catalogue(language: str) -> dict[str, str]:
    return read_catalogue(sorted((MESSAGES / language).glob("*.yaml")))


def test_both_languages_say_the_same_messages_with_the_same_arguments() -> None:
    english, chinese = catalogue("en"), catalogue("zh")
    assert english.keys() == chinese.keys()
    assert {name: slots_of(text) for name, text in english.items()} == {
        name: slots_of(text) for name, text in chinese.items()
    }


def test_a_chinese_sentence_holds_chinese_unless_it_is_only_names() -> None:
    english, chinese = catalogue("en"), catalogue("zh")
    untranslated = [
        name
        for name, text in chinese.items()
        if text == english[name] and len(re.sub(r"[^a-z ]", "", re.sub(r"\{\w+\}|`[^`]*`", "", text)).split()) > 2
    ]
    assert not untranslated


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_text_has_no_stray_brace(language: str) -> None:
    assert not [
        name for name, text in catalogue(language).items() if "{" in re.sub(r"\{\w+(?::[^{}|]*\|[^{}|]*)?\}", "", text)
    ]
