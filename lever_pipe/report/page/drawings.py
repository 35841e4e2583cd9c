"""Figures inline: an SVG file as markup that follows the page's colours, language and names.

Every look becomes an attribute or a class, because the page's security policy forbids inline styles and because a
class can change with light and dark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from xml.etree import ElementTree

from markupsafe import Markup, escape

from lever_pipe.base.errors import RecordError

SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}"
KEPT = {"svg", "g", "path", "use", "defs", "clipPath", "rect", "circle", "line", "text", "tspan", "image"}
"""Elements that matplotlib draws with; metadata and style sheets are left out, anything else is refused."""
DROPPED = {"metadata", "style", "title", "desc"}
COLOURS = {
    "#000000": "ink",
    "black": "ink",
    "#ffffff": "paper",
    "white": "paper",
    "#e2e2e2": "grid",
    "#6e6e6e": "grey",
    "#0072b2": "c1",
    "#d55e00": "c2",
    "#009e73": "c3",
    "#cc79a7": "c4",
    "#e69f00": "c5",
    "#56b4e9": "c6",
    "#f0e442": "c7",
}
"""Colours of the figures by the name that the style sheet gives them, in light and in dark."""
REFERENCE = re.compile(r"#([\w-]+)")
FRACTION = re.compile(r"\d+\.\d{3,}")
ROUNDED = {"d", "x", "y", "width", "height", "transform"}
IGNORED = {"font-family", "font", "id", "style", "href", "version", "stroke-linejoin"}

Say = Callable[[str], str]


def texts_of(svg: str, *, source: str) -> list[str]:
    """Return every text that a figure shows, in drawing order.

    Raises:
        RecordError: the file is no SVG.
    """
    return [text for element in _parse(svg, source).iter(f"{SVG}text") for text in element.itertext() if text.strip()]


def inline(svg: str, *, source: str, name: str, title: str, description: str, say: Say) -> Markup:
    """Return a figure as inline SVG, its texts through `say`.

    Its ids begin with `name`, so that two figures on a page share none; `title` and `description` are for readers who
    do not see it.

    Raises:
        RecordError: the file is no SVG, or holds an element that a figure does not need.
    """
    root = _parse(svg, source)
    used = {found for element in root.iter() for value in element.attrib.values() for found in REFERENCE.findall(value)}
    inner = "".join(_write(child, name, used, say, source) for child in root)
    labels = f'<title id="{escape(name)}--title">{escape(title)}</title>'
    labels += f'<desc id="{escape(name)}--desc">{escape(description)}</desc>'
    head = f'<svg class="plot" viewBox="{escape(root.get("viewBox", ""))}" role="img"'
    head += f' aria-labelledby="{escape(name)}--title {escape(name)}--desc">'
    return Markup(f"{head}{labels}{inner}</svg>")


def _parse(svg: str, source: str) -> ElementTree.Element:
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as fault:
        raise RecordError(f"{source}: expected SVG", found=str(fault), do="Run plot_curves again.") from None
    if root.tag != f"{SVG}svg" or not root.get("viewBox"):
        raise RecordError(f"{source}: expected SVG with a viewBox", found=root.tag, do="Run plot_curves again.")
    return root


def _write(element: ElementTree.Element, name: str, used: set[str], say: Say, source: str) -> str:
    tag = str(element.tag).removeprefix(SVG)
    if tag in DROPPED:
        return ""
    if tag not in KEPT:
        raise RecordError(f"{source}: expected only {', '.join(sorted(KEPT))}", found=tag, do="Draw it without.")
    attributes = "".join(f' {key}="{escape(value)}"' for key, value in _attributes(element, name, used))
    inner = "".join(_write(child, name, used, say, source) + _text(child.tail, say) for child in element)
    return f"<{tag}{attributes}>{_text(element.text, say)}{inner}</{tag}>" if inner or tag not in ("g", "defs") else ""


def _text(text: str | None, say: Say) -> str:
    return str(escape(say(text))) if text and text.strip() else ""


def _attributes(element: ElementTree.Element, name: str, used: set[str]) -> Iterator[tuple[str, str]]:
    own = element.attrib
    if own.get("id") in used:
        yield "id", f"{name}--{own['id']}"
    href = own.get(f"{XLINK}href") or own.get("href")
    if href:
        yield "href", REFERENCE.sub(rf"#{name}--\1", href)
    looks = {**{key: value for key, value in own.items() if not key.startswith("{")}, **_declarations(own)}
    classes = [f"{kind}-{COLOURS[looks[kind].lower()]}" for kind in ("fill", "stroke") if _is_named(looks, kind)]
    if classes:
        yield "class", " ".join(classes)
    for key, value in looks.items():
        if key in IGNORED or (key in ("fill", "stroke") and _is_named(looks, key)):
            continue
        text = REFERENCE.sub(rf"#{name}--\1", value) if value.startswith("url(") else value
        yield (
            key,
            FRACTION.sub(lambda found: f"{float(found[0]):.2f}", " ".join(text.split())) if key in ROUNDED else text,
        )


def _declarations(attributes: Mapping[str, str]) -> dict[str, str]:
    pairs = (
        declaration.partition(":") for declaration in attributes.get("style", "").split(";") if declaration.strip()
    )
    return {key.strip(): value.strip() for key, _, value in pairs}


def _is_named(looks: Mapping[str, str], kind: str) -> bool:
    return looks.get(kind, "").lower() in COLOURS
