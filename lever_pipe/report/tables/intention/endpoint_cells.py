"""Endpoints and differences of them as cells: normalised rewards in percent of the ceiling, rewards as they are."""

from __future__ import annotations

import math

from lever_pipe.report.tables.intention.arm_comparisons import ArmComparisonRow
from lever_pipe.report.tables.intention.endpoints import EndpointRow, metric_of
from lever_pipe.report.tables.intention.shown import with_interval
from lever_pipe.report.tables.intention.task_values import NORMALISED, REWARD
from lever_pipe.report.tables.text import ABSENT, number, signed

SPLITS = {"test": "held-out tasks", "val": "validation tasks"}
METRICS = {NORMALISED: "normalised reward in percent of the ceiling", REWARD: "reward"}


def is_share(endpoint: str) -> bool:
    """Return whether an endpoint is a share of the ceiling."""
    return metric_of(endpoint) == NORMALISED


def endpoint_text(row: EndpointRow | None) -> str:
    """Return an endpoint with its interval, or an absent cell."""
    if row is None or math.isnan(row.value):
        return ABSENT
    if is_share(row.endpoint):
        return with_interval(number(100 * row.value, 1), 100 * row.low, 100 * row.high, 1)
    return with_interval(number(row.value, 3), row.low, row.high, 2)


def difference_text(row: ArmComparisonRow) -> str:
    """Return a difference with its interval, in points of the ceiling or as a reward."""
    if is_share(row.endpoint):
        return with_interval(signed(100 * row.difference, 1), 100 * row.low, 100 * row.high, 1)
    return with_interval(signed(row.difference, 3), row.low, row.high, 2)


def detectable_text(row: ArmComparisonRow) -> str:
    """Return the smallest true difference that a comparison finds, in its unit."""
    return number(100 * row.detectable, 1) if is_share(row.endpoint) else number(row.detectable, 3)


def endpoint_title(endpoint: str) -> str:
    """Return an endpoint in words, as `reward, sampled, held-out tasks, last checkpoint`."""
    split, _, rest = endpoint.partition("_")
    if split not in SPLITS:
        return f"trapezoid mean of the reward, {rest}"
    _, mode, checkpoint = rest.rsplit("_", 2)
    which = {"last": "last checkpoint", "best": "selected checkpoint", "start": "start"}[checkpoint]
    return f"{METRICS[metric_of(endpoint)]}, {mode}, {SPLITS[split]}, {which}"
