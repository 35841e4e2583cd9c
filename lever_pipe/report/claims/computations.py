"""Every computation that a claim may name: the public functions of the modules listed here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from lever_pipe.report.claims import (
    accuracy_claims,
    drift_claims,
    epoch_claims,
    loss_claims,
    reward_claims,
    stability_claims,
    step_claims,
)
from lever_pipe.report.claims.lever_side import LeverSide
from lever_pipe.report.claims.reward_runs import RewardRuns
from lever_pipe.report.claims.verdicts import Measured

Computation = Callable[..., Measured]

MODULES: tuple[ModuleType, ...] = (
    loss_claims,
    epoch_claims,
    accuracy_claims,
    reward_claims,
    stability_claims,
    step_claims,
    drift_claims,
)


@cache
def computations(side: type) -> Mapping[str, Computation]:
    """Return the computations on one kind of side, `LeverSide` or `RewardRuns`, as `module.function`."""
    found: dict[str, Computation] = {}
    for module in MODULES:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("_") and function.__module__ == module.__name__ and _measures(function, side):
                found[f"{module.__name__.rpartition('.')[2]}.{name}"] = function
    return found


@cache
def arguments_of(computation: Computation) -> type[BaseModel]:
    """Return the model of a computation's arguments: its keyword-only parameters, all required."""
    hints = get_type_hints(computation)
    names = [p.name for p in inspect.signature(computation).parameters.values() if p.kind is p.KEYWORD_ONLY]
    fields: dict[str, Any] = {name: (hints[name], ...) for name in names}
    return create_model("Arguments", __config__=ConfigDict(extra="forbid", frozen=True), **fields)


def side_of(document: str) -> type:
    """Return the kind of side on which the claims of a document are computed."""
    return RewardRuns if document in ("003", "004") else LeverSide


def _measures(function: Computation, side: type) -> bool:
    hints = get_type_hints(function)
    first = next(iter(inspect.signature(function).parameters), "")
    return hints.get("return") is Measured and hints.get(first) is side
