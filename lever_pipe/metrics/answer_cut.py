"""Where the answer ends in a generation that runs on.

A module of its own: answers depend on it, and must not depend on how they are scored.
"""

from __future__ import annotations

import re

_CUT_MARKS = re.compile("Question|Answer|Short")


def cut_answer(text: str) -> str:
    """Return the answer proper of a generation that runs on, stripped of outer spaces.

    Everything before the first "Question", "Answer" or "Short" (case matters: the words of the
    prompt template), and of that everything before the first comma followed by a space.

    Args:
        text: what the model generated after "Short answer:".

    Source: Lever-Plus published code
    """
    before_mark = _CUT_MARKS.split(text, maxsplit=1)[0]
    return before_mark.split(", ", maxsplit=1)[0].strip()
