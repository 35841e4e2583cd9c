"""Check if a chat template writes a system text, or adds its own; without a model library, so that every run can."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn, Self

from lever_pipe.base.errors import shortened
from lever_pipe.base.model_folders import TODAY
from lever_pipe.base.storage import strict_json, text_in

Messages = Sequence[Mapping[str, Any]]

_CONTROL = re.compile(r"<[^<>]*>|\[/?\w+\]")
"""Tokens such as <|im_start|>, <bos> and [INST]."""
_ASKED, _SAID, _ASKED_AGAIN = "a question", "an answer", "another question"


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template and the special tokens that it may use, by variable."""

    text: str
    specials: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, folder: Path, name: str = "default") -> Self | None:
        """Return the template of a model folder, searched in the model library's order, or None.

        Args:
            folder: model folder.
            name: name of one of several templates in a file; the first template is the fallback.
        """
        settings = _json(folder / "tokenizer_config.json")
        own = folder / "chat_template.jinja"
        found = text_in(own.read_bytes()) if own.is_file() else settings.get("chat_template")
        if isinstance(found, list):
            named = {str(each.get("name")): each.get("template") for each in found if isinstance(each, dict)}
            found = named.get(name, next(iter(named.values()), None))
        if found is None:
            found = _json(folder / "chat_template.json").get("chat_template")
        return cls(found, tuple(_specials(settings))) if isinstance(found, str) else None

    def render(self, messages: Messages, **variables: Any) -> str:
        """Return the messages in the template's format, up to the next answer.

        Raises:
            Exception: of any class, because templates can raise all of Python's exceptions.
        """
        named = {"add_generation_prompt": True, **dict(self.specials), **variables}
        return str(_compiled(self.text).render(messages=list(messages), **named))

    def problem_of_system(self, system: str | None) -> str:
        """Return the problem of the template with the system text of an image question, or an empty text.

        Args:
            system: a text; empty if no system turn is wanted and the template must not add one; None for its default.
        """
        return _problem_of_system(self, system)

    def problem_of_text(self, messages: Messages, **variables: Any) -> str:
        """Return the problem of the template with the first message (a system turn), or an empty text."""
        try:
            self.render(messages[1:], **variables)
        except Exception:  # noqa: BLE001 - the system turn is not the cause: other checks name the problem
            return ""
        try:
            written = self.render(messages, **variables)
        except Exception as error:  # noqa: BLE001 - a refusal is any exception
            return f"one that refuses a system turn ({shortened(str(error) or type(error).__name__)})"
        content = messages[0]["content"]
        system = content if isinstance(content, str) else content[0]["text"]
        return "" if system.strip() in written else "one that leaves the system text out"


@lru_cache(maxsize=256)
def _problem_of_system(template: ChatTemplate, system: str | None) -> str:
    messages = [{"role": "user", "content": [{"type": "image"}, *_words(_ASKED)]}]
    if system:
        return template.problem_of_text([{"role": "system", "content": _words(system)}, *messages])
    return _added_text(template) if system == "" else ""


def _added_text(template: ChatTemplate) -> str:
    """Return the problem of a template that writes words before the first user turn only."""
    turns = (("user", _ASKED), ("assistant", _SAID), ("user", _ASKED_AGAIN))
    try:
        written = template.render([{"role": role, "content": _words(text)} for role, text in turns])
    except Exception:  # noqa: BLE001 - other checks name templates that cannot render this
        return ""
    before, _, rest = written.partition(_ASKED)
    between = rest.partition(_SAID)[2].partition(_ASKED_AGAIN)[0]
    # Both texts end with the header of a user turn. Compared from the end, the rest of the first is a system text.
    first, second = (_CONTROL.sub("\0", text)[::-1] for text in (before, between))
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    added = " ".join(re.findall(r"\w+", first[alike:][::-1]))
    return f"one that adds its own ({shortened(added)})" if added else ""


def _words(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _specials(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        token = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(token, str):
            yield name, token


def _json(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        value = strict_json(path.read_bytes())
        return value if isinstance(value, dict) else {}
    return {}


@lru_cache(maxsize=16)
def _compiled(text: str) -> Any:
    """Return a compiled template with the filters and functions of the model library."""
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": TODAY.strftime}
    # The library's `generation` tags mark text for training; plain Jinja does not support them.
    return environment.from_string(re.sub(r"\{%-?\s*(?:end)?generation\s*-?%\}", "", text))


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes HTML characters, which would change prompts.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
