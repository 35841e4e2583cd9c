"""MkDocs hooks: add the repository's root pages to the site, and check links that leave `docs/`.

Readers on a code host and readers of the site follow the same relative links. In the site a link to a page of the root
points to its copy, and a link to any other file of the repository becomes its path.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "results/README.md": "results.md",
    **{name: name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")},
}
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")

log = get_plugin_logger("site_pages")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the root pages."""
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Resolve links from the page's place in the repository; warn about targets that do not exist."""
    sources = {page_name: name for name, page_name in ROOT_PAGES.items()}
    source = ROOT / sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def resolved(link: re.Match[str]) -> str:
        text, target, anchor = link[1], (source.parent / link[2]).resolve(), link[3] or ""
        if not target.exists():
            log.warning(f"{source.relative_to(ROOT)}: the link to {link[2]} has no target")
            return link[0]
        name = target.relative_to(ROOT).as_posix()
        if name in ROOT_PAGES:
            return f"[{text}]({ROOT_PAGES[name]}{anchor})"
        if target.parent == ROOT / "docs":
            return f"[{text}]({target.name}{anchor})"
        return f"{text} (`{name}`)"

    return LINK.sub(resolved, markdown)
