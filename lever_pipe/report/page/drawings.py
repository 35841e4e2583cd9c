"""Inline figures: an SVG file as markup that follows the page's colours.

All styles become attributes or classes, because the page's security policy forbids inline styles and because a class
can change with light and dark mode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
IGNORED = {"font-family", "font", "version", "stroke-linejoin"}
TOOLTIP = re.compile(r"e(?P<line>\d+) (?P<text>.+)")
"""Id of a mark with a tooltip: the line of its number in the evidence file, and the text."""


def inline(svg: str, *, source: str, name: str, title: str, is_card: bool = False) -> Markup:
    """Return a figure as inline SVG.

    Its ids begin with `name`, so that two figures on a page share none; `title` is its text for screen readers. A
    figure of a card has no minimum width.

    Raises:
        RecordError: the file is not SVG, or contains an element that a figure does not need.
    """
    root = _parse(svg, source)
    used = {link for element in root.iter() for value in element.attrib.values() for link in REFERENCE.findall(value)}
    inner = "".join(_written(child, name, used, source) for child in root)
    head = {"class": "dots" if is_card else f"plot {_least_width(root)}", "viewBox": root.get("viewBox", "")}
    return Markup(f"<svg{_attributes_text(head | {'role': 'img', 'aria-label': title})}>{inner}</svg>")


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


def _written(element: ElementTree.Element, name: str, used: set[str], source: str) -> str:
    tag = str(element.tag).removeprefix(SVG)
    if tag in DROPPED:
        return ""
    if tag not in ALLOWED:
        expected = f"{source}: expected only {', '.join(sorted(ALLOWED))}"
        raise RecordError(expected, found=tag, do="Draw it without.")
    inner = "".join(_written(child, name, used, source) + _text(child.tail) for child in element)
    # Empty groups would only make the page larger.
    if tag in ("g", "defs") and not inner:
        return ""
    tooltip, attributes = TOOLTIP.fullmatch(element.get("id", "")), _attributes(element, name, used)
    if tooltip is not None:
        attributes |= {"data-e": tooltip["line"]} if tooltip["line"] != "0" else {}
        inner = f"<title>{escape(tooltip['text'])}</title>{inner}"
    return f"<{tag}{_attributes_text(attributes)}>{_text(element.text)}{inner}</{tag}>"


def _attributes(element: ElementTree.Element, name: str, used: set[str]) -> dict[str, str]:
    attributes = {key.removeprefix(XLINK): value for key, value in element.attrib.items()}
    attributes |= _declarations(attributes.pop("style", ""))
    # Only ids with a reference are kept.
    if attributes.get("id") not in used:
        attributes.pop("id", None)
    kinds = [kind for kind in ("fill", "stroke") if attributes.get(kind, "").lower() in COLOURS]
    classes = " ".join(f"{kind}-{COLOURS[attributes.pop(kind).lower()]}" for kind in kinds)
    return ({"class": classes} if classes else {}) | {
        key: _value(key, value, name) for key, value in attributes.items() if key not in IGNORED
    }


def _value(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}--{value}"
    if key == "href" or value.startswith("url("):
        return REFERENCE.sub(rf"#{name}--\1", value)
    return FRACTION.sub(lambda match: f"{float(match[0]):.2f}", " ".join(value.split())) if key in ROUNDED else value


def _declarations(style: str) -> dict[str, str]:
    pairs = (declaration.partition(":") for declaration in style.split(";") if declaration.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _attributes_text(attributes: Mapping[str, str]) -> str:
    return "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())


def _text(text: str | None) -> str:
    return str(escape(text)) if text and text.strip() else ""
