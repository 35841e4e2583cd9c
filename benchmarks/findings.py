"""`docs/findings_agent.md` and `findings_selector.md` from a finished run of `config/findings.yaml`: `make findings`.

For a run of one study, only that study's page is written. The sentences in the templates next to this file are written
by hand; all numbers, counts, lists, tables and figures come from the run's evidence.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from lever_pipe.report.cells import p_value
from lever_pipe.report.evidence import ALPHA, MEAN, Evidence, EvidenceRow, read_evidence
from lever_pipe.report.figures import style
from lever_pipe.report.format import number_text

PAGES = Path("docs")
RATES = {"1e4": 1e-4, "5e4": 5e-4, "25e4": 2.5e-3}
REWARDS = {"hard_soft": "hard and soft", "expected": "expected"}
MODES = {"grpo": "offline", "on_policy": "on-policy", "continued": "RCE continued"}
BETAS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
KL_ARMS = {"kl_only": 0.01, "kl_0p03": 0.03, "kl_0p1": 0.1, "kl_0p3": 0.3, "kl_strong": 0.5}


def label(kl: float) -> str:
    """Return a coefficient in the format of a sweep's names."""
    return f"{kl:g}".replace(".", "_")


OTHER_ARMS = ("entropy_only", "schedule_only", "schedule_matched", "bundle")
DECODINGS = ("sampled", "greedy")
SEEDS = range(6)
FORMS = ("k2_loss", "k1_reward")
FORM_KLS = {0.03: "kl_0p03", 0.1: "kl_0p1", 0.3: "kl_0p3"}
"""The coefficients that every form uses, and the arm of the published form."""
FORM_ARMS = {(form, kl): f"kl_forms__kl_form_{form}__kl_{label(kl)}" for form in FORMS for kl in FORM_KLS}
GAMED = {0.0: "gamed"} | {kl: f"gamed__kl_{label(kl)}" for kl in (0.1, 0.3, 0.5, 1.0)}
TEMPERATURES = {0.0: "greedy"} | {of: f"sampled_at_{of:g}" for of in (0.25, 0.5, 0.75)} | {1.0: "sampled"}
"""Decoding by temperature."""
HEATED = ("start", "baseline", "kl_0p1", "kl_0p3", "kl_strong", "entropy_only", "gamed")
LONG = (10, 25, 50)
EQUAL = {"equal_1e4": "stored selections", "equal_1e4_replayed": "samples of on-policy GRPO"}
"""Presets with equal recipes in both modes, and the training data of offline GRPO."""
USABLE = ("1e4", "5e4")
"""Learning rates at which no mode collapses."""
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
Rows = Mapping[str, EvidenceRow]


