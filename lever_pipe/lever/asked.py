"""What an LVLM is asked about a train query, whoever asks; apart from how its reply is scored, which moves no beam."""

from __future__ import annotations

from collections.abc import Sequence

from lever_pipe.base.records import Example, ExampleId
from lever_pipe.lvlms.asking.prompts import Prompter
from lever_pipe.lvlms.protocol import LvlmRequest


def references_of(query: Example) -> tuple[str, ...]:
    """Return the distinct answers whose probability is asked for: the shown one first, then by first mention."""
    return tuple(dict.fromkeys([query.answer, *query.answers]))


def request_of(query: Example, demonstrations: Sequence[ExampleId], prompter: Prompter) -> LvlmRequest:
    """Return the prompt, to be answered, with all references.

    The last bits of a score depend on what is scored beside it, and the ledger keeps what came first: were less asked
    for one purpose than for another, values would depend on the order of jobs.
    """
    return LvlmRequest(prompter(query, demonstrations), references_of(query))
