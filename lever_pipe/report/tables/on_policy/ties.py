"""How many groups have a gradient: stored ones by reward, drawn ones under the hard reward and under theirs."""

from __future__ import annotations

import pandas as pd

from lever_pipe.report.tables.on_policy.files import BEST
from lever_pipe.report.tables.on_policy.gains import FACTOR
from lever_pipe.report.tables.on_policy.study import LAST_SHARE, ON_POLICY, SECTION, PresetRuns, Run, id_of, names_with
from lever_pipe.report.tables.table import GROUP, Table, frame_of, groups_of
from lever_pipe.report.tables.text import number, sentences

WEIGHTS = {"hard": "Hard weight", "soft": "Soft weight", "relevance": "Relevance weight"}
HARD, DENSE = "gradient_share_hard", "gradient_share"
SHARES = {"whole run": 1.0, "last quarter": LAST_SHARE}


def stored_table(ties: pd.DataFrame) -> Table:
    """Return, for each reward, the share of queries of the RL data whose stored selections give a gradient.

    Args:
        ties: `ties.csv` as text, shares in [0, 1].
    """
    kept = [str(column) for column in ties.columns if str(column).startswith(BEST)]
    headings = {
        "differ": "All kept",
        "differ_clearly": "All kept, by over 0.1",
        **{column: f"Best {column.removeprefix(BEST)} kept" for column in kept},
    }
    rows = [
        {
            "Reward": f"`{row['mode']}`",
            **{heading: row[column] for column, heading in WEIGHTS.items()},
            "Queries": row["queries"],
            **{heading: _percent(row[column]) for column, heading in headings.items()},
        }
        for row in ties.to_dict("records")
    ]
    return Table(
        "on-policy-ties",
        SECTION,
        "Stored groups with a gradient, by reward",
        sentences(
            "Share in percent of the queries of the RL data whose stored selections differ in reward; without a "
            "difference a query has no gradient.",
            "By over 0.1: a reward that holds probabilities differs nearly always, if often by little.",
            "Best kept: only so many of the best selections of a query enter the offline loss, and some of them must "
            "have an advantage.",
        ),
        frame_of(rows, ["Reward", *WEIGHTS.values(), "Queries", *headings.values()]),
    )


def drawn_table(study: PresetRuns) -> Table:
    """Return the share of drawn groups with a gradient, had the hard reward been used and under the one that was."""
    rows = [row for run in study.at_last(ON_POLICY) if (row := _row(study, run))]
    headings = [f"{name}, {where}" for where in SHARES for name in ("Hard reward", "Reward used")]
    return Table(
        id_of(study, "drawn-ties"),
        SECTION,
        names_with(study, "Drawn groups with a gradient, by KL_BETA"),
        sentences(
            "Share in percent of the groups that the policy drew, mean over steps and seeds.",
            "Hard reward: groups whose VQA accuracies differ.",
            "Reward used: groups with a gradient under the reward of training.",
        ),
        frame_of(rows, ["KL_BETA", "Seeds", *headings]),
        factor=FACTOR,
        groups=groups_of(rows),
    )


def _row(study: PresetRuns, run: Run) -> dict[str, str]:
    names = {"Hard reward": HARD, "Reward used": DENSE}
    found = {
        f"{name}, {where}": study.logged(run, metric, share=share)
        for where, share in SHARES.items()
        for name, metric in names.items()
    }
    if not any(value is not None for value in found.values()):
        return {}
    shares = {heading: number(None if value is None else 100 * value, 1) for heading, value in found.items()}
    return {"KL_BETA": run.beta_text, "Seeds": str(len(run.seeds)), **shares, GROUP: run.group}


def _percent(share: str) -> str:
    return number(100 * float(share), 1) if share else ""