@dataclass(frozen=True)
class FindingsRun:
    """The evidence of a run, with the queries of the page."""

    evidence: Evidence

    def policy(self, preset: str, mode: str, beta: float = 0.0, epoch: int = 3) -> str:
        """Return the name of a run's group after an epoch."""
        which = "" if mode == "continued" else f"/beta~{beta:g}"
        return f"preset~{preset}/{mode}/base~5{which}/epoch~{epoch}"

    def accuracy(self, group: str) -> EvidenceRow:
        """Return an accuracy over all questions, mean over shots."""
        return self.evidence.get(group, "accuracy", subset="prefix", samples=800, shots=MEAN)

    def against(self, left: str, right: str) -> EvidenceRow:
        """Return a comparison of accuracies over all questions, mean over shots."""
        at = {"study": "lever", "against": right, "samples": 800, "shots": MEAN}
        (row, *_) = self.evidence.where(left, "accuracy", **at)
        return row

    def over_rce(self, preset: str, mode: str, beta: float = 0.0, epoch: int = 3) -> EvidenceRow:
        """Return the difference of a run to its RCE base."""
        return self.against(self.policy(preset, mode, beta, epoch), f"preset~{preset}/rce/epoch~5")

    def held_out(self, arm: str, decoding: str) -> EvidenceRow:
        """Return an arm's held-out share of the ceiling after its last step."""
        at = {"study": "intention", "subset": "test", "mode": decoding, "at": "last"}
        return self.evidence.get(f"arm~{arm}", "normalised_reward", **at)

    def over_arm(self, arm: str, decoding: str, other: str = "baseline") -> EvidenceRow:
        """Return an arm's held-out difference to another arm, or to the start policy."""
        at = {"study": "intention", "against": f"arm~{other}", "subset": "test", "mode": decoding, "at": "last"}
        (row, *_) = self.evidence.where(f"arm~{arm}", "normalised_reward", **at)
        return row

    def best_of(self, arm: str) -> tuple[float, EvidenceRow]:
        """Return the temperature with an arm's highest score, and this score."""
        found = {of: self.held_out(arm, mode) for of, mode in TEMPERATURES.items()}
        return max(found.items(), key=lambda item: item[1].value)

    def earned(self, arm: str, steps: Collection[int]) -> float:
        """Return the mean reward of training episodes at some steps, over seeds, as a share of one detail a question.

        For an arm with a proxy it is the proxy's reward, and so may exceed 1.
        """
        at = {"study": "intention", "subset": "train"}
        found = [
            row.value
            for seed in SEEDS
            for step in steps
            for row in self.evidence.where(f"arm~{arm}/seed~{seed}", "normalised_reward", at=str(step), **at)
        ]
        return math.fsum(found) / len(found)

    def kl_to_rce(self, mode: str, beta: float = 0.0) -> float:
        """Return the KL of a final policy of X3 from its RCE base, in nats a step of the base's greedy selections."""
        return self.evidence.get(self.policy("world", mode, beta), "kl_to_base", at="from base").value

    def metric(self, subject: str, name: str, study: str = "lever") -> float:
        """Return a metric, or NaN."""
        row = self.evidence.find(subject, name, study=study)
        return math.nan if row is None else row.value


@dataclass(frozen=True)
class Compared:
    """The comparisons that sentences of the page summarise, by their displayed names."""

    run: FindingsRun

    def arms(self, decoding: str, arms: Collection[str]) -> Rows:
        """Return comparisons of arms with the baseline; arms with a KL coefficient are named by it."""
        return {f"{KL_ARMS.get(arm, f'`{arm}`')}": self.run.over_arm(arm, decoding) for arm in arms}

    def forms(self, decoding: str) -> Rows:
        """Return comparisons of the other forms of the KL with no KL, by form and coefficient."""
        return {f"{form} {kl:g}": self.run.over_arm(arm, decoding) for (form, kl), arm in FORM_ARMS.items()}

    def held(self, decoding: str) -> Rows:
        """Return comparisons of the proxy arms with a KL to the one without, by coefficient."""
        return {f"{kl:g}": self.run.over_arm(arm, decoding, "gamed") for kl, arm in GAMED.items() if kl}

    def sharpened(self) -> Rows:
        """Return comparisons of the baseline with the start policy, by temperature."""
        return {f"{of:g}": self.run.over_arm("baseline", mode, "start") for of, mode in TEMPERATURES.items()}

    def modes(self, rates: Collection[str], left: str, right: str) -> Rows:
        """Return comparisons of one mode with another, or with the RCE base, by reward and learning rate."""
        cells = {f"{label}, {RATES[key]:g}": f"{reward}_{key}" for reward, label in REWARDS.items() for key in rates}
        if right == "rce":
            return {name: self.run.over_rce(preset, left) for name, preset in cells.items()}
        sides = {name: [self.run.policy(preset, mode) for mode in (left, right)] for name, preset in cells.items()}
        return {name: self.run.against(*pair) for name, pair in sides.items()}

    def equal(self) -> Rows:
        """Return comparisons of on-policy with offline GRPO at equal recipes, by the training data of the latter."""
        pairs = {
            label: [self.run.policy(preset, mode) for mode in ("on_policy", "grpo")] for preset, label in EQUAL.items()
        }
        return {label: self.run.against(*pair) for label, pair in pairs.items()}

    def long(self, right: str) -> Rows:
        """Return comparisons of offline GRPO after its last epoch with the RCE base or RCE continued for as long."""
        presets = {f"{label}, {RATES[k]:g}": f"{of}_{k}_long" for of, label in REWARDS.items() for k in USABLE}
        if right == "rce":
            return {name: self.run.over_rce(preset, "grpo", 0.0, LONG[-1]) for name, preset in presets.items()}
        sides = {
            n: [self.run.policy(of, mode, epoch=LONG[-1]) for mode in ("grpo", right)] for n, of in presets.items()
        }
        return {name: self.run.against(*pair) for name, pair in sides.items()}

    def betas(self, mode: str) -> Rows:
        """Return comparisons of each KL_BETA with 0."""
        start = self.run.policy("world", mode)
        return {f"{beta:g}": self.run.against(self.run.policy("world", mode, beta), start) for beta in BETAS[1:]}


