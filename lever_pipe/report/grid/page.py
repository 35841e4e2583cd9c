"""The grid's page: what separates, the map, the best cell of each budget, and every cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from lever_pipe.base.policy_names import OWN, PolicyName, beta_text
from lever_pipe.experiment.stage_configs import SelectorKind
from lever_pipe.report.cells import p_value
from lever_pipe.report.evidence import MEAN, OF_ONE_RUN
from lever_pipe.report.format import ends_of, number_text, parts_of
from lever_pipe.report.grid.cells import AGAINST_RANDOM, MARKS, ORACLE, QUESTIONS, Place
from lever_pipe.report.grid.map import Mark
from lever_pipe.report.grid.published import POINTER, Beside, Coordinates, PlacedRow, beside

LEVEL = 0.05
"""Of the adjusted p value from which on two cells count as separated."""
DASH = "–"
CELL = ("data", "sampler", "lvlm", "policy")
"""Columns of the leaderboard that say which cell a line is of."""


def primary(leaderboard: pd.DataFrame, samples: int) -> pd.DataFrame:
    """Return the lines of what is looked at first: the largest sample count, mean over shots."""
    return leaderboard[(leaderboard["samples"] == samples) & (leaderboard["shots"].astype(str) == MEAN)]


def lines_of(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the lines of a frame, their cells by name."""
    yield from frame.itertuples()


def called(policy: str) -> str:
    """Return what a policy's row is called."""
    name = PolicyName.parse(policy)
    if not name.preset:
        return name.member.replace("_", " ") if name.kind == "baseline" else f"own: {name.member}"
    beta = "" if name.beta is None else f" β={beta_text(name.beta)}"
    origin = f" from {name.origin}" if name.origin else f", first {name.items} items" if name.items else ""
    return f"{name.preset}: {name.kind.replace('_', '-')}{beta}{origin}"


def marks(compared: pd.DataFrame) -> list[Mark]:
    """Return every cell's distance from random in its corner, best row first; panels and samplers in their order."""
    against = compared[compared["family"].str.startswith((AGAINST_RANDOM, MARKS))]
    ceilings = {
        (row.data, Place.parse(row.left).corner): row.difference
        for row in lines_of(against)
        if str(Place.parse(row.left).policy) == ORACLE
    }
    found = []
    for row in lines_of(against):
        place = Place.parse(row.left)
        if str(place.policy) == ORACLE:
            continue
        ceiling = ceilings.get((row.data, place.corner))
        panel = f"{row.data}, answered by {place.lvlm}"
        found.append(Mark(panel, called(str(place.policy)), place.sampler, row.difference, row.low, row.high, ceiling))
    panels, samplers = (
        list(dict.fromkeys(values)) for values in zip(*((m.panel, m.series) for m in found), strict=True)
    )
    mean = pd.DataFrame(found, columns=Mark._fields).groupby("row")["value"].mean()
    return sorted(found, key=lambda m: (panels.index(m.panel), -mean[m.row], m.row, samplers.index(m.series)))


class Verdicts(NamedTuple):
    """How the comparisons of a family came out on a data set."""

    family: str
    data: str
    asks: str
    n: int
    up: int
    down: int
    rows: list[dict[str, Any]]

    @property
    def told(self) -> str:
        """Return the sentence."""
        rest = self.n - self.up - self.down
        return f"{self.up} of {self.n} higher, {self.down} lower, {rest} not separated"


def verdicts(compared: pd.DataFrame) -> list[Verdicts]:
    """Return every family by data set, its comparisons from the largest difference to the smallest."""
    found = []
    for (family, data), rows in compared.groupby(["family", "data"], sort=False):
        is_apart = rows["p_holm"] < LEVEL
        listed = [_compared(row) for row in lines_of(rows.sort_values("difference", ascending=False))]
        name, is_of_one = str(family).removesuffix(OF_ONE_RUN), str(family).endswith(OF_ONE_RUN)
        asks = QUESTIONS[name] + (
            " (of one run or draw a side: they infer to further questions only)" if is_of_one else ""
        )
        up, down = (int((is_apart & sign).sum()) for sign in (rows["difference"] > 0, rows["difference"] < 0))
        found.append(Verdicts(str(family), str(data), asks, len(rows), up, down, listed))
    return found


def _compared(row: Any) -> dict[str, Any]:
    left, right = Place.parse(row.left), Place.parse(row.right)
    where = left.sampler if left.sampler == right.sampler else f"{left.sampler} − {right.sampler}"
    same = str(left.policy) == str(right.policy)
    return {
        "what": called(str(left.policy)) if same else f"{called(str(left.policy))} − {called(str(right.policy))}",
        "where": f"{where}, {left.lvlm}",
        "difference": number_text(row.difference, 1, sign=True),
        "interval": " to ".join(ends_of(row.low, row.high, 1, sign=True)),
        "p": p_text(row.p_holm),
        "detectable": DASH if math.isnan(row.detectable) else number_text(row.detectable, 1),
        "runs": row.n_runs,
        "is_apart": row.p_holm < LEVEL,
    }


