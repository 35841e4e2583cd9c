"""Rule `collect_lineage`: how every compared policy came to be, from the run cards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.policy_names import group_of
from lever_pipe.base.records import RunCard
from lever_pipe.experiment.stage_configs import CollectLineageConfig
from lever_pipe.experiment.stage_files import Inputs, Output
from lever_pipe.report import lineage as fields_of
from lever_pipe.report.lineage import COLUMNS
from lever_pipe.report.long_format import write_csv

Found = dict[str, dict[str, set[str]]]
"""Values by group and field."""


def collect_lineage(
    *,
    training: Inputs,
    started: Inputs,
    rewards: Inputs,
    selections: Inputs,
    answers: Inputs,
    scores: Inputs,
    lineage: Output,
    config: CollectLineageConfig,
) -> None:
    """Write one line for each group of seeds or draws and each field that applies to it.

    `started` are the selectors of presets that start from a checkpoint, before any training; where there are such, the
    runs of all presets tell what they start from. `rewards` belong to `config.presets`; `selections` and `scores` to
    the evaluated policies, batch by batch, of which `config.batch_sizes` says how many share each of `answers`. Several
    values of a field are sorted and joined.
    """
    found: Found = {}
    shared = dict(zip(config.presets, map(_read, rewards), strict=True))
    starts = {row.config["preset"]: fields_of.of_start(row) for row in map(_read, started)}
    for row in map(_read, training):
        own, rewarded = fields_of.of_training(row), fields_of.learns_from_rewards(row)
        stored = fields_of.of_reward(shared[row.config["preset"]]) if rewarded else {}
        values = own | {name: value for name, value in stored.items() if name not in own}
        values |= starts.get(row.config["preset"], fields_of.UNTRAINED) if starts else {}
        _add(found, fields_of.group_of_training(row), {**values, **fields_of.of_environment(row)})
    batches = [_read(path) for path, n in zip(answers, config.batch_sizes, strict=True) for _ in range(n)]
    for selection, score, batch in zip(map(_read, selections), map(_read, scores), batches, strict=True):
        policy = score.config["policy"]["name"]
        values = {"scale": config.scale, **fields_of.of_selection(selection, policy)}
        values |= {**fields_of.of_answers(batch), **fields_of.of_scores(score)}
        _add(found, group_of(policy), values)
        for row in (selection, batch, score):
            _add(found, group_of(policy), fields_of.of_environment(row))
    write_csv(lineage, COLUMNS, _lines(found))


def _read(path: Path) -> RunCard:
    return storage.read_row(path, RunCard)


def _add(found: Found, group: str, values: Mapping[str, str]) -> None:
    for field, value in values.items():
        found.setdefault(group, {}).setdefault(field, set()).add(value)


def _lines(found: Found) -> Iterable[tuple[str, str, str]]:
    """Yield lines by group, `beta~0.145` before `beta~0.15`, with values in order, version `2.9` before `2.12`."""
    for group in sorted(found, key=partial(_natural, number=r"(\d+(?:\.\d+)?)")):
        for field, values in found[group].items():
            yield group, field, ", ".join(sorted(values, key=partial(_natural, number=r"(\d+)")))


def _natural(text: str, *, number: str) -> list[tuple[float, str]]:
    parts = re.split(number, text)
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]
