"""Figures from a small evidence: each drawn where its data exist, the same bytes twice, in two languages."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import synthetic_page as small

from lever_pipe.experiment.arms import ArmSettings
from lever_pipe.experiment.report import PlotFiguresConfig, ReportedRun
from lever_pipe.experiment.sweeps import Sweep, SweptCell
from lever_pipe.report.catalogue import Translator
from lever_pipe.report.context import ReportContext
from lever_pipe.report.evidence import Evidence, EvidenceRow, write_evidence
from lever_pipe.report.figures.registry import FIGURES, draw_all
from lever_pipe.stages.evidence import plot_figures

RCE, OFFLINE = "preset~main/rce/epoch~{}", "preset~main/grpo/base~1/beta~{}/epoch~{}"
ON_POLICY = "preset~main/on_policy/base~1/beta~{}/epoch~{}"
accuracy = partial(small.accuracy, runs=2)


def of_lever() -> list[EvidenceRow]:
    rows = [row for name in ("random", "similar_both", "oracle") for row in accuracy(f"baseline/{name}", 50.0)]
    rows += accuracy(RCE.format(1), 60.0)
    rows += [EvidenceRow("lever", RCE.format(1), metric, 2.0) for metric in ("loss", "val_loss")]
    for group, beta, epoch in [(g, b, e) for g in (OFFLINE, ON_POLICY) for b in ("0", "0.5") for e in (1, 2)]:
        name = group.format(beta, epoch)
        rows += accuracy(name, 61.0 + epoch)
        rows += [EvidenceRow("lever", name, metric, 0.1 * epoch) for metric in ("kl_exact", "kl", "ppo_loss", "loss")]
        rows += [EvidenceRow("lever", name, "kl_to_base", 0.02 * epoch, at="from base")]
        rows += accuracy(name, 1.0, against=RCE.format(1), family="grpo-against-rce")
        for seed in (0, 1):
            run = name.replace("/epoch~", f"/seed~{seed}/epoch~")
            rows += [*accuracy(run, 61.0 + seed)[:2], EvidenceRow("lever", run, "kl", 0.1 * epoch)]
    for measure in ("llm", "vote", "llm.shown", "copied.1", "copied.2"):  # no answer is wrong everywhere
        rows += [EvidenceRow("lever", RCE.format(1), f"copying.{measure}", 0.4, shots="2")]
    cell = OFFLINE.format("0.5", 2).replace("main", "cell")
    rows += accuracy(cell, 64.0) + accuracy(cell, 1.0, against=OFFLINE.format("0.5", 2), family="sweep~s")[2:]
    for seed in (0, 1):
        rows += accuracy(f"preset~main/rce/seed~{seed}/epoch~1", 60.0)[:2]
    shares = {"at": "rank 1"}
    rows += [
        EvidenceRow("lever", name, "agrees.relation", 0.5, **shares) for name in ("baseline/random", RCE.format(1))
    ]
    return rows


def of_agents() -> list[EvidenceRow]:
    rows = [EvidenceRow("intention", "published/kl", "val_reward", 1.5, at="5", quoted="003")]
    for arm in ("arm~a", "arm~b"):
        rows += [EvidenceRow("intention", f"{arm}/seed~0", "executed_steps", 5.0, at="run")]
        for mode in ("sampled", "greedy"):
            at = {"subset": "val", "mode": mode}
            rows += [EvidenceRow("intention", arm, "reward", 1.0 + step, at=str(step), runs=1, **at) for step in (0, 5)]
            held = {"subset": "test", "mode": mode, "at": "last"}
            rows += [EvidenceRow("intention", arm, "normalised_reward", 0.5, low=0.4, high=0.6, **held)]
            against = {**held, "against": "arm~a"} if arm == "arm~b" else {}
            rows += [EvidenceRow("intention", arm, "normalised_reward", 0.1, high=0.2, **against)] if against else []
        rows += [EvidenceRow("intention", arm, metric, 0.2) for metric in ("kl_end", "entropy_end")]
        rows += [EvidenceRow("intention", arm, "reward", 1.0, at="1", subset="train", runs=1)]
    return rows


def sweep(*arms: str) -> tuple[Sweep, ...]:
    cells = tuple(SweptCell(arm=arm, values={"kl": 0.1 * i}) for i, arm in enumerate(arms))
    return (Sweep(name="s", arm=arms[0], over={"kl": (0.0, 0.1)}, cells=cells),)


def config(*studies: str) -> PlotFiguresConfig:
    run = small.config(*studies, arms=(ArmSettings(preset="main", seeds=(0, 1)),), sweeps=sweep("main", "cell"))
    values = {name: getattr(run, name) for name in PlotFiguresConfig.model_fields}
    agents = run.agents and run.agents.model_copy(update={"sweeps": sweep("a", "b")})
    return PlotFiguresConfig(**values | {"agents": agents})


CARDS = ("card-grpo", "card-kl")
ENGLISH, CHINESE = Translator("en"), Path("resources/locale/zh/LC_MESSAGES/report.po")


def context(rows: list[EvidenceRow], *studies: str) -> ReportContext:
    return ReportContext(Evidence(rows), ReportedRun.model_validate(dict(config(*studies))))


def plotted(folder: Path, rows: list[EvidenceRow], *studies: str) -> Path:
    folder.mkdir()
    write_evidence(folder / "evidence.csv", rows)
    figures = folder / "figures"
    plot_figures(evidence=folder / "evidence.csv", chinese=CHINESE, figures=figures, config=config(*studies))
    return folder / "figures"


def test_every_figure_is_drawn_in_both_languages_and_twice_alike(tmp_path: Path) -> None:
    rows = of_lever() + of_agents()
    figures = plotted(tmp_path / "one", rows, "lever", "intention")
    assert {path.stem for path in (figures / "zh").glob("*.svg")} == {*FIGURES, *CARDS}
    # SVG twice, PNG in English, and their sections
    assert len([*figures.rglob("*.*")]) == 3 * len(FIGURES) + 2 * len(CARDS) + 1
    assert "正确率" in (figures / "zh/frontier.svg").read_text(encoding="utf-8")
    again = tmp_path / "again"
    again.mkdir()
    assert draw_all(context(rows, "lever", "intention"), ENGLISH, again, with_png=False) == list(FIGURES)
    first = {path.name: path.read_bytes() for path in (figures / "en").glob("*.svg") if path.stem in FIGURES}
    assert first == {path.name: path.read_bytes() for path in again.iterdir()}


def test_a_kl_beta_has_one_look_in_both_modes() -> None:
    selected = [row for row in of_lever() if "on_policy/base~1/beta~0/" not in row.subject]
    figure = FIGURES["learning"].draw(context(selected, "lever"), ENGLISH)
    assert figure is not None
    series_styles = [{str(line.get_label()): line.get_color() for line in panel.lines} for panel in figure.axes]
    assert [{name for name in of if "KL_BETA" in name} for of in series_styles] == [
        {"KL_BETA 0", "KL_BETA 0.5"},
        {"KL_BETA 0.5"},
    ]
    assert series_styles[0]["KL_BETA 0.5"] == series_styles[1]["KL_BETA 0.5"] != series_styles[0]["KL_BETA 0"]


def test_selections_of_unlike_lengths_share_a_heat_map(tmp_path: Path) -> None:
    longer = EvidenceRow("lever", RCE.format(1), "agrees.relation", 0.375, at="rank 2")

    def texts(*rows: EvidenceRow) -> list[str]:
        figure = FIGURES["selections"].draw(context([*of_lever(), *rows], "lever"), ENGLISH)
        assert figure is not None
        return [text.get_text() for text in figure.axes[0].texts]

    one_rank, two_ranks = texts(), texts(longer)
    assert "38" not in one_rank
    assert two_ranks.count("38") == 1  # the second place of the policy with one rank is empty
    assert two_ranks.count("50") == one_rank.count("50") > 0
    assert "nan" not in two_ranks


def test_the_frontier_holds_both_modes_at_the_distance_that_is_measured_alike() -> None:
    figure = FIGURES["frontier"].draw(context(of_lever(), "lever"), ENGLISH)
    assert figure is not None
    plotted_at = {float(x) for line in figure.axes[0].lines for x in line.get_xdata() if len(line.get_xdata()) == 1}
    assert plotted_at == {0.04}  # after the last epoch; the values logged in training are at 0.2
