"""Inline figures: an SVG file as markup that follows the page's colours.

All styles become attributes or classes, because the page's security policy forbids inline styles and because a class
can change with light and dark mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from xml.etree import ElementTree

from markupsafe import Markup, escape

from lever_pipe.base.errors import RecordError

SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}"
ALLOWED = {"svg", "g", "path", "use", "defs", "clipPath", "rect", "circle", "line", "text", "tspan", "image"}
"""Elements that matplotlib draws with; metadata and style sheets are dropped, and any other element is refused."""
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
"""Colours of the figures -> names in the style sheet, which defines them for light and dark mode."""
REFERENCE = re.compile(r"#([\w-]+)")
SIZE = re.compile(r"font(?:-size)?: ([\d.]+)px")
READABLE = 11.0  # pixels
WIDTHS = (560, 600, 640, 680, 720, 760)
"""Minimum widths in pixels for which the style sheet has a class."""
FRACTION = re.compile(r"\d+\.\d{3,}")
ROUNDED = {"d", "x", "y", "width", "height", "transform"}
IGNORED = {"font-family", "font", "id", "style", "href", "version", "stroke-linejoin"}


def inline(svg: str, *, source: str, name: str, title: str) -> Markup:
    """Return a figure as inline SVG.

    Its ids begin with `name`, so that two figures on a page share none; `title` is its text for screen readers.

    Raises:
        RecordError: the file is not SVG, or contains an element that a figure does not need.
    """
    root = _parse(svg, source)
    used = {link for element in root.iter() for value in element.attrib.values() for link in REFERENCE.findall(value)}
    inner = "".join(_Writer(name, used, source).write(child) for child in root)
    box = root.get("viewBox", "")
    head = f'<svg class="plot {_least_width(root)}" viewBox="{escape(box)}" role="img" aria-label="{escape(title)}">'
    return Markup(f"{head}{inner}</svg>")


def _least_width(root: ElementTree.Element) -> str:
    """Return the class of the minimum width at which the smallest text is still readable."""
    sizes = [float(match[1]) for text in root.iter(f"{SVG}text") if (match := SIZE.search(text.get("style", "")))]
    pixels = READABLE / min(sizes, default=READABLE) * float(root.get("viewBox", "").split()[2])
    return next((f"least-{width}" for width in WIDTHS if pixels <= width), f"least-{WIDTHS[-1]}")


def _parse(svg: str, source: str) -> ElementTree.Element:
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise RecordError(f"{source}: expected SVG", found=str(error), do="Draw the figures again.") from None
    if root.tag != f"{SVG}svg" or not root.get("viewBox"):
        raise RecordError(f"{source}: expected SVG with a viewBox", found=root.tag, do="Draw the figures again.")
    return root


class _Writer:
    """Writer of the elements of one figure."""

    def __init__(self, name: str, used: set[str], source: str) -> None:
        self.name, self.used, self.source = name, used, source

    def write(self, element: ElementTree.Element) -> str:
        tag = str(element.tag).removeprefix(SVG)
        if tag in DROPPED:
            return ""
        if tag not in ALLOWED:
            expected = f"{self.source}: expected only {', '.join(sorted(ALLOWED))}"
            raise RecordError(expected, found=tag, do="Draw it without.")
        attributes = "".join(f' {key}="{escape(value)}"' for key, value in self._attributes(element))
        inner = "".join(self.write(child) + _text(child.tail) for child in element)
        text = _text(element.text)
        # Empty groups would only make the page larger.
        return f"<{tag}{attributes}>{text}{inner}</{tag}>" if text or inner or tag not in ("g", "defs") else ""

    def _attributes(self, element: ElementTree.Element) -> Iterator[tuple[str, str]]:
        attrs = element.attrib
        # Only ids with a reference are kept.
        if attrs.get("id") in self.used:
            yield "id", f"{self.name}--{attrs['id']}"
        href = attrs.get(f"{XLINK}href") or attrs.get("href")
        if href:
            yield "href", REFERENCE.sub(rf"#{self.name}--\1", href)
        attributes = {**{key: value for key, value in attrs.items() if not key.startswith("{")}, **_declarations(attrs)}
        classes = [
            f"{kind}-{COLOURS[attributes[kind].lower()]}" for kind in ("fill", "stroke") if _is_named(attributes, kind)
        ]
        if classes:
            yield "class", " ".join(classes)
        for key, value in attributes.items():
            if key in IGNORED or (key in ("fill", "stroke") and _is_named(attributes, key)):
                continue
            text = REFERENCE.sub(rf"#{self.name}--\1", value) if value.startswith("url(") else value
            is_path = key in ROUNDED
            yield key, FRACTION.sub(_short, " ".join(text.split())) if is_path else text


def _short(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}"


def _text(text: str | None) -> str:
    return str(escape(text)) if text and text.strip() else ""


def _declarations(attributes: Mapping[str, str]) -> dict[str, str]:
    pairs = (
        declaration.partition(":") for declaration in attributes.get("style", "").split(";") if declaration.strip()
    )
    return {key.strip(): value.strip() for key, _, value in pairs}


def _is_named(attributes: Mapping[str, str], kind: str) -> bool:
    return attributes.get(kind, "").lower() in COLOURS
