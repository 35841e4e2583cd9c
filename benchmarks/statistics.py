"""Rejection rates of the tests in study reports under true nulls: `make bench-statistics` (two minutes).

The simulation has families of comparisons with one reference over common seeds and questions. The effect of seeds on
the first comparison is `ratio` times the effect on the others, as for a KL_BETA of 0 next to one of 3. No mean differs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lever_pipe.base.seeding import generator
from lever_pipe.statistics.comparison import holm, t_p_values
from lever_pipe.statistics.crossed import paired_difference

PAGE = Path("docs/report.md")
SECTION = re.compile("(?<=<!-- make bench-statistics -->\n).*?(?=<!-- end -->)", re.DOTALL)
AT_MOST, FAMILY_AT_MOST = 0.07, 0.06
LEVELS = (0.05, 0.01, 0.001)
RATIOS = (1, 2, 3, 5)
REPETITIONS, AT_A_TIME = 10_000, 500
QUESTION_SD, ANSWER_SD = 0.3, 0.3  # of one question's difference: over questions, and of single answers
SHIFT = 3.0
"""True difference at which the power is measured, in standard errors of the estimate."""


class Shape(NamedTuple):
    """A family of comparisons, and the variance between seeds relative to that between questions."""

    seeds: int
    questions: int
    comparisons: int
    seed_share: float
    """Variance of a mean difference due to seeds, divided by the variance due to questions, at ratio 1."""
    is_gated: bool = True


SHAPES = (
    *(Shape(6, 200, 9, share) for share in (0.3, 3.0)),
    *(Shape(3, 800, 5, share) for share in (0.3, 3.0)),
    Shape(2, 800, 1, 10.0, is_gated=False),
)


class Found(NamedTuple):
    """Rejection rates for a shape at a ratio."""

    shape: Shape
    ratio: int
    sizes: tuple[float, ...]
    """Of the first comparison, by level."""
    others: float
    """Of all others, at the first level."""
    family: float
    """Share of families with any rejection after Holm, at the first level."""
    power: float
    """Of the first comparison at `SHIFT`."""

    @property
    def problem(self) -> str:
        """Return the missed gate, or an empty text."""
        worst = max(self.sizes[0], self.others if self.shape.comparisons > 1 else 0.0)
        missed = worst > AT_MOST or self.family > FAMILY_AT_MOST
        return f"{self.shape}, ratio {self.ratio}: size {worst:.3f}, family {self.family:.3f}" if missed else ""


def p_values(shape: Shape, ratio: int, n: int, random: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Yield [C, n] p values of true nulls, then [n] p values of the first comparison with its mean at `SHIFT`."""
    s, questions = shape.seeds, shape.questions
    error = QUESTION_SD / questions**0.5
    seed_sd = error * (shape.seed_share * s / 2) ** 0.5  # the reference has half of the variance

    def side(scale: float) -> NDArray[np.float64]:
        answers = random.normal(0, ANSWER_SD / 2**0.5, (s, questions, n))
        runs, peculiar = (
            random.normal(0, scale * seed_sd, (s, 1, n)),
            random.normal(0, QUESTION_SD / 2**0.5, (questions, n)),
        )
        return answers + runs + peculiar

    reference = side(1.0)
    found = [
        paired_difference(side(ratio if index == 0 else 1.0), reference, same_runs=True)
        for index in range(shape.comparisons)
    ]
    yield np.stack([t_p_values(of) for of in found])
    seeds = (ratio**2 + 1) * seed_sd**2 / s
    true_error = (seeds + error**2 + ANSWER_SD**2 / (s * questions)) ** 0.5
    yield t_p_values(replace(found[0], value=found[0].value + SHIFT * true_error))


def measure(shape: Shape, ratio: int, n: int = REPETITIONS) -> Found:
    """Return the rejection rates of a family's true nulls in `n` repetitions."""
    random = generator(0, "size of tests", *map(str, shape), ratio)
    parts = [tuple(p_values(shape, ratio, min(n, AT_A_TIME), random)) for _ in range(max(1, n // AT_A_TIME))]
    p_CR, shifted_R = (np.concatenate(of, axis=-1) for of in zip(*parts, strict=True))
    families = np.array([holm(p_C).min() for p_C in p_CR.T])
    # Holm rejects some test of a family exactly if its smallest adjusted p is below the level.
    return Found(
        shape,
        ratio,
        sizes=tuple(float(np.mean(p_CR[0] < level)) for level in LEVELS),
        others=float(np.mean(p_CR[1:] < LEVELS[0])) if len(p_CR) > 1 else float("nan"),
        family=float(np.mean(families < LEVELS[0])),
        power=float(np.mean(shifted_R < LEVELS[0])),
    )


def table(rows: list[Found]) -> str:
    """Return the Markdown table."""
    head = ("shape", "seeds' part", "ratio", *(f"size at {100 * level:g} %" for level in LEVELS))
    lines = [(*head, "of the others", "family after Holm", f"power at {SHIFT:g} s.e.")]
    lines.append(("---",) * len(lines[0]))
    for row in rows:
        of, other = row.shape, "" if np.isnan(row.others) else f"{row.others:.3f}"
        size = f"{of.seeds} seeds, {of.questions} questions, {of.comparisons} compared"
        sizes = (f"{size:.3f}" for size in row.sizes)
        lines.append(
            (size, f"{of.seed_share:g}", f"{row.ratio}", *sizes, other, f"{row.family:.3f}", f"{row.power:.2f}")
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    """Print the table, write it into the page, and return 1 if a gate is missed."""
    rows = [measure(shape, ratio) for shape in SHAPES for ratio in (RATIOS if shape.comparisons > 1 else (1,))]
    known = stats.norm.sf(stats.norm.isf(LEVELS[0] / 2) - SHIFT)
    text = f"{table(rows)}\nWith known variances the power would be {known:.2f}.\n"
    page, count = SECTION.subn(lambda _: text, PAGE.read_text(encoding="utf-8"))
    if count != 1:
        sys.stderr.write(f"{PAGE}: expected one place for the table, found {count}. Put its two comments back.\n")
        return 1
    PAGE.write_text(page, encoding="utf-8")
    problems = [row.problem for row in rows if row.shape.is_gated and row.problem]
    sys.stdout.write(text + "".join(f"missed: {problem}\n" for problem in problems))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
