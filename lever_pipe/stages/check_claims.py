"""Rule `check_claims`: every testable sentence of the documents with a verdict from their numbers and one from ours."""

from __future__ import annotations

import time
from pathlib import Path

from lever_pipe import seeding, storage
from lever_pipe.claims.book import RewardCurves, read_claims
from lever_pipe.claims.claim_tables import COLUMNS, claim_rows, claim_tables
from lever_pipe.claims.curve_tables import published_curve_tables
from lever_pipe.claims.curve_tests import flat_noise
from lever_pipe.claims.evaluate import Side, judge_claims
from lever_pipe.claims.lever_ours import OurLever
from lever_pipe.claims.lever_published import FILES, PublishedLever
from lever_pipe.claims.reward_runs import DOCUMENTS, RewardRuns, n_evaluations
from lever_pipe.run_card import Inputs, write_card
from lever_pipe.stage_configs import CheckClaimsConfig, Runtime
from lever_pipe.tables import frames
from lever_pipe.tables.evidence import read_evidence
from lever_pipe.tables.folder import write_tables
from lever_pipe.tables.lineage import read_lineage, read_published_lineage
from lever_pipe.tables.long_format import csv_text
from lever_pipe.tables.origin import Origin
from lever_pipe.tables.results import Results, choose_base


def check_claims(
    *,
    claims: Path,
    reference: Path,
    reference_intention: Path,
    reference_lineage: Path,
    scores: Path,
    training: Path,
    intervals: Path,
    comparisons: Path,
    agreement: Path,
    parameters: Path,
    lineage: Path,
    judged: Path,
    tables: Path,
    csv: Path,
    card: Path,
    config: CheckClaimsConfig,
    runtime: Runtime = Runtime(),
) -> None:
    """Write one row a claim to `judged`, and the tables of section `claims`.

    Claims about study `intention` have no side of ours in a configuration without a run of it.

    Raises:
        RecordError: a claim that cannot be computed (all of them, by id), or a malformed input file.
    """
    started = time.perf_counter()
    book = read_claims(claims)
    reward_runs = _reward_runs(reference_intention, book.reward_curves, config)
    rows, lineages = frames.read_text_columns(reference), read_published_lineage(reference_lineage)
    published: dict[str, Side] = {name: PublishedLever(rows, lineages, name) for name in FILES}
    results = _results(scores, training, intervals, comparisons, config)
    pairs, updates = frames.read_text_columns(agreement), frames.read_text_columns(parameters)
    ours: dict[str, Side] = {name: OurLever(results, pairs, updates, read_lineage(lineage), name) for name in FILES}
    found = judge_claims(book.claims, {**published, **reward_runs}, ours)
    storage.write_text(judged, csv_text(COLUMNS, claim_rows(found)))
    origin = Origin(config.main_preset, config.data, config.lvlm)
    curves = published_curve_tables(reward_runs[DOCUMENTS[-1]], book.reward_curves)
    write_tables([*claim_tables(found, origin), *curves], json=tables, folder=csv)
    inputs: Inputs = {"claims": claims, "reference": reference, "reference_intention": reference_intention}
    inputs = {**inputs, "reference_lineage": reference_lineage, "scores": scores, "training": training}
    inputs = {**inputs, "intervals": intervals, "comparisons": comparisons, "agreement": agreement}
    inputs = {**inputs, "parameters": parameters, "lineage": lineage}
    write_card(card, stage="check_claims", config=config, inputs=inputs, started=started, runtime=runtime)


def _reward_runs(reference: Path, given: RewardCurves, config: CheckClaimsConfig) -> dict[str, RewardRuns]:
    rows = frames.read_text_columns(reference)
    stream = seeding.generator(config.seed, "claims", "flat_noise")
    noise = flat_noise(n_evaluations(rows), given.noise_sd, stream)
    return {name: RewardRuns(rows, name, noise) for name in DOCUMENTS}


def _results(scores: Path, training: Path, intervals: Path, comparisons: Path, config: CheckClaimsConfig) -> Results:
    of_scores, of_training = frames.read_scores(scores), frames.read_training(training)
    base = choose_base(of_scores, of_training, config.base_rce_epoch)
    return Results(of_scores, of_training, base, config.main_preset, read_evidence(intervals, comparisons))
