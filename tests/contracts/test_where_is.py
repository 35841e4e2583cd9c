"""ARCHITECTURE.md, README.md and CONTRIBUTING.md name things that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchmarks import picture

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
# `path` or `path::name`, where the path begins with a folder or file of the repository.
NAMED = re.compile(r"`((?:lever_pipe|workflow|tests|resources|config|docs)/[\w./]*\w)(?:::(\w+))?`")
LINK = re.compile(r"\]\(([^)#:]+)\)")


def named_places() -> list[tuple[str, str]]:
    pages = ("ARCHITECTURE.md", "README.md", "CONTRIBUTING.md")
    return sorted({m for page in pages for m in NAMED.findall((ROOT / page).read_text())})


def test_the_table_is_found() -> None:
    assert len(named_places()) >= 20


def exists(path: str, name: str) -> bool:
    if not name or not (ROOT / path).exists():
        return (ROOT / path).exists()
    body = ast.parse((ROOT / path).read_text()).body
    return name in {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_a_named_place_exists() -> None:
    assert [place for place in named_places() if not exists(*place)] == []
    assert not exists("lever_pipe/runtime/plan.py", "nobody") and not exists("lever_pipe/nowhere.py", "")


@pytest.mark.parametrize(
    "page", sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall((ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_the_table_of_rooms_names_each() -> None:
    package = ROOT / "lever_pipe"
    rooms = {path.parent.name for path in package.glob("*/__init__.py")}
    named = re.findall(r"^\| `(\w+)` \|", ARCHITECTURE.split("## Rooms")[1].split("## ")[0], flags=re.MULTILINE)
    assert set(named) - {"__main__"} == rooms


def test_the_readme_opens_with_the_two_commands() -> None:
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line]
    assert lines[0] == "# lever-pipe"
    assert lines[2].startswith("make reproduce")
    assert lines[3].startswith("make test")


def test_the_picture_shows_the_first_screen_that_this_code_draws() -> None:
    """Otherwise: make reproduce, make picture."""
    said = (ROOT / picture.SAID).read_text(encoding="utf-8")
    assert said.rstrip().endswith(f"{picture.DIGEST}{picture.digest()}.")
    assert (ROOT / picture.PICTURE).stat().st_size < 300_000
