"""Rule `check_claims`: every testable sentence of the documents with a verdict from their numbers and one from ours."""

from __future__ import annotations

from pathlib import Path

from lever_pipe.base import seeding, storage
from lever_pipe.base.errors import RecordError
from lever_pipe.experiment.stage_configs import CheckClaimsConfig
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report.claims.book import RewardCurves, read_claims
from lever_pipe.report.claims.claim_tables import COLUMNS, claim_rows, claim_tables
from lever_pipe.report.claims.curve_tables import published_curve_tables
from lever_pipe.report.claims.evaluate import Side, judge_claims
from lever_pipe.report.claims.lever_ours import OurLever
from lever_pipe.report.claims.lever_published import FILES, PublishedLever
from lever_pipe.report.claims.reward_ours import OurRewards, described
from lever_pipe.report.claims.reward_runs import DOCUMENTS, RewardRuns, n_evaluations
from lever_pipe.report.tables import frames
from lever_pipe.report.tables.evidence import read_evidence
from lever_pipe.report.tables.folder import write_tables
from lever_pipe.report.tables.intention.agent_runs import AgentRuns, read_agent_runs
from lever_pipe.report.tables.lineage import read_lineage, read_published_lineage
from lever_pipe.report.tables.long_format import csv_text
from lever_pipe.report.tables.origin import Origin
from lever_pipe.report.tables.results import Results, choose_base
from lever_pipe.statistics.curve_tests import FlatNoise, flat_noise

Files = tuple[Path, ...]


def check_claims(
    *,
    claims: Input,
    reference: Input,
    reference_intention: Input,
    reference_lineage: Input,
    scores: Inputs,
    training: Inputs,
    intervals: Inputs,
    comparisons: Inputs,
    agreement: Inputs,
    parameters: Inputs,
    lineage: Inputs,
    curves: Inputs,
    agent_runs: Inputs,
    judged: Output,
    tables: Output,
    csv: Output,
    config: CheckClaimsConfig,
) -> None:
    """Write one row a claim to `judged`, and the tables of section `claims`.

    A study that the configuration leaves out has no files, and its claims no side of ours.

    Raises:
        RecordError: a claim that cannot be computed (all of them, by id), a malformed input file, or a study with some
            of its files only.
    """
    lever = {"scores": scores, "training": training, "intervals": intervals, "comparisons": comparisons}
    lever |= {"agreement": agreement, "parameters": parameters, "lineage": lineage}
    intention = {"curves": curves, "agent_runs": agent_runs}
    book = read_claims(claims)
    reward_runs = _published_rewards(reference_intention, book.reward_curves, config)
    rows, lineages = frames.read_text_columns(reference), read_published_lineage(reference_lineage)
    published: dict[str, Side] = {name: PublishedLever(rows, lineages, name) for name in FILES}
    ours = _our_lever(lever, config) if _is_whole("lever", lever) else {}
    caption = ""
    if _is_whole("intention", intention):
        found = read_agent_runs(curves[0], agent_runs[0])
        ours |= _our_rewards(found, book.reward_curves, config)
        caption = described(found, config.scale, config.reference_arm, config.document_arm, config.mode)
    verdicts = judge_claims(book.claims, {**published, **reward_runs}, ours)
    storage.write_text(judged, csv_text(COLUMNS, claim_rows(verdicts)))
    origin = Origin(config.main_preset, config.data, config.lvlm) if scores else None
    statistics = published_curve_tables(reward_runs[DOCUMENTS[-1]], book.reward_curves)
    write_tables([*claim_tables(verdicts, origin, caption), *statistics], json=tables, folder=csv)


def _is_whole(study: str, files: dict[str, Files]) -> bool:
    """Return whether a study has its files, each once; false if it has none of them."""
    counts = {name: len(paths) for name, paths in files.items()}
    if set(counts.values()) == {0}:
        return False
    wrong = [f"{n} of {name}" for name, n in counts.items() if n != 1]
    if wrong:
        raise RecordError(f"study {study}: expected one file of each kind", found=", ".join(wrong), do="Name all.")
    return True


def _published_rewards(reference: Path, given: RewardCurves, config: CheckClaimsConfig) -> dict[str, RewardRuns]:
    rows = frames.read_text_columns(reference)
    stream = seeding.generator(config.seed, "claims", "flat_noise")
    noise = flat_noise(n_evaluations(rows), given.noise_sd, stream)
    return {name: RewardRuns(rows, name, noise) for name in DOCUMENTS}


def _our_rewards(runs: AgentRuns, given: RewardCurves, config: CheckClaimsConfig) -> dict[str, Side]:
    known: dict[tuple[int, float], FlatNoise] = {}

    def noise(n: int, sd: float) -> FlatNoise:
        if (n, sd) not in known:
            known[n, sd] = flat_noise(n, sd, seeding.generator(config.seed, "claims", "our_flat_noise"))
        return known[n, sd]

    arms = (config.arms, config.reference_arm, config.document_arm)
    return {name: OurRewards(runs, *arms, config.mode, name, noise, given.noise_sd) for name in DOCUMENTS}


def _our_lever(files: dict[str, Files], config: CheckClaimsConfig) -> dict[str, Side]:
    at = {name: paths[0] for name, paths in files.items()}
    of_scores, of_training = frames.read_scores(at["scores"]), frames.read_training(at["training"])
    base = choose_base(of_scores, of_training, config.base_rce_epoch)
    evidence = read_evidence(at["intervals"], at["comparisons"])
    results = Results(of_scores, of_training, base, config.main_preset, evidence)
    pairs, updates = frames.read_text_columns(at["agreement"]), frames.read_text_columns(at["parameters"])
    return {name: OurLever(results, pairs, updates, read_lineage(at["lineage"]), name) for name in FILES}
