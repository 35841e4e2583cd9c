"""The claims file: which sentences are tested, by which computation and rule; the sentence is message `claim.ID`."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from lever_pipe.base.errors import RecordError
from lever_pipe.base.parsing import nearest
from lever_pipe.base.sections import Section
from lever_pipe.report.claims import lever_claims, reward_claims
from lever_pipe.report.claims.verdicts import Measured, RuleName

Computation = Callable[..., Measured]

ID = r"^00[0-4]-[a-z0-9]+(-[a-z0-9]+)*$"


class Claim(Section):
    """One testable sentence of a document."""

    id: str = Field(pattern=ID)
    document: Literal["000", "001", "002", "003", "004"]
    section: str = Field(pattern=r"^[a-z0-9-]+$")
    """Where in the document it stands, as message `claims.place.SECTION` says."""
    computation: str
    """A function of `lever_claims` (documents 000 to 002) or `reward_claims`."""
    arguments: dict[str, Any] = Field({})
    rule: RuleName
    decisive: bool = False
    """Whether it stands on the main page."""
    load: bool = False
    """Whether the load of a machine decides it, so that it counts nowhere."""

    @property
    def is_of_agents(self) -> bool:
        """Return whether it is about study `intention`."""
        return self.document in ("003", "004")

    @property
    def function(self) -> Computation:
        """Return the computation."""
        return computations(self.document)[self.computation]

    @property
    def values(self) -> dict[str, Any]:
        """Return the arguments as the computation's types."""
        return dict(arguments_of(self.function).model_validate(self.arguments))


class ClaimBook(Section):
    """All claims, in the order of the documents."""

    noise_sd: float = Field(gt=0)
    """Standard deviation of one published evaluation of an unchanged policy on tasks of its own."""
    claims: tuple[Claim, ...] = Field(min_length=1)


@cache
def computations(document: str) -> Mapping[str, Computation]:
    """Return the computations for the claims of a document by name: the public functions of their module."""
    module = reward_claims if document in ("003", "004") else lever_claims
    found = inspect.getmembers(module, lambda of: inspect.isfunction(of) and of.__module__ == module.__name__)
    return {name: function for name, function in found if not name.startswith("_")}


@cache
def arguments_of(computation: Computation) -> type[BaseModel]:
    """Return the model of a computation's arguments: its keyword-only parameters, all required."""
    hints = get_type_hints(computation)
    names = [p.name for p in inspect.signature(computation).parameters.values() if p.kind is p.KEYWORD_ONLY]
    fields: dict[str, Any] = {name: (hints[name], ...) for name in names}
    return create_model("Arguments", __config__=ConfigDict(extra="forbid", frozen=True), **fields)


def read_claims(path: Path) -> ClaimBook:
    """Return the claims of a YAML file.

    Raises:
        RecordError: no file, no YAML, or entries that cannot be computed; all of them, each by its id.
    """
    try:
        values: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{path}: expected a file", found="none", do="Restore it.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as fault:
        raise RecordError(f"{path}: expected YAML", found=" ".join(str(fault).split()), do="Mend the file.") from None
    return parse_claims(values, source=str(path))


def parse_claims(values: Any, *, source: str) -> ClaimBook:
    """Return validated claims.

    Raises:
        RecordError: as `read_claims`.
    """
    try:
        book = ClaimBook.model_validate(values)
    except ValidationError as fault:
        lines = [_line(error["loc"], error["msg"], values) for error in fault.errors(include_url=False)]
    else:
        lines = [line for claim in book.claims for line in _faults(claim)] + _repeated(book)
        if not lines:
            return book
    raise RecordError(
        f"{source}: expected claims that can be computed",
        found=f"{len(lines)} fault{'s' * (len(lines) > 1)}",
        do="Mend these entries:\n  " + "\n  ".join(lines),
    )


def _faults(claim: Claim) -> list[str]:
    if not claim.id.startswith(claim.document):
        return [f"{claim.id}: the id must begin with the document, got {claim.document}"]
    known = computations(claim.document)
    if claim.computation not in known:
        near = nearest(claim.computation, known)
        hint = f" (did you mean '{near}'?)" if near else ""
        return [f"{claim.id}: unknown computation '{claim.computation}' for document {claim.document}{hint}"]
    try:
        arguments_of(known[claim.computation]).model_validate(claim.arguments)
    except ValidationError as fault:
        return [f"{claim.id}: {_argument(error['loc'], error['type'], error['msg'])}" for error in fault.errors()]
    return []


def _argument(location: tuple[int | str, ...], kind: str, message: str) -> str:
    name = ".".join(map(str, location))
    if kind == "missing":
        return f"missing argument '{name}'"
    return f"unknown argument '{name}'" if kind == "extra_forbidden" else f"argument '{name}': {message}"


def _repeated(book: ClaimBook) -> list[str]:
    return [f"{name}: the id stands {n} times" for name, n in Counter(c.id for c in book.claims).items() if n > 1]


def _line(location: tuple[int | str, ...], message: str, values: Any) -> str:
    """Return a fault of the file's form, an entry by its id where it has one."""
    path = ".".join(map(str, location))
    match = re.match(r"claims\.(\d+)", path)
    entries = values.get("claims") if isinstance(values, Mapping) else None
    if match and isinstance(entries, list):
        entry = entries[int(match[1])]
        name = entry.get("id", f"entry {match[1]}") if isinstance(entry, Mapping) else f"entry {match[1]}"
        return f"{name}: '{path[match.end() + 1 :] or 'entry'}': {message}"
    return f"{path or 'file'}: {message}"
