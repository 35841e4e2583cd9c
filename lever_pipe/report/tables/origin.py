"""Where numbers come from: the preset and data of ours, the set-up of the published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lever_pipe.report.tables.table import Table
from lever_pipe.report.tables.text import listing, sentences

PUBLISHED = "Published: OK-VQA with Qwen2.5-VL-3B-Instruct."
PUBLISHED_COLUMNS = frozenset({"Published", "Document"})
ARM = "arm-"  # prefix of the table of another preset
WITHOUT_PRESET = frozenset({"rl-data"})  # every preset learns from the same RL data


@dataclass(frozen=True, slots=True)
class Origin:
    """What "ours" is: the main preset, `world` or `files` as the source of the data, and the LVLM's name."""

    main_preset: str
    data: str
    lvlm: str

    @property
    def is_world(self) -> bool:
        """Return whether the data are the embedded world's."""
        return self.data == "world"

    def sentence(self, presets: Sequence[str]) -> str:
        """Return `Ours: preset `world`, embedded world.`, or with the LVLM's name where the data are files."""
        where = "embedded world" if self.is_world else self.lvlm
        names = listing(f"`{preset}`" for preset in presets)
        which = f"preset{'s' * (len(presets) > 1)} {names}" if presets else "every preset"
        return f"Ours: {which}, {where}."

    def named(self, table: Table) -> Table:
        """Return the table with a caption that begins with where its numbers come from."""
        published = PUBLISHED if _holds_published(table) else ""
        return replace(table, caption=sentences(self.sentence(self._presets(table)), published, table.caption))

    def _presets(self, table: Table) -> list[str]:
        if table.id in WITHOUT_PRESET:
            return []
        if "Preset" in table.frame.columns:
            return list(dict.fromkeys(str(preset) for preset in table.frame["Preset"]))
        if table.document == "extra" and table.id.startswith(ARM):
            return [table.id.removeprefix(ARM)]
        return [self.main_preset]


def _holds_published(table: Table) -> bool:
    columns = set(table.frame.columns)
    in_rows = "Source" in columns and bool((table.frame["Source"] == "published").any())
    return in_rows or bool(columns & PUBLISHED_COLUMNS)
