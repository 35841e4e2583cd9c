"""Every number's row, the verdict on each claim, and the figures."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path

from lever_pipe.base import storage
from lever_pipe.base.atomic import write_folder
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.report_stage_configs import PlotFiguresConfig, ReportedRun
from lever_pipe.experiment.stage_configs import CheckClaimsConfig, InputsAlone
from lever_pipe.experiment.stage_files import Input, Inputs, Output
from lever_pipe.report import sources
from lever_pipe.report.catalogue import Voice, read_catalogue
from lever_pipe.report.claims.agents import OurAgents, RewardRuns
from lever_pipe.report.claims.book import OF_AGENTS, read_claims
from lever_pipe.report.claims.judged import JudgedClaim, Side, as_json, judge_claims
from lever_pipe.report.claims.lever import OurLever, PublishedLever
from lever_pipe.report.evidence import MEAN, Evidence, read_evidence, write_evidence
from lever_pipe.report.figures.drawn import FIGURES, draw_all
from lever_pipe.report.inference.families import arms_of
from lever_pipe.report.lineage import read_lineage, read_published_lineage
from lever_pipe.report.material import Material
from lever_pipe.report.reference import FILES
from lever_pipe.statistics.curve_tests import FlatNoise, flat_noise

COLUMNS = ("id", "document", "section", "claim", "published_verdict", "published_numbers", "our_verdict", "our_numbers")


def collect_evidence(
    *,
    reference: Input,
    reference_intention: Input,
    intervals: Inputs,
    comparisons: Inputs,
    scores: Inputs,
    training: Inputs,
    agreement: Inputs,
    parameters: Inputs,
    breakdown: Inputs,
    costs: Inputs,
    selections: Inputs,
    rewards: Inputs,
    rl_data: Inputs,
    pools: Inputs,
    examples: Inputs,
    world: Inputs,
    counters: Inputs,
    emulated: Inputs,
    endpoints: Inputs,
    arm_comparisons: Inputs,
    statistics: Inputs,
    curves: Inputs,
    runs: Inputs,
    tasks: Inputs,
    evidence: Output,
    config: InputsAlone,  # noqa: ARG001 - every stage has one
) -> None:
    """Write `evidence`; files of a study that did not run are absent.

    `emulated` are scores, prompts, agreement and training of the emulated faults.
    """
    kinds = (
        *((sources.intervals, intervals), (sources.comparisons, comparisons), (sources.scores, scores)),
        *((sources.training, training), (sources.agreement, agreement), (sources.parameters, parameters)),
        *((sources.breakdown, breakdown), (sources.costs, costs)),
        *((sources.selections, selections), (sources.rewards, rewards), (sources.endpoints, endpoints)),
        *((sources.arm_comparisons, arm_comparisons), (sources.curve_statistics, statistics)),
        *((sources.curves, curves), (sources.runs, runs)),
    )
    facts = (("rl_data", rl_data), ("pools", pools), ("examples", examples), ("world", world))
    found = [read(path) for read, paths in kinds for path in paths]
    found += [sources.facts(subject, path) for subject, paths in facts for path in paths]
    found += [sources.work(counters)]
    found += [sources.facts("tasks", path, study=sources.INTENTION) for path in tasks]
    found += [sources.emulated(*emulated)] if emulated else []
    found += [sources.published(reference), sources.published_agents(reference_intention)]
    write_evidence(evidence, Evidence(chain.from_iterable(found)))


def check_claims(
    *,
    claims: Input,
    messages: Inputs,
    evidence: Input,
    reference_lineage: Input,
    lineage: Inputs,
    judged: Output,
    findings: Output,
    config: CheckClaimsConfig,
) -> None:
    """Write one line of English text a claim to `judged`, and its typed verdicts and numbers to `findings`.

    A study that the configuration leaves out has no rows, and its claims no side of ours.
    """
    book, known = read_claims(claims), Evidence(read_evidence(evidence))
    lineages = read_published_lineage(reference_lineage)
    published: dict[str, Side] = {name: PublishedLever(known, lineages, name) for name in FILES}
    own = {group: fields for path in lineage for group, fields in read_lineage(path).items()}
    ours = {**_our_lever(known, own, config), **_our_agents(known, book.noise_sd, config)}
    runs = {name: _runs(known, name, book.noise_sd, config) for name in OF_AGENTS}
    found = judge_claims(book.claims, {**published, **runs}, ours)
    storage.write_text(judged, _csv_text(found, Voice("en", read_catalogue(messages))))
    storage.write_text(findings, json.dumps([as_json(of) for of in found], ensure_ascii=False, indent=1) + "\n")


def _our_lever(evidence: Evidence, lineages: dict[str, dict[str, str]], config: CheckClaimsConfig) -> dict[str, Side]:
    rows = evidence.where(metric="accuracy", study="lever", subset="prefix", shots=MEAN)
    if not lineages and not rows:
        return {}
    main = arms_of([row.subject for row in rows], config.main_preset)[0]
    base = main.base if config.base_rce_epoch is None else config.base_rce_epoch
    samples = sorted({int(row.samples) for row in rows if row.subject in main.grpo.values()})
    return {name: OurLever(evidence, lineages, name, config.main_preset, base, samples) for name in FILES}


def _our_agents(evidence: Evidence, noise_sd: float, config: CheckClaimsConfig) -> dict[str, Side]:
    if not config.arms:
        return {}
    modes = {row.mode for row in evidence.where(metric="reward", study="intention", subset="val") if row.at.isdigit()}
    mode = min(modes, default="greedy")  # greedy where it is known: the documents decode so
    arms = (config.arms, config.reference_arm, config.document_arm)
    return {name: OurAgents(_runs(evidence, name, noise_sd, config, mode), *arms) for name in OF_AGENTS}


def _runs(evidence: Evidence, document: str, noise_sd: float, config: CheckClaimsConfig, mode: str = "") -> RewardRuns:
    noise = partial(_flat_noise, config.seed)
    return RewardRuns(evidence, document, noise, noise_sd, mode=mode)


@lru_cache(maxsize=16)
def _flat_noise(seed: int, n: int, sd: float) -> FlatNoise:
    """Return curves that claims of both documents are held against."""
    return flat_noise(n, sd, generator(seed, "claims", "flat_noise"))


def _csv_text(judged: Sequence[JudgedClaim], voice: Voice) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for of in judged:
        sides = [cell for side in (of.published, of.ours) for cell in (side.verdict, voice.text(side.numbers))]
        place, sentence = voice.say(f"claims.place.{of.claim.section}"), voice.say(f"claim.{of.claim.id}")
        writer.writerow([of.claim.id, of.claim.document, place, sentence, *sides])
    return buffer.getvalue()


def plot_figures(
    *,
    evidence: Input,
    english: Inputs,
    chinese: Inputs,
    figures: Output,
    config: PlotFiguresConfig,
) -> None:
    """Write `en/NAME.svg`, `en/NAME.png` and `zh/NAME.svg` into `figures`; a figure without data is left out.

    `sections.json` says, in order, in which section of the report each stands.

    Chinese figures are SVG alone: their characters come from the reader's fonts.
    """
    material = Material(Evidence(read_evidence(evidence)), ReportedRun.model_validate(dict(config)))
    voices = [Voice("en", read_catalogue(english)), Voice("zh", read_catalogue(chinese))]

    def draw(folder: Path) -> None:
        for voice in voices:
            of_language = folder / voice.language
            of_language.mkdir()
            names = draw_all(material, voice, of_language, with_png=voice.language == "en")
        storage.write_json(folder / "sections.json", [[name, FIGURES[name].section] for name in names])

    write_folder(figures, draw)