def best_by_budget(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """Return for each data set, LVLM and budget of training prompts the cell of the highest accuracy within it.

    Without the oracle, and without selectors of the user's own, whose prompts nobody counts.
    """
    is_counted = (cells["policy"] != ORACLE) & (cells["objective"] != OWN)
    found: list[dict[str, Any]] = []
    for _, rows in cells[is_counted].groupby(["data", "lvlm"], sort=False):
        for budget in sorted(rows["training_prompts"].unique()):
            best = (
                rows[rows["training_prompts"] <= budget].sort_values("accuracy", ascending=False, kind="stable").iloc[0]
            )
            found.append({"budget": f"{budget:,}", **cell_of(best)})
    return found


def cell_of(row: pd.Series) -> dict[str, Any]:
    """Return what a table says of a cell."""
    share = row["share_of_oracle"]
    return {
        "data": row["data"],
        "policy": called(row["policy"]),
        "sampler": row["sampler"],
        "lvlm": row["lvlm"],
        "accuracy": number_text(row["accuracy"], 1),
        "interval": " to ".join(ends_of(row["low"], row["high"], 1)),
        "runs": row["n_runs"],
        "prompts": f"{row['training_prompts']:,}",
        "share": DASH if pd.isna(share) else f"{100 * share:.0f} %",
    }


def cells_of(cells: pd.DataFrame, board: pd.DataFrame, shots: Iterable[int]) -> list[dict[str, Any]]:
    """Return every cell with its accuracy at each shot count, by data set from the highest mean to the lowest."""
    ordered = cells.sort_values(["data", "accuracy"], ascending=[True, False], kind="stable")
    same = board[board["samples"].isin(ordered["samples"])]
    at = {(*(row[name] for name in CELL), str(row["shots"])): row["accuracy"] for _, row in same.iterrows()}
    return [
        cell_of(row) | {f"at_{k}": number_text(at[(*(row[name] for name in CELL), str(k))], 1) for k in shots}
        for _, row in ordered.iterrows()
    ]


def published_beside(
    board: pd.DataFrame, rows: Sequence[PlacedRow], kinds: Mapping[str, SelectorKind], stands_for: Mapping[str, str]
) -> tuple[list[Beside], list[dict[str, Any]]]:
    """Return what the published reference holds by part, and its rows that a cell has the coordinates of.

    GRPO counts in either mode, and at whatever KL_BETA: the table names the cell. Of several cells the first stands.
    """
    cells: dict[Coordinates, Any] = {}
    for row in lines_of(board):
        name = PolicyName.parse(row.policy)
        if name != name.home or name.preset not in kinds or row.data not in stands_for:
            continue
        shots: Any = MEAN if str(row.shots) == MEAN else int(row.shots)
        selector, layers = named(kinds[name.preset])
        at = Coordinates(stands_for[row.data], row.sampler, selector, name.phase, layers, int(row.samples), shots)
        cells.setdefault(at, row)
    parts, found = beside(rows, cells)
    return parts, [
        {
            "where": f"{of.dataset}, {of.sampler}",
            "what": f"{of.selector}, {of.objective}" + ("" if of.layers is None else f", {of.layers} layers"),
            "n": of.samples,
            "shots": of.shots,
            "number": of.number,
            "ours": number_text(here.accuracy, 1),
            "cell": f"{called(here.policy)} on {here.data}, answered by {here.lvlm}",
        }
        for of, here in found
    ]


def named(kind: SelectorKind) -> tuple[str, int | None]:
    """Return a selector's name as published rows have it, and its layers where these rows tell them."""
    if kind.network != "cross_attention":
        return kind.network, None
    return (POINTER if kind.head == "static" else f"{POINTER}/{kind.head}"), kind.layers


def p_text(p: float) -> str:
    """Return an adjusted p value."""
    return DASH if math.isnan(p) else parts_of(p_value(p, ""))[0]


def headline(found: Sequence[Verdicts]) -> str:
    """Return the sentence that stands first: what is separated from chance."""
    against = [of for of in found if of.family.removesuffix(OF_ONE_RUN) == AGAINST_RANDOM]
    n, up, down = (sum(getattr(of, name) for of in against) for name in ("n", "up", "down"))
    return (
        f"{up} of {n} cells of a selector choose better than chance from the same pools, {down} worse; "
        f"for {n - up - down} the data do not tell (Holm within each data set, {LEVEL:.0%})."
    )
