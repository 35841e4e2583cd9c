"""Read YAML that has one interpretation: plain values only, decimal numbers, unique keys, bounded depth and size.

YAML 1.1 and 1.2 read numbers differently: `010` is 8 or 10, `1:30` is 90 or a text, `1e3` is a text or 1000. Spellings
with another value than they seem to have are errors. The exponent form is a number, as in YAML 1.2 and in JSON.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, NamedTuple

import yaml

from lever_pipe.base.errors import shortened

TAG = "tag:yaml.org,2002:"
PLAIN = {f"{TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map", "merge")}
MAX_DEPTH = 100
MAX_VALUES = 100_000
"""Maximum number of values after aliases are expanded: a few aliases of aliases make billions."""
MAX_DIGITS = 300
DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")
FRACTION = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
EXPONENT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")
OCTAL_OF_YAML_1_2 = re.compile(r"[-+]?0[oO][0-7]+")


class PlainYamlError(ValueError):
    """A text without a single interpretation.

    Attributes:
        expected: the valid form.
        found: the invalid text.
        do: the remedy.
        line: counted from 1.
    """

    def __init__(self, expected: str, *, found: str, do: str, line: int) -> None:
        self.expected, self.found, self.do, self.line = expected, shortened(found), do, line
        super().__init__(f"line {line}: expected {expected}; found {self.found}. {do}")


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """YAML loader; the compiled one is ten times as fast."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put merged mappings below a mapping's own keys, and keep one of equal keys; repeated merges multiply them."""
        super().flatten_mapping(node)
        node.value = list({key.value: (key, value) for key, value in node.value}.values())


# PyYAML follows YAML 1.1, which reads 1e3 as a text.
_Loader.add_implicit_resolver(f"{TAG}float", EXPONENT, list("-+.0123456789"))


class _Extent(NamedTuple):
    """Expanded values below a node, and its levels."""

    values: int
    depth: int


