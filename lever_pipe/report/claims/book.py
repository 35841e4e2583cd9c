"""The claims file: which sentences are tested, by which computation and rule; the sentence is message `claim.ID`."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from lever_pipe.base.errors import RecordError
from lever_pipe.base.sections import Section, nearest
from lever_pipe.base.storage import read_yaml
from lever_pipe.report.claims import lever_claims, reward_claims
from lever_pipe.report.claims.reward_runs import TRAINING
from lever_pipe.report.claims.verdicts import Part, RuleName

Computation = Callable[..., Iterable[Part]]
OF_AGENTS = ("003", "004")
"""Documents about study `intention`."""


class Claim(Section):
    """One testable sentence of a document."""

    id: str = Field(pattern=r"^00[0-4]-[a-z0-9]+(-[a-z0-9]+)*$")
    """Begins with the document's number."""
    section: str = Field(pattern=r"^[a-z0-9-]+$")
    """Where in the document it stands, as message `claims.place.SECTION` says."""
    computation: str
    """A function of `lever_claims` (documents 000 to 002) or `reward_claims`."""
    arguments: dict[str, Any] = Field({})
    rule: RuleName
    about: tuple[str, ...] | None = None
    """Of two agents: the settings that the sentence is about; with it what else differs between the runs is named."""
    decisive: bool = False
    """Whether it stands on the main page."""
    load: bool = False
    """Whether the load of a machine decides it, so that it counts nowhere."""

    @property
    def document(self) -> str:
        """Return the number of its document."""
        return self.id[:3]

    @property
    def is_of_agents(self) -> bool:
        """Return whether it is about study `intention`."""
        return self.document in OF_AGENTS

    @property
    def measured_in(self) -> str:
        """Return of two agents where its numbers come from, `training` or a decoding; nothing: validation as judged."""
        if self.computation == "overfits_less":
            return "sampled"
        is_trained = self.computation == "response_is_longer" or self.arguments.get("metric") in TRAINING
        return "training" if is_trained else ""

    @property
    def function(self) -> Computation:
        """Return the computation."""
        return computations(self.document)[self.computation]

    @property
    def values(self) -> dict[str, Any]:
        """Return the arguments as the computation's types."""
        return dict(arguments_of(self.function).model_validate(self.arguments))

    @model_validator(mode="after")
    def _can_be_computed(self) -> Claim:
        known = computations(self.document)
        if self.computation not in known:
            near = nearest(self.computation, known)
            hint = f" (did you mean '{near}'?)" if near else ""
            raise ValueError(f"unknown computation '{self.computation}' for document {self.document}{hint}")
        try:
            _ = self.values
        except ValidationError as fault:
            lines = (f"argument '{'.'.join(map(str, e['loc']))}': {e['msg']}" for e in fault.errors())
            raise ValueError("; ".join(lines)) from None
        return self


class ClaimBook(Section):
    """All claims, in the order of the documents."""

    noise_sd: float = Field(gt=0)
    """Standard deviation of one published evaluation of an unchanged policy on tasks of its own."""
    claims: tuple[Claim, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> ClaimBook:
        repeated = [f"{name} ({n} times)" for name, n in Counter(of.id for of in self.claims).items() if n > 1]
        if repeated:
            raise ValueError(f"each id must stand once, got {', '.join(repeated)}")
        return self


@cache
def computations(document: str) -> Mapping[str, Computation]:
    """Return the computations for the claims of a document by name: the public functions of their module."""
    module = reward_claims if document in OF_AGENTS else lever_claims
    found = inspect.getmembers(module, lambda of: inspect.isfunction(of) and of.__module__ == module.__name__)
    return {name: function for name, function in found if not name.startswith("_")}


@cache
def arguments_of(computation: Computation) -> type[BaseModel]:
    """Return the model of a computation's arguments: its keyword-only parameters."""
    hints = get_type_hints(computation)
    of = [p for p in inspect.signature(computation).parameters.values() if p.kind is p.KEYWORD_ONLY]
    fields: dict[str, Any] = {p.name: (hints[p.name], ... if p.default is p.empty else p.default) for p in of}
    return create_model("Arguments", __config__=ConfigDict(extra="forbid", frozen=True), **fields)


def read_claims(path: Path) -> ClaimBook:
    """Return the claims of a YAML file.

    Raises:
        RecordError: no file, no YAML, or entries that cannot be computed; all of them, each by its id.
    """
    values = read_yaml(path, "a file")
    try:
        return ClaimBook.model_validate(values)
    except ValidationError as fault:
        lines = [_line(error["loc"], error["msg"], values) for error in fault.errors(include_url=False)]
        found, do = f"{len(lines)} fault{'s' * (len(lines) > 1)}", "Mend these entries:\n  " + "\n  ".join(lines)
        raise RecordError(f"{path}: expected claims that can be computed", found=found, do=do) from None


def _line(location: tuple[int | str, ...], message: str, values: Any) -> str:
    """Return a fault, of an entry behind its id where it has one."""
    rest, name = location, ""
    if location[:1] == ("claims",) and len(location) > 1:
        _, number, *rest = location  # type: ignore[assignment]
        entry = values["claims"][number]
        name = entry.get("id", f"entry {number}") if isinstance(entry, Mapping) else f"entry {number}"
    where = f"'{'.'.join(map(str, rest))}'" if rest else ""
    return ": ".join(filter(None, (name, where, message.removeprefix("Value error, "))))
