"""What the page says, place by place: every text goes through here once for each time that it is printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lever_pipe.report.page.glossary import Glossary


@dataclass(frozen=True, slots=True)
class Voice:
    """Speaks the page's language, and remembers the English texts of every place and those without a translation."""

    glossary: Glossary | None
    spoken: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)

    @property
    def language(self) -> str:
        """Return the language as HTML names it."""
        return "en" if self.glossary is None else self.glossary.language

    def at(self, place: str, *, is_given: bool = False) -> Callable[[str], str]:
        """Return what speaks one text at a place; a given text, as a title, may well have no translation."""
        texts = self.spoken.setdefault(place, [])

        def say(text: str) -> str:
            texts.append(text)
            if self.glossary is None:
                return text
            translated, missing = self.glossary.translate(text)
            self.missing.update(dict.fromkeys([] if is_given else missing))
            return translated

        return say