def read(text: str) -> Any:
    """Return the value of a YAML document; None for an empty one.

    Raises:
        PlainYamlError: a text that is not YAML, or has no single interpretation.
    """
    try:
        # First of all: the composer recurses, and deep nesting would exhaust the stack.
        _check_depth(text)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            # Before the construction: expanding malicious aliases would exhaust the memory.
            _check(node, {})
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        found, line = ", ".join(filter(None, (error.context, error.problem))), mark.line + 1 if mark else 1
    except yaml.reader.ReaderError as error:
        found, line = str(error.reason), _line_at(text, error.position)
    except UnicodeEncodeError as error:  # an unpaired surrogate
        found, line = error.reason, _line_at(text, error.start)
    raise PlainYamlError("YAML or JSON", found=found.removeprefix("found "), do="Correct it there.", line=line)


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _check_depth(text: str) -> None:
    """Refuse deep nesting by the parser's events; the parser does not recurse, but the composer does."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _too_deep(event.start_mark.line + 1 if event.start_mark else 1)


def _too_deep(line: int) -> PlainYamlError:
    return PlainYamlError(f"at most {MAX_DEPTH} levels", found="values nested deeper", do="Write fewer.", line=line)


def _check(node: yaml.Node, seen: dict[int, _Extent | None]) -> _Extent:
    """Check a node and all below it once; return its extent with aliases expanded.

    Args:
        node: a node of the document.
        seen: the extents of nodes by their id; None while a node's entries are being checked.
    """
    line = node.start_mark.line + 1
    if id(node) in seen:
        extent = seen[id(node)]
        if extent is None:
            found = "an alias of a value that contains it"
            raise PlainYamlError("values that end", found=found, do="Write the value without the alias.", line=line)
        return extent
    if node.tag not in PLAIN:
        raise _of_tag(node, line)
    seen[id(node)] = None
    parts = [_check(part, seen) for part in _parts(node)]
    extent = _Extent(1 + sum(part.values for part in parts), 1 + max((part.depth for part in parts), default=0))
    if extent.values > MAX_VALUES:
        found = "aliases that expand to more"
        raise PlainYamlError(f"at most {MAX_VALUES} values", found=found, do="Use fewer aliases.", line=line)
    if extent.depth > MAX_DEPTH + 1:
        raise _too_deep(line)
    seen[id(node)] = extent
    return extent


def _parts(node: yaml.Node) -> list[yaml.Node]:
    """Return the nodes in a collection; check the keys of a mapping, and a scalar."""
    if isinstance(node, yaml.MappingNode):
        known: set[str] = set()
        for key, _ in node.value:
            _check_key(key, known)
        return [value for _, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    if isinstance(node, yaml.ScalarNode):
        _check_number(node)
    return []


def _check_key(key: yaml.Node, known: set[str]) -> None:
    line = key.start_mark.line + 1
    if not isinstance(key, yaml.ScalarNode):
        raise PlainYamlError("a text as key", found="a collection", do="Write KEY: VALUE.", line=line)
    if key.tag not in (f"{TAG}str", f"{TAG}merge"):
        do = f"Put it in quotes: '{shortened(key.value)}'."
        raise PlainYamlError("a text as key", found=f"the {_kind(key)} {shortened(key.value)}", do=do, line=line)
    if key.value in known:
        found = f"the key {shortened(repr(key.value))} twice in one mapping"
        raise PlainYamlError("each key once", found=found, do="Remove one of the two.", line=line)
    known.add(key.value)


def _kind(node: yaml.Node) -> str:
    names = {"int": "number", "float": "number", "bool": "truth value", "null": "null", "timestamp": "date"}
    return names.get(node.tag.removeprefix(TAG), "value")


def _of_tag(node: yaml.Node, line: int) -> PlainYamlError:
    """Return the error for a value that has no equivalent in JSON."""
    if node.tag == f"{TAG}timestamp":
        do = f"A text needs quotes: '{node.value}'."
        return PlainYamlError("a number or a text", found=f"the date {node.value}", do=do, line=line)
    if node.tag == f"{TAG}value":
        return PlainYamlError(
            "a number or a text", found=f"a bare {node.value}", do=f"Write '{node.value}'.", line=line
        )
    return PlainYamlError("values without tags", found=f"the tag {node.tag}", do="Remove the tag.", line=line)


def _check_number(node: yaml.ScalarNode) -> None:
    """Refuse a number that is not written in decimal notation."""
    text, line = node.value, node.start_mark.line + 1
    if len(text) > MAX_DIGITS and node.tag in (f"{TAG}int", f"{TAG}float"):
        found, do = f"a number of {len(text)} characters", "Write a shorter one."
        raise PlainYamlError(f"numbers of at most {MAX_DIGITS} digits", found=found, do=do, line=line)
    if reading := _other_reading(node):
        do = (
            f"Write {reading.value}; a text needs quotes: '{text}'." if reading.value else f"Write '{text}' for a text."
        )
        raise PlainYamlError("a decimal number", found=f"{text}, {reading.why}", do=do, line=line)


class _Notation(NamedTuple):
    """A number in another notation than the decimal one: its decimal form, and the reason for the error."""

    value: str
    why: str


def _other_reading(node: yaml.ScalarNode) -> _Notation | None:
    """Return the meaning of a number in another notation than the decimal one; None for a decimal number or a text."""
    text, kind = node.value, node.tag.removeprefix(TAG)
    if kind == "int" and not DECIMAL.fullmatch(text):
        value: float = yaml.SafeLoader("").construct_yaml_int(node)
    elif kind == "float" and not FRACTION.fullmatch(text):
        value = yaml.SafeLoader("").construct_yaml_float(node)
    elif kind == "str" and not node.style:
        return _reading_of_text(text)
    else:
        return None
    return _Notation(str(value), f"which YAML 1.1 reads as {value}")


def _reading_of_text(text: str) -> _Notation | None:
    """Return the reading of an unquoted text that looks like a number."""
    if OCTAL_OF_YAML_1_2.fullmatch(text):
        value = str(int(text, 8))
        return _Notation(value, f"which YAML 1.1 reads as a text and YAML 1.2 as {value}")
    if not re.fullmatch(r"[-+]?[0-9._][0-9._eE+-]*", text):
        return None
    with suppress(ValueError):
        number = float(text)  # 08, 1_0e3: texts in YAML 1.1, but numbers in Python
        value = str(int(text)) if "." not in text and "e" not in text.lower() else str(number)
        return _Notation(value, "which YAML 1.1 reads as a text")
    return None
