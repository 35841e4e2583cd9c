"""Texts in another language: exact entries, and patterns with slots that are translated in turn.

A slot is a letter, with a digit where a pattern has several of its kind:

    {n}  one number, printed as it is
    {t}  any text, translated by the same glossary
    {l}  a list `a`, `a and b` or `a, b and c`, each item translated
    {s}  a series `a; b; c`, each item translated
    {r}  raw text that passes as it is: a name, a file, a label
    {m}  a text or a series that may be such a name: translated where an entry exists

A slot stays within one sentence and holds whole brackets; longer texts are translated sentence by sentence, and
series item by item. Where a slot meets its neighbours, Chinese and Latin letters get a blank between them, and two
Chinese ones none. Numbers never change: an entry whose two sides hold different numbers or slots is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from lever_pipe.base.errors import RecordError
from lever_pipe.report.page.numbers import NUMBER, numbers_in
from lever_pipe.report.page.series import split_outside_brackets

KEYS = ("language", "joints", "passing", "terms", "patterns")
JOINTS = ("and", "comma", "series", "sentence")
SLOT = re.compile(r"\{([ntlsrm])(\d?)\}")
BRACKETS = r"\((?:[^()]|\([^()]*\))*\)"
WHOLE = rf"(?:[^()]|{BRACKETS})+?"
ITEM = rf"(?:[^();]|{BRACKETS})+?"
SLOT_PATTERNS = {
    **dict.fromkeys("ts", WHOLE),
    "l": ITEM,
    "m": rf"{WHOLE}(?<!\.)",
    "r": rf"{ITEM}(?<!\.)",
    "n": rf"[-+−±]?{NUMBER}%?",
}
SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?]\)))\s+")
LETTER = re.compile(r"[^\W\d_]")
LATIN = re.compile(r"[\w`%]", re.ASCII)
CHINESE = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True, slots=True)
class SlottedText:
    """One translation with slots; `source` matches the English text."""

    english: str
    source: re.Pattern[str]
    target: tuple[str, ...]  # texts and slots, in turn
    weight: int  # literal characters: the most specific pattern is tried first


@dataclass(frozen=True, slots=True)
class Glossary:
    """All translations into one language; `passing` matches what is the same in every language."""

    language: str
    joints: Mapping[str, str]
    terms: Mapping[str, str]
    patterns: Sequence[SlottedText]
    passing: re.Pattern[str]
    _known: dict[str, str | None] = field(default_factory=dict)

    def translate(self, text: str) -> tuple[str, list[str]]:
        """Return the translation, and the sentences without an entry; these stay in English."""
        found = self._find(text)
        if found is not None:
            return found, []
        parts = [(part, self._find(part)) for part in SENTENCE_END.split(text)]
        missing = [part for part, known in parts if known is None] or [text]
        return self.joints["sentence"].join(part if known is None else known for part, known in parts), missing

    def _find(self, text: str) -> str | None:
        if text not in self._known:
            self._known[text] = self._look_up(text)
        return self._known[text]

    def _look_up(self, text: str) -> str | None:
        if text in self.terms:
            return self.terms[text]
        if not LETTER.search(text) or self.passing.fullmatch(text):
            return text
        parts = SENTENCE_END.split(text)
        if len(parts) > 1:
            return self._by_sentence(parts)
        items = split_outside_brackets("; ", text)
        found = self._items("series", items) if len(items) > 1 else None
        return self._by_pattern(text) if found is None else found

    def _by_pattern(self, text: str) -> str | None:
        for pattern in self.patterns:
            match = pattern.source.fullmatch(text)
            if match is None:
                continue
            filled = {name: self._slot(name, value) for name, value in match.groupdict().items()}
            if all(value is not None for value in filled.values()):
                return _seamless(str(filled.get(part[1:-1], part)) for part in pattern.target)
        return None

    def _slot(self, name: str, value: str) -> str | None:
        match name[0]:
            case "t":
                return self._find(value)
            case "l":
                return self._list(value)
            case "s":
                return self._items("series", split_outside_brackets("; ", value))
            case "m":
                items = split_outside_brackets("; ", value)
                return self._find(value) or self.joints["series"].join(self._find(item) or item for item in items)
            case _:
                return value

    def _list(self, text: str) -> str | None:
        """Return the items joined as this language joins them; an item may hold an `and` of its own."""
        parts = split_outside_brackets(" and ", text)
        for cut in range(len(parts) - 1, 0, -1):
            items = self._items("comma", split_outside_brackets(", ", " and ".join(parts[:cut])))
            last = self._find(" and ".join(parts[cut:]))
            if items is not None and last is not None:
                return _seamless([items, self.joints["and"], last])
        return self._items("comma", split_outside_brackets(", ", text))

    def _items(self, joint: str, items: Sequence[str]) -> str | None:
        """Return the translated items with the joint between them, or None where one is unknown."""
        known = [self._find(item) for item in items]
        return None if None in known else self.joints[joint].join(map(str, known))

    def _by_sentence(self, parts: Sequence[str]) -> str | None:
        """Return the sentences one by one; where one has no entry, it is tried together with those behind it."""
        if not parts:
            return ""
        for end in range(1, len(parts) + 1):
            whole = " ".join(parts[:end])
            first = self._find(whole) if end == 1 else self.terms.get(whole)
            rest = None if first is None else self._by_sentence(parts[end:])
            if first is not None and rest is not None:
                return self.joints["sentence"].join(filter(None, [first, rest]))
        return None


def _seamless(parts: Iterable[str]) -> str:
    """Return the parts as one text, with one blank where Chinese meets Latin and none within Chinese."""
    text = ""
    for part in parts:
        ends = (text.rstrip()[-1:], part.lstrip()[:1])
        chinese, latin = ([bool(kind.match(end)) for end in ends] for kind in (CHINESE, LATIN))
        if all(chinese):
            text = text.rstrip() + part.lstrip()
        elif any(chinese) and any(latin):
            text = f"{text.rstrip()} {part.lstrip()}"
        else:
            text += part
    return text


def read_glossary(paths: Sequence[Path]) -> Glossary:
    """Return the glossary whose parts stand in several YAML files.

    Raises:
        RecordError: a file is missing or no YAML, an unknown or missing key, a text that stands twice, or entries that
            change a number or a slot; all faults of a file at once.
    """
    return _parse(tuple((str(path), _text(path)) for path in paths))


@lru_cache(maxsize=4)
def _parse(files: tuple[tuple[str, str], ...]) -> Glossary:
    merged: dict[str, Any] = {"joints": {}, "passing": [], "terms": {}, "patterns": {}}
    for source, text in files:
        part = _part(source, text)
        twice = sorted(
            text for name in ("terms", "patterns") for text in merged[name].keys() & part.get(name, {}).keys()
        )
        if twice:
            raise RecordError(f"{source}: expected texts of its own", found=f"{twice} in two files", do="Keep one.")
        merged["language"] = part.get("language", merged.get("language"))
        merged["passing"] += part.get("passing", [])
        for name in ("joints", "terms", "patterns"):
            merged[name] |= part.get(name, {})
    missing = [name for name in JOINTS if name not in merged["joints"]] + ["language"] * (not merged.get("language"))
    if missing:
        names = ", ".join(source for source, _ in files)
        raise RecordError(f"{names}: expected {', '.join(missing)}", found="none", do="Add it to one of the files.")
    patterns = [_pattern(english, target) for english, target in merged["patterns"].items()]
    patterns.sort(key=lambda pattern: (-pattern.weight, pattern.english))
    passing = re.compile("|".join(f"(?:{word})" for word in merged["passing"]))
    return Glossary(merged["language"], merged["joints"], merged["terms"], patterns, passing)


def _part(source: str, text: str) -> dict[str, Any]:
    try:
        values: Any = yaml.load(text, Loader=_Strict)  # noqa: S506 - a SafeLoader that refuses double keys
    except yaml.YAMLError as fault:
        raise RecordError(f"{source}: expected YAML", found=" ".join(str(fault).split()), do="Mend the file.") from None
    if not isinstance(values, dict) or not set(values) <= set(KEYS):
        found = ", ".join(map(str, values)) if isinstance(values, dict) else type(values).__name__
        raise RecordError(f"{source}: expected keys out of {', '.join(KEYS)}", found=found, do="Name each once.")
    kinds = {name: values.get(name) or {} for name in ("terms", "patterns")}
    faults = [fault for name, entries in kinds.items() for entry in entries.items() for fault in _faults(name, *entry)]
    if faults:
        raise RecordError(
            f"{source}: expected translations that keep every number and slot", found="; ".join(faults), do="Mend them."
        )
    return {**values, **kinds}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError) as fault:
        raise RecordError(f"{path}: expected UTF-8 text", found=str(fault), do="Restore the file.") from None


def _pattern(english: str, target: str) -> SlottedText:
    parts: list[str] = []
    seen: set[str] = set()
    end = weight = 0
    for slot in SLOT.finditer(english):
        literal, name = english[end : slot.start()], slot[1] + slot[2]
        parts += [re.escape(literal), f"(?P={name})" if name in seen else f"(?P<{name}>{SLOT_PATTERNS[slot[1]]})"]
        seen.add(name)
        end, weight = slot.end(), weight + len(literal)
    parts.append(re.escape(english[end:]))
    pieces = tuple(filter(None, re.split(r"(\{[ntlsrm]\d?\})", target)))
    return SlottedText(english, re.compile("".join(parts)), pieces, weight + len(english) - end)


def _faults(kind: str, english: object, target: object) -> list[str]:
    """Return what a translation would do to the numbers or slots of its text."""
    if not isinstance(english, str) or not isinstance(target, str):
        return [f"'{english}': both sides must be quoted text"]
    sides = (english, target)
    slots = [sorted(slot[0] for slot in SLOT.finditer(side)) for side in sides]
    literals = [sorted(numbers_in(SLOT.sub(" ", side))) for side in sides]
    faults = [f"'{english}': slots {slots[0]} became {slots[1]}"] if slots[0] != slots[1] else []
    if literals[0] != literals[1]:
        faults.append(f"'{english}': numbers {literals[0]} became {literals[1]}")
    if bool(slots[0]) != (kind == "patterns") or not SLOT.sub("", english):
        faults.append(f"'{english}': a pattern has slots and a text around them, a term has none")
    return faults


class _Strict(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key that stands twice, which YAML readers otherwise resolve in silence."""


def _mapping(loader: _Strict, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        raise yaml.YAMLError(f"keys that stand twice: {', '.join(twice)}")
    return {key: loader.construct_object(value, deep=True) for key, (_, value) in zip(keys, node.value, strict=True)}


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
