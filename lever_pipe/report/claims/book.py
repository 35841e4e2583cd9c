"""The claims file: which sentences are tested, by which computation and rule; the sentence is message `claim.ID`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from lever_pipe.base.errors import RecordError
from lever_pipe.base.sections import Section, did_you_mean
from lever_pipe.base.storage import read_yaml
from lever_pipe.report.claims import agents, lever
from lever_pipe.report.claims.verdicts import Part, RuleName

OF_AGENTS = ("003", "004")
"""Documents about study `intention`."""


class Claim(Section):
    """One testable sentence of a document."""

    id: str = Field(pattern=r"^00[0-4]-[a-z0-9]+(-[a-z0-9]+)*$")
    """Begins with the document's number."""
    section: str = Field(pattern=r"^[a-z0-9-]+$")
    """Where in the document it stands, as message `claims.place.SECTION` says."""
    computation: str
    """A function of `lever` (documents 000 to 002) or `agents`."""
    arguments: dict[str, Any] = Field({})
    rule: RuleName
    about: tuple[str, ...] | None = None
    """Of two agents: the settings that the sentence is about; with it what else differs between the runs is named."""
    decisive: bool = False
    """Whether it stands on the main page."""

    @property
    def document(self) -> str:
        """Return the number of its document."""
        return self.id[:3]

    @property
    def is_of_agents(self) -> bool:
        """Return whether it is about study `intention`."""
        return self.document in OF_AGENTS

    @property
    def function(self) -> Callable[..., Iterable[Part]]:
        """Return the computation."""
        module = agents if self.is_of_agents else lever
        known = {name: of for name, of in vars(module).items() if getattr(of, "__module__", "") == module.__name__}
        if self.computation not in known:
            do = did_you_mean(self.computation, known, f"Name a function of {module.__name__}.")
            raise ValueError(f"unknown computation '{self.computation}' for document {self.document}. {do}")
        return known[self.computation]  # type: ignore[no-any-return]

    @model_validator(mode="after")
    def _can_be_computed(self) -> Claim:
        try:
            inspect.signature(self.function).bind(None, **self.arguments)
        except TypeError as fault:
            raise ValueError(f"computation '{self.computation}': {fault}") from None
        return self


class ClaimBook(Section):
    """All claims, in the order of the documents."""

    noise_sd: float = Field(gt=0)
    """Standard deviation of one published evaluation of an unchanged policy on tasks of its own."""
    claims: tuple[Claim, ...] = Field(min_length=1)


def read_claims(path: Path) -> ClaimBook:
    """Return the claims of a YAML file.

    Raises:
        RecordError: no file, no YAML, or entries that cannot be computed.
    """
    try:
        return ClaimBook.model_validate(read_yaml(path, "a file"))
    except ValidationError as fault:
        wanted = f"{path}: expected claims that can be computed"
        raise RecordError(wanted, found=str(fault), do="Correct these entries.") from None