def apart(rows: Rows) -> Rows:
    """Return the comparisons that are separated within their family."""
    return {name: row for name, row in rows.items() if row.p_holm < ALPHA}


def together(rows: Rows) -> Rows:
    """Return the comparisons that are not separated."""
    return {name: row for name, row in rows.items() if not row.p_holm < ALPHA}


def listed(names: Collection[object], between: str = ", ") -> str:
    """Return names in one line, or `none`."""
    return between.join(map(str, names)) or "none"


def counted(part: Collection[object], whole: Collection[object]) -> str:
    """Return a count and its total in words, as `two of the four`."""
    n = WORDS[len(whole)]
    return f"all {n}" if len(part) == len(whole) else f"{WORDS[len(part)]} of the {n}"


def span(rows: Rows, digits: int = 1, scale: float = 1.0) -> str:
    """Return the smallest and the largest value, as `0.2 to 0.8`."""
    ends = (number_text(scale * end(row.value for row in rows.values()), digits) for end in (min, max))
    return " to ".join(dict.fromkeys(ends))


def reaching(rows: Rows, scale: float = 1.0) -> str:
    """Return half the width of the widest interval."""
    return number_text(scale * max(row.high - row.low for row in rows.values()) / 2, 1)


def displayed(row: EvidenceRow, digits: int = 1, scale: float = 1.0, *, sign: bool = True) -> str:
    """Return a value with its interval, as `+0.8 [0.2, 1.4]`."""
    ends = ", ".join(number_text(scale * end, digits) for end in (row.low, row.high))
    return f"{number_text(scale * row.value, digits, sign=sign)} [{ends}]"


def p_of(row: EvidenceRow) -> str:
    """Return the adjusted p value of a comparison."""
    return p_value(row.p_holm).parts[0]


def _agent(run: FindingsRun) -> Figure:
    """Draw the KL grid in both decodings: difference to the baseline, and KL at the end of training."""
    figure, (left, right) = style.panels(1, 2, height=3.6)
    for index, decoding in enumerate(DECODINGS):
        rows = {kl: run.over_arm(arm, decoding) for arm, kl in KL_ARMS.items()}
        points = {kl: _percent(row) for kl, row in rows.items()}
        style.bars(left, points, style.series_style(index), label=decoding)
    left.axhline(0.0, color=style.GREY, linewidth=0.9)
    left.set_xscale("log")
    ends = {
        0.0 if arm == "baseline" else KL_ARMS[arm]: run.metric(f"arm~{arm}", "kl_end", "intention")
        for arm in ("baseline", *KL_ARMS)
    }
    right.plot(list(ends), list(ends.values()), color=style.INK, marker="o")
    right.set_xscale("symlog", linthresh=0.01)
    style.label(left, title="Held-out reward against no KL", x="KL coefficient", y="points of the ceiling")
    style.label(right, title="KL at the end of training", x="KL coefficient", y="nats a token")
    left.legend()
    return figure


def _gamed(run: FindingsRun) -> Figure:
    """Draw scores by temperature, and by KL for training with a proxy reward."""
    figure, (left, right) = style.panels(1, 2, height=3.6)
    for index, arm in enumerate(("start", "baseline", "kl_strong", "gamed")):
        rows = {of + 0.008 * index: _percent(run.held_out(arm, mode)) for of, mode in TEMPERATURES.items()}
        style.bars(left, rows, style.series_style(index), label=f"{arm} policy" if arm == "start" else arm)
    for index, decoding in enumerate(DECODINGS):
        rows = {kl + 0.005 * index: _percent(run.held_out(arm, decoding)) for kl, arm in GAMED.items()}
        style.bars(right, rows, style.series_style(index), label=decoding)
    style.label(left, title="Held-out score by temperature", x="temperature (0: greedy)", y="% of the ceiling")
    style.label(right, title="Trained on a proxy", x="KL coefficient", y="% of the ceiling")
    left.legend()
    right.legend()
    return figure


