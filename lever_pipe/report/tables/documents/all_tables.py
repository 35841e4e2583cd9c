"""Every table of the report, in reading order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from lever_pipe.report.tables.documents import document_000, document_001, document_002, extras, facts
from lever_pipe.report.tables.documents.document_002 import Setup
from lever_pipe.report.tables.documents.facts import Facts
from lever_pipe.report.tables.documents.world_order import world_order
from lever_pipe.report.tables.origin import Origin
from lever_pipe.report.tables.published import Published
from lever_pipe.report.tables.results import Results
from lever_pipe.report.tables.table import Table


@dataclass(frozen=True, slots=True)
class Collected:
    """The collected files as frames; `rl_data` maps metric to value as text."""

    results: Results
    arms: pd.DataFrame
    arms_training: pd.DataFrame
    rl_data: Mapping[str, str]
    facts: Facts


def build_tables(collected: Collected, published: Published, setup: Setup, origin: Origin) -> list[Table]:
    """Return the overview, the tables of documents 000 to 002, and the further tables.

    Every caption of results begins with the preset and data of ours and, where published numbers stand beside, of
    those. A table without a row is left out, because nothing of it exists in this configuration.
    """
    results = collected.results
    tables = [
        *extras.overview(results),
        *(world_order(results.scores) if origin.is_world else []),
        *document_000.tables(results, published),
        *document_001.tables(results, published),
        *document_002.tables(results, published, setup),
        *extras.every_epoch(results),
        *extras.random_subsets(results.scores),
        *extras.rl_data(collected.rl_data, published),
        *extras.other_presets(collected.arms, results.evidence),
        *extras.training_by_preset(results.training, collected.arms_training),
    ]
    named = [origin.named(table) for table in tables if not table.frame.empty]
    return named + facts.tables(collected.facts, results.samples)
