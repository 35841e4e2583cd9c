"""What can be looked at: a gallery of questions with what each policy chose, and dialogues of agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from markupsafe import Markup, escape

from lever_pipe.report.catalogue import Voice
from lever_pipe.report.cells import say

Json: TypeAlias = Mapping[str, Any]
ROLES = ("rce", "grpo", "similarity", "oracle")
RIGHT, PARTLY = 0.999, 1e-9
"""Accuracies from which an answer is right, and above which it is partly so."""


def gallery(shown: Json | None, voice: Voice) -> Markup:
    """Return the questions of `gallery.json`, each with the demonstrations and answer of every policy."""
    if not shown or not shown["questions"]:
        return Markup()
    parts = [f'<section class="gallery" id="gallery"><h3>{_say(voice, "gallery.title")}</h3>']
    parts.append(f'<p>{_say(voice, "gallery.lead")}</p><div class="questions">')
    parts += [_question(entry, shown["images"], voice) for entry in shown["questions"]]
    return Markup("".join([*parts, "</div></section>"]))


def _question(entry: Json, images: Json, voice: Voice) -> str:
    references = ", ".join(str(answer) for answer, _ in entry["references"])
    parts = ['<article class="question">']
    parts.append(f'<header>{_image(images, entry["image"])}<div><p class="asked">{escape(entry["question"])}</p>')
    parts.append(f'<p class="references">{escape(references)}</p></div></header><dl>')
    for role, row in ((role, entry["rows"][role]) for role in ROLES if role in entry["rows"]):
        demonstrations = "".join(_demonstration(one, images) for one in row["demonstrations"])
        parts.append(f"<dt>{_say(voice, f'gallery.{role}')}</dt><dd>{demonstrations}")
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
    parts.append(f'<p>{_say(voice, "dialogues.lead")}</p><div class="tasks">')
    for task in shown["tasks"]:
        hidden = ", ".join(detail["text"] for detail in task["hidden"])
        parts.append(f'<article class="task"><header><p class="asked">{escape(task["request"])}</p>')
        parts.append(f'<p class="references">{_say(voice, "dialogues.hidden", details=hidden)}</p></header>')
        parts.append('<div class="arms">')
        parts += [line for arm, told in task["dialogues"].items() for line in _dialogue(arm, told, task, voice)]
        parts.append("</div></article>")
    return Markup("".join([*parts, "</div></section>"]))


def _dialogue(arm: str, told: Json, task: Json, voice: Voice) -> Iterator[str]:
    reached = {"reward": f"{told['reward']:g}", "ceiling": f"{task['ceiling']:g}"}
    yield f'<div><p class="arm"><code>{escape(arm)}</code> {_say(voice, "dialogues.reached", **reached)}</p><ol>'
    for turn in told["turns"]:
        said = "; ".join(str(call["content"]) for call in turn["calls"]) or turn["said"]
        reply = f' <span class="{"yes" if turn["uncovered"] else "mute"}">{escape(turn["reply"])}</span>'
        yield f"<li>{escape(said)}{reply if turn['reply'] else ''}</li>"
    yield "</ol></div>"


def _say(voice: Voice, message: str, **args: Any) -> str:
    return str(voice.html(say(message, **args)))