def _percent(row: EvidenceRow) -> EvidenceRow:
    return row._replace(value=100 * row.value, low=100 * row.low, high=100 * row.high)


def _recipe(run: FindingsRun) -> Figure:
    """Draw the gain of three epochs over RCE, by reward, learning rate and mode."""
    figure, axes = style.panels(1, len(REWARDS), height=3.6)
    for panel, (reward, name) in zip(axes, REWARDS.items(), strict=True):
        for index, (mode, label) in enumerate(MODES.items()):
            rows = {
                rate * (1 + 0.08 * (index - 1)): run.over_rce(f"{reward}_{key}", mode) for key, rate in RATES.items()
            }
            style.bars(panel, rows, style.series_style(index), label=label)
        panel.axhline(0.0, color=style.GREY, linewidth=0.9)
        panel.set_xscale("log")
        style.label(panel, title=f"Reward: {name}", x="Learning rate", y="Points over RCE" if panel is axes[0] else "")
    low, high = min(panel.get_ylim()[0] for panel in axes), max(panel.get_ylim()[1] for panel in axes)
    for panel in axes:
        panel.set_ylim(low, high)
    axes[0].legend()
    return figure


def _betas(run: FindingsRun) -> Figure:
    """Draw the gain of three epochs over RCE, by KL_BETA and by the resulting divergence."""
    figure, (left, right) = style.panels(1, 2, height=3.6)
    for index, mode in enumerate(("grpo", "on_policy")):
        rows = {beta: run.over_rce("world", mode, beta) for beta in BETAS}
        style.bars(left, rows, style.series_style(index), label=MODES[mode])
        kl = {run.kl_to_rce(mode, beta): row for beta, row in rows.items()}
        style.bars(right, kl, style.series_style(index), linestyle="", label=MODES[mode])
    left.set_xscale("symlog", linthresh=0.03, linscale=0.5)
    left.set_xticks(BETAS, [f"{beta:g}" for beta in BETAS])
    left.minorticks_off()
    right.set_xscale("log")
    for panel in (left, right):
        panel.axhline(0.0, color=style.GREY, linewidth=0.9)
    style.label(left, x="KL_BETA", y="Points over RCE")
    style.label(right, x="KL from RCE (nats a step)")
    left.legend()
    return figure


def main(results: str = "results/findings") -> int:
    """Write the pages of the run's studies with their figures, and return 0."""
    rows = read_evidence(Path(results) / "evidence.csv")
    run = FindingsRun(Evidence(rows))
    studies = {row.study for row in rows if not row.subject.startswith("published")}
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    constants = {"RATES": RATES, "REWARDS": REWARDS, "BETAS": BETAS, "KL_ARMS": KL_ARMS, "OTHER_ARMS": OTHER_ARMS}
    constants |= {"FORM_KLS": FORM_KLS, "FORM_ARMS": FORM_ARMS, "GAMED": GAMED, "TEMPERATURES": TEMPERATURES}
    constants |= {"HEATED": HEATED, "LONG": LONG, "USABLE": USABLE, "EQUAL": EQUAL, "ALPHA": ALPHA}
    words = {of.__name__: of for of in (displayed, apart, together, listed, counted, span, reaching)}
    values = {"run": run, "of": Compared(run), "p": p_of, "number": number_text}
    for study, (name, figures) in STUDIES.items():
        if study not in studies:
            continue
        text = environment.get_template(f"{name}.md.j2").render(**values, **words, **constants)
        (PAGES / f"{name}.md").write_text(text, encoding="utf-8")
        with style.styled():
            for figure, draw in figures.items():
                # Without matplotlib's version, so that equal figures have equal bytes.
                draw(run).savefig(PAGES / f"{figure}.png", format="png", metadata={"Software": None})
        sys.stdout.write(f"{PAGES / name}.md\n")
    return 0


STUDIES: Mapping[str, tuple[str, Mapping[str, Callable[[FindingsRun], Figure]]]] = {
    "intention": ("findings_agent", {"findings-agent": _agent, "findings-gamed": _gamed}),
    "lever": ("findings_selector", {"findings-recipe": _recipe, "findings-betas": _betas}),
}
"""The page of each study, and its figures by name."""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
