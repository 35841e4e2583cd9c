"""Valid and invalid configurations of networks and heads."""

from __future__ import annotations

from typing import Any

import pytest
from builders import shipped

from lever_pipe.base.errors import ConfigError
from lever_pipe.base.plugins import available
from lever_pipe.experiment.selector import Selector
from lever_pipe.experiment.studies import parse_experiment

V1 = {"network": "bi_encoder", "head": "blend", "width": 512, "dropout": 0.08, "temperature": 0.5}
UNFROZEN = {"grpo": {"freeze_projections": False}}


def configured(selector: dict[str, Any], **changed: Any) -> Selector:
    """Return the selector of a preset of the shipped configuration that an arm trains."""
    values = shipped()
    top = {key: changed.pop(key) for key in ("evaluation", "rl_data") if key in changed}
    values["presets"]["tried"] = {"selector": selector, **changed}
    values["arms"] = [*values["arms"], {"preset": "tried", "seeds": [0]}]
    for key, section in top.items():
        values[key] = values[key] | section
    return parse_experiment(values).presets["tried"].selector


@pytest.mark.parametrize(
    ("selector", "changed"),
    [
        *(({"head": head}, {}) for head in available("lever/heads")),
        (V1, UNFROZEN),
        ({"head": "stop"}, {"on_policy": {"stop_price": 0.05}}),
        ({"head": "gru", "steps": 4}, {"rl_data": {"shots": 4}}),
        ({"head": "gru", "steps": 2}, {"evaluation": {"shots": [1, 2]}, "on_policy": {"shots": [1, 2]}}),
    ],
)
def test_what_is_read_is_taken(selector: dict[str, Any], changed: dict[str, Any]) -> None:
    found = configured(selector, **changed)
    assert all(getattr(found, key) == value for key, value in selector.items())


@pytest.mark.parametrize(
    ("selector", "changed", "text"),
    [
        ({"head": "statc"}, {}, r"head: must be a module of .*/heads, got 'statc'. Did you mean 'static'"),
        ({"network": "biencoder"}, {}, r"network: .* got 'biencoder'. Did you mean 'bi_encoder'"),
        (V1, {}, "grpo.freeze_projections: must be false with selector.network: bi_encoder"),
        (V1, UNFROZEN | {"on_policy": {"freeze_projections": True}}, "on_policy.freeze_projections: must be false"),
        ({"head": "gru", "steps": 3}, {}, "steps: must be 0 or at least 4, the most shots"),
    ],
)  # fmt: skip
def test_what_is_not_is_refused(selector: dict[str, Any], changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=rf"presets\.tried\.(selector|on_policy)?\.?{text}"):
        configured(selector, **changed)
