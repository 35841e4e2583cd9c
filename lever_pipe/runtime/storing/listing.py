"""All entries of a store at a time, with what they name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.errors import StoreError
from lever_pipe.runtime.storing.entries import Loaded, load, parse


class Listed(NamedTuple):
    """An entry with what it names."""

    loaded: Loaded
    stage: str
    blobs: dict[str, int]


class Listing(NamedTuple):
    """All entries; `unreadable` ones may name anything."""

    sound: list[Listed]
    damaged: list[tuple[Path, Loaded | None, StoreError]]
    unreadable: list[tuple[Path, OSError]]


def list_entries(paths: Iterable[Path]) -> Listing:
    """Return the entries at these paths; those that are collected meanwhile are no entries."""
    listing = Listing([], [], [])
    for path in paths:
        loaded: Loaded | None = None
        try:
            loaded = load(path)
            entry = parse(loaded)
            listing.sound.append(Listed(loaded._replace(content=b""), entry.card.stage, entry.blobs()))
        except FileNotFoundError:
            continue  # collected meanwhile
        except StoreError as fault:
            listing.damaged.append((path, loaded, fault))
        except OSError as fault:
            listing.unreadable.append((path, fault))
    return listing
