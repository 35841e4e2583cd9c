"""A small evidence of both studies, and the report that is built of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lever_pipe.experiment.agent_evaluation import AgentEvaluation
from lever_pipe.experiment.agent_training import AgentArm, AgentGrpo
from lever_pipe.experiment.arms import ArmSettings, OnPolicyRuns, Preset
from lever_pipe.experiment.report import BuildReportConfig, ShownAgents, ShownStudy
from lever_pipe.report.evidence import EvidenceRow, write_evidence
from lever_pipe.stages.build_report import build_report

ROOT = Path(__file__).parents[3]
TEMPLATES = ROOT / "lever_pipe" / "report" / "templates"
RCE = "preset~main/rce/epoch~1"
OFFLINE, ON_POLICY = (f"preset~main/{mode}/base~1/beta~{{}}/epoch~2" for mode in ("grpo", "on_policy"))
BETAS = ("0", "0.15", "1")
FIGURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 547 200"><text x="9" y="20">{}</text></svg>'


def accuracy(subject: str, value: float, **parts: Any) -> list[EvidenceRow]:
    """Return an accuracy, or with `against` a difference, at two shot counts and their mean."""
    at = {"subset": "prefix", "samples": "40", "low": value - 2, "high": value + 2, "n": 40, "runs": 3, **parts}
    return [EvidenceRow("lever", subject, "accuracy", value, shots=k, **at) for k in ("1", "2", "mean")]


def of_lever(betas: Sequence[str] = BETAS, *, sampled: bool = True, runs: int = 3) -> list[EvidenceRow]:
    """Return accuracies and comparisons: on-policy is separated from RCE, and so are its betas; offline nothing is."""
    rows = [row for name in ("random", "similar_both", "oracle") for row in accuracy(f"baseline/{name}", 41.37)]
    rows += accuracy(RCE, 60.25, runs=runs)
    rows += accuracy(RCE, 18.88, against="baseline/random", family="learning", p_holm=1e-9)
    offline, on_policy = ("grpo-against-rce", "grpo-betas"), ("on-policy-against-rce", "on-policy-betas")
    for mode, gain, p, families in ((OFFLINE, 0.61, 0.4, offline), (ON_POLICY, 4.42, 1e-6, on_policy))[: 1 + sampled]:
        for i, beta in enumerate(betas):
            rows += accuracy(mode.format(beta), 60.25 + gain - i * gain / 4, runs=runs)
            base = {"against": RCE, "family": families[0], "p_holm": p, "runs": runs}
            rows += accuracy(mode.format(beta), gain - i * gain / 4, **base)
            if i:
                smallest = {"against": mode.format(betas[0]), "family": families[1], "p_holm": 10 * p, "runs": runs}
                rows += accuracy(mode.format(beta), -i * gain / 4, **smallest)
    rows += [EvidenceRow("lever", OFFLINE.format(betas[0]), "n_parameters", 1234.0, at="from base")] if betas else []
    return rows


def of_agents() -> list[EvidenceRow]:
    """Return evaluation rewards of two arms in both decodings, and their differences."""
    rows = [EvidenceRow("intention", f"arm~{arm}/seed~0", "executed_steps", 45.0, at="run") for arm in ("a", "b")]
    for mode, gain in (("sampled", -0.1), ("greedy", 0.08)):
        at: dict[str, Any] = {"subset": "test", "mode": mode, "at": "last", "n": 20, "runs": 1}
        for arm, value in (("a", 0.9), ("b", 0.9 + gain)):
            rows += [
                EvidenceRow("intention", f"arm~{arm}{s}", "normalised_reward", value, **at) for s in ("", "/seed~0")
            ]
        ends = {"low": gain - 0.02, "high": gain + 0.02, "p_holm": 0.001, "family": "primary"}
        rows.append(EvidenceRow("intention", "arm~b", "normalised_reward", gain, against="arm~a", **at, **ends))
    return rows


def config(*studies: str, is_world: bool = True, **changes: Any) -> BuildReportConfig:
    """Return the page's context of a run."""
    agents = ShownAgents(
        arms=(AgentArm(name="a"), AgentArm(name="b", kl=0.5)),
        reference_arm="a",
        document_arm="b",
        evaluation=AgentEvaluation(),
        grpo=AgentGrpo(),
        scale="tiny",
    )
    facts = {"is_world": is_world, "model": "tiny", "data": "" if is_world else "questions.json"}
    displayed = tuple(ShownStudy.model_validate({"name": name, **facts}) for name in studies)
    values: dict[str, Any] = {
        "studies": displayed,
        "main_preset": "main",
        "presets": {"main": Preset()},
        "arms": (ArmSettings(preset="main", on_policy=OnPolicyRuns()),),
        "agents": agents if "intention" in studies else None,
        "title": "",
    }
    return BuildReportConfig(**values | changes)


def write_inputs(folder: Path, rows: Sequence[EvidenceRow]) -> dict[str, Any]:
    """Write evidence and figures below a folder; return what `build_report` takes."""
    write_evidence(folder / "evidence.csv", rows)
    groups = dict.fromkeys(row.subject for row in rows if row.study == "lever")
    lineage = ["group,field,value", *(f"{name},method,{name.split('/')[1]}" for name in groups)]
    (folder / "lineage.csv").write_text("\n".join(lineage), encoding="utf-8")
    figures = folder / "figures"
    for language, text in (("en", "Ladder"), ("zh", "阶梯")):
        (figures / language).mkdir(parents=True, exist_ok=True)
        (figures / language / "frontier.svg").write_text(FIGURE.format(text), encoding="utf-8")
    (figures / "sections.json").write_text(json.dumps([["frontier", "selector"]]), encoding="utf-8")
    return {
        "evidence": folder / "evidence.csv",
        "reference_lineage": ROOT / "resources" / "reference" / "lineage.yaml",
        "lineage": (folder / "lineage.csv",),
        "chinese": ROOT / "resources/locale/zh/LC_MESSAGES/report.po",
        "claims": ROOT / "resources" / "claims.yaml",
        "gallery": (),
        "dialogues": (),
        "figures": figures,
        "templates": tuple(TEMPLATES.glob("*.j2")),
        "style": TEMPLATES / "report.css",
        "script": TEMPLATES / "report.js",
    }


def build(inputs: dict[str, Any], folder: Path, displayed: BuildReportConfig) -> Path:
    """Build the report into a folder and return it."""
    outputs = {"page": folder / "report.html", "appendix": folder / "report"}
    build_report(**inputs, **outputs, config=displayed)
    return folder
