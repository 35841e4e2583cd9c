"""What can be looked at: a gallery of questions with what each policy chose, and dialogues of agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from markupsafe import Markup, escape

from lever_pipe.report.catalogue import Voice
from lever_pipe.report.cells import Name, say

Json: TypeAlias = Mapping[str, Any]
RIGHT, PARTLY = 0.999, 1e-9
"""Accuracies from which an answer is right, and above which it is partly so."""


def gallery(shown: Json | None, voice: Voice) -> Markup:
    """Return the questions of `gallery.json`, each with the demonstrations and answer of every policy."""
    if not shown or not shown["questions"]:
        return Markup()
    parts = [f'<section class="gallery" id="gallery"><h3>{_say(voice, "gallery.title")}</h3>']
    parts.append(f"<p>{_say(voice, 'gallery.lead')}</p><div class=\"questions\">")
    parts += [_question(entry, shown["images"], voice) for entry in shown["questions"]]
    return Markup("".join([*parts, "</div></section>"]))


def _question(entry: Json, images: Json, voice: Voice) -> str:
    references = ", ".join(str(answer) for answer, _ in entry["references"])
    parts = ['<article class="question">']
    parts.append(f'<header>{_image(images, entry["image"])}<div><p class="asked">{escape(entry["question"])}</p>')
    parts.append(f'<p class="references">{escape(references)}</p></div></header><dl>')
    for role, row in entry["rows"].items():
        demonstrations = "".join(_demonstration(one, images) for one in row["demonstrations"])
        parts.append(f'<dt>{_say(voice, f"gallery.{role}")}</dt><dd>{demonstrations}')
        parts.append(f'<span class="said {_look(row["accuracy"])}">{escape(row["answer"])}</span></dd>')
    return "".join([*parts, "</dl></article>"])


def _demonstration(one: Json, images: Json) -> str:
    return f'<span class="shown">{_image(images, one["image"], one["question"])}{escape(one["answer"])}</span>'


def _image(images: Json, name: str, title: str = "") -> str:
    said = f' title="{escape(title)}"' if title else ""
    return f'<img src="{escape(images[name])}" alt="" width="40" height="40"{said}>' if name in images else ""


def _look(accuracy: float) -> str:
    return "yes" if accuracy > RIGHT else "open" if accuracy > PARTLY else "no"


def dialogues(shown: Json | None, voice: Voice) -> Markup:
    """Return the dialogues of `dialogues.json`: of each task one of every arm, side by side."""
    if not shown or not shown["tasks"]:
        return Markup()
    parts = [f'<section class="dialogues" id="dialogues"><h3>{_say(voice, "dialogues.title")}</h3>']
    parts.append(f"<p>{_say(voice, 'dialogues.lead')}</p>")
    for task in shown["tasks"]:
        parts.append('<div class="task">')
        parts += [line for arm, told in task["arms"].items() for line in _dialogue(arm, told, voice)]
        parts.append("</div>")
    return Markup("".join([*parts, "</section>"]))


def _dialogue(arm: str, told: Json, voice: Voice) -> Iterator[str]:
    yield f"<article><h4><code>{escape(arm)}</code></h4>"
    yield f'<p class="request">{escape(told["request"])}</p>'
    for turn in told["turns"]:
        calls = "; ".join(str(call["content"]) for call in turn["calls"])
        look = "yes" if turn["reward"] > 0 else "open"
        yield f'<p class="agent">{escape(calls or turn["said"])}</p>'
        if turn["reply"]:
            yield f'<p class="user {look}">{escape(turn["reply"])}</p>'
    yield f'<p class="end">{_say(voice, "dialogues.end", end=Name(str(told["end"])))}</p></article>'


def _say(voice: Voice, message: str, **args: Any) -> str:
    return str(voice.html(say(message, **args)))
