"""What differs between two run cards: configuration, inputs, code and versions."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base import storage
from lever_pipe.base.records import RunCard
from lever_pipe.runtime.rerun.why_names import flat

ABSENT = "absent"
KINDS = ("config", "code", "version", "commit", "device", "input")
SOME, OTHER = "one content", "another"
ANY = "any job"
DIGEST = 12  # hexadecimal digits of a content digest that tell two files apart
NAMES = ("policy.", "shard")
"""Config keys that name the job itself."""


class Differing(NamedTuple):
    """One fact about a kind of job that two cards, or `n_cards` pairs of cards, state differently."""

    where: str  # a stage, or what a card stands for
    key: str  # dotted, after `config.`, `input.` or `version.`; or `code`, `commit`, `device`
    left: str
    right: str
    n_cards: int = 1


def differing(where: str, left: RunCard, right: RunCard) -> list[Differing]:
    """Return what two cards state differently: config, code, versions, commit, device, inputs."""
    one, other = dict(facts(left)), dict(facts(right))
    keys = [key for key in sorted({*one, *other}, key=_order) if one.get(key) != other.get(key)]
    return [Differing(where, key, one.get(key, ABSENT), other.get(key, ABSENT)) for key in keys]


def of_runs(left: Path, right: Path) -> list[Differing]:
    """Return what the cards at equal places of two result folders state differently, equal differences once.

    An input of other content is told by its name alone: everything that follows from it differs too.

    Raises:
        RecordError: a malformed card.
    """
    places = sorted({path.relative_to(left) for path in left.rglob("*run.json")})
    counts: Counter[Differing] = Counter()
    for place in (place for place in places if (right / place).is_file()):
        one, other = (storage.read_row(folder / place, RunCard) for folder in (left, right))
        counts.update(map(_of_any_card, differing(one.stage, one, other)))
    counted = [found._replace(n_cards=count) for found, count in counts.items()]
    return sorted(counted, key=lambda found: (_order(found.key)[0], found.where, found.key))


def _of_any_card(found: Differing) -> Differing:
    kind = found.key.partition(".")[0]
    if kind == "input":
        return found._replace(left=SOME, right=OTHER)
    return found._replace(where=ANY) if kind in ("version", "commit", "device") else found


def _order(key: str) -> tuple[int, str]:
    return KINDS.index(key.partition(".")[0]), key


def facts(card: RunCard) -> Iterator[tuple[str, str]]:
    """Yield what a card states: configuration, inputs, code, versions, commit and device, each as text."""
    for key, value in flat(card.config).items():
        if not key.startswith(NAMES):
            yield f"config.{key}", value if isinstance(value, str) else json.dumps(value)
    files: dict[str, list[str]] = {}
    for name, digest in card.inputs.items():  # a list of files stands as `name[0]`, `name[1]`, ...
        files.setdefault(name.partition("[")[0], []).append(digest)
    for name, digests in files.items():
        joint = hashlib.sha256("\n".join(digests).encode()).hexdigest()
        is_list = f"{name}[0]" in card.inputs
        yield f"input.{name}", f"{len(digests)} files {joint[:DIGEST]}" if is_list else digests[0][:DIGEST]
    yield "code", card.code
    for name, version in card.versions.items():
        yield f"version.{name}", version
    yield "commit", f"{card.commit[:DIGEST]}{' with changes' if card.dirty else ''}"
    yield "device", card.device
