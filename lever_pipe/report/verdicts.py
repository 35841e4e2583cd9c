"""The words of verdicts; `resources/locale` translates them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lever_pipe.report.evidence import ALPHA

HOLDS: Final = "holds"
FAILS: Final = "does not hold"
SEPARATED: Final = "separated"
OPEN: Final = "not separated"
UNTESTED: Final = "not tested"
"""No test, because a number is missing or more differs than the named cause."""
UNANSWERED: Final = "not evaluated"
"""Nothing of ours answers the sentence."""
REPRODUCED, NOT_REPRODUCED, WITHOUT_BUG = "reproduced", "not reproduced", "also without the bug"
"""Of a published pattern, with an emulated bug."""
BETTER, WORSE, UNDECIDED = "better", "worse", "undecided"
"""Of a selector of the grid."""
CLASSES: Mapping[str, str] = {
    **dict.fromkeys((HOLDS, SEPARATED, REPRODUCED, BETTER), "yes"),
    **dict.fromkeys((FAILS, WORSE), "no"),
    **dict.fromkeys((OPEN, NOT_REPRODUCED, UNDECIDED), "open"),
    **dict.fromkeys((UNTESTED, UNANSWERED, WITHOUT_BUG), "mute"),
}
"""CSS class of each word: holds, does not hold, undecided, no statement."""
OF_CLAIMS = (HOLDS, FAILS, OPEN, UNTESTED)
"""Verdicts of claims that compare runs."""


def of_p(p: float) -> str:
    """Return whether a p value separates two sides."""
    return SEPARATED if p < ALPHA else OPEN
