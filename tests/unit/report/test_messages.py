"""Both catalogues hold the same messages with the same arguments, and code uses exactly these."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from lever_pipe.report.catalogue import SLOT, read_catalogue

MESSAGES = Path("resources/messages")


@cache
def catalogue(language: str) -> dict[str, str]:
    return read_catalogue(sorted((MESSAGES / language).glob("*.yaml")))


def slots_of(text: str) -> set[str]:
    return {match["name"] for match in SLOT.finditer(text)}


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


CODE = Path("lever_pipe")
ROOMS = (CODE / "report", CODE / "stages")
"""Where messages are made."""
DECLARED = (*Path("resources/tables").glob("*.yaml"), Path("resources/reference/lineage.yaml"))
SAYS = frozenset(("say", "_say", "Message", "Verdict"))
"""Calls whose first argument is an id."""
SAID = re.compile(r"""\b(?:say|words|message)\(["']([\w.-]+)["'][,)]""")
JOINED = re.compile(r"""\b(?:words|message)\("([\w.-]+\.)" ~ \w+(?: ~ "([\w.-]+)")?\)""")
"""The same in a template, and ids that it puts together."""
ID = re.compile(r"[a-z][\w-]*(\.[\w-]+)+")
WORD = re.compile(r"[A-Za-z0-9]+")


@cache
def nodes() -> list[ast.AST]:
    """Return the nodes of the code that makes messages, without docstrings and the parts of f-strings."""
    trees = (ast.parse(read(path)) for room in ROOMS for path in sorted(room.rglob("*.py")))
    return [
        each for tree in trees for node in ast.walk(tree) if not _is_text(node) for each in ast.iter_child_nodes(node)
    ]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def leaves(value: object) -> Iterator[str]:
    """Yield the texts in nested values."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    elif isinstance(value, str):
        yield value


def texts() -> set[str]:
    """Return every text of the code, what templates say, and the values of declared tables and lineages."""
    found = {node.value for node in nodes() if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found |= {name for path in CODE.rglob("*.j2") for name in SAID.findall(read(path))}
    return found | {text for path in DECLARED for text in leaves(yaml.safe_load(read(path)))}


@cache
def areas() -> set[str]:
    return {name.partition(".")[0] for name in catalogue("en")}


def patterns() -> set[str]:
    """Return the f-strings that begin as a message's id does, as patterns with a group for each hole."""
    parts = (node.values for node in nodes() if isinstance(node, ast.JoinedStr))
    made = {"".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else "(.+?)" for p in of) for of in parts}
    joined = (JOINED.findall(read(path)) for path in CODE.rglob("*.j2"))
    made |= {f"{re.escape(start)}(.+?){re.escape(end)}" for of in joined for start, end in of}
    return {pattern for pattern in made if pattern.partition("\\.")[0] in areas()}


def test_every_message_is_said_somewhere() -> None:
    """A message whose id is put together must fill it with words that stand in code, claims or configuration."""
    files = [*CODE.rglob("*.py"), Path("resources/claims.yaml"), Path("config.yaml")]
    words = {word for path in files for word in WORD.findall(read(path))}

    def is_made(pattern: str, name: str) -> bool:
        found = re.fullmatch(pattern, name)
        return found is not None and all(word in words for hole in found.groups() for word in WORD.findall(hole))

    said, made = texts(), patterns()
    assert not [n for n in catalogue("en") if n not in said and not any(is_made(pattern, n) for pattern in made)]


def test_every_message_that_is_said_exists() -> None:
    """Whatever has the shape of an id in a known area is one, and so is the first argument of every call that says."""
    firsts = (node.args[0] for node in nodes() if isinstance(node, ast.Call) and _name(node.func) in SAYS and node.args)
    asked = {each.value for each in firsts if isinstance(each, ast.Constant)}
    known = catalogue("en")
    asked |= {text for text in texts() if ID.fullmatch(text) and text.partition(".")[0] in areas()}
    assert not asked - known.keys()
    assert not [pattern for pattern in patterns() if not any(re.fullmatch(pattern, name) for name in known)]


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
