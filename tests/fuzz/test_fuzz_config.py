"""The configuration, from the file's bytes through Snakemake's reader to the experiment."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_input import (
    BYTES,
    NASTY,
    STRUCTURAL,
    TRIED,
    Harm,
    Pairs,
    Raw,
    _harm_tree,
    _harms,
    fewer_inputs,
    harm_bytes,
    in_time,
    law_of,
    to_tree,
)
from hypothesis import given
from hypothesis import strategies as st
from snakemake.common.configfile import load_configfile
from snakemake_interface_common.exceptions import WorkflowError

from lever_pipe.base.errors import ConfigError
from lever_pipe.experiment.studies import Experiment, parse_experiment

REPOSITORY = Path(__file__).parents[2]
NAMES = ("config.yaml", "config/smoke.yaml")
TEXTS = [(REPOSITORY / name).read_bytes() for name in NAMES]
# The defaults name every key there is.
WHOLE = [Experiment().model_dump(mode="json"), *(yaml.safe_load(text) for text in TEXTS)]


def plain(tree: Any) -> Any:
    """Return a harmed tree as YAML would give it: of a key that stands twice the last, and no text that is no YAML."""
    if isinstance(tree, Raw):
        return str(tree)[:3000]
    if isinstance(tree, Pairs):
        return {key: plain(value) for key, value in tree}
    return [plain(item) for item in tree] if isinstance(tree, list) else tree


@st.composite
def documents(draw: st.DrawFn) -> Any:
    tree = to_tree(draw(st.sampled_from(WHOLE)))
    for harm in draw(_harms(STRUCTURAL, 3)):
        _harm_tree(tree, harm)
    return plain(tree)


def meant(result: Any, given: Any) -> bool:
    """Return whether a parsed value is the one that was written; a text may spell a number."""
    if isinstance(given, dict):
        return isinstance(result, dict) and all(key in result and meant(result[key], given[key]) for key in given)
    if isinstance(given, list | tuple):
        return isinstance(result, list | tuple) and len(given) == len(result) and all(map(meant, result, given))
    if isinstance(result, bool) or isinstance(given, bool):
        return result is given
    if isinstance(result, int | float) and isinstance(given, str):
        return float(given) == result
    return type(result) in (type(given), float, int) and bool(result == given)


@fewer_inputs
@given(values=documents())
def test_an_experiment_is_what_the_configuration_says(values: Any) -> None:
    taken, experiment = law_of(
        "config values", lambda: parse_experiment(values, source="config.yaml"), names="config.yaml: "
    )
    if taken:
        assert meant(experiment.model_dump(mode="json"), values)
        assert parse_experiment(experiment.model_dump(mode="json")) == experiment


@fewer_inputs
@given(place=st.integers(0, len(TEXTS) - 1), harms=_harms(BYTES, 3))
def test_a_harmed_file_is_refused_or_says_what_is_run(
    tmp_path_factory: pytest.TempPathFactory, place: int, harms: list[Harm]
) -> None:
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_bytes(harm_bytes(TEXTS[place], harms))
    try:
        with in_time():
            values = load_configfile(path)
    except (WorkflowError, ValueError, TypeError, RecursionError):  # Snakemake's own reader
        TRIED["config file"][0] += 1
        return
    taken, experiment = law_of("config file", lambda: parse_experiment(values, source=str(path)), names=f"{path}: ")
    if taken:
        assert meant(experiment.model_dump(mode="json"), values)


def laughs(levels: int, width: int) -> str:
    """Return YAML whose aliases stand for `width ** levels` values."""
    lines = ["x0: &x0 [a, a]"]
    lines += [f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join([*lines, f"presets: *x{levels - 1}"])


@pytest.mark.parametrize(
    "text",
    [
        laughs(12, 10),
        "presets: &a\n  x: *a",
        "arms: &a [*a]",
        "report: {title: " + "[" * 200 + "]" * 200 + "}",
        "results: !!python/object/apply:os.system [touch pwned]",
        "results: 2020-01-01",
        "results: !!binary aGFsbG8=",
        "results: !!set {a}",
        "1: 2",
        "presets: {1: {}}",
        "data: {n_eval: yes}",
        "data: {n_eval: .nan}",
        "presets: {a: {max_gradient_norm: .inf}}",
        "presets: {a: {max_gradient_norm: .nan}}",
        "presets: {a: {rce: {learning_rate: '1e-9999'}}}",
        'results: "a\\0b"',
        'report: {title: "\\ud800"}',
    ],
    ids=lambda text: text[:40],
)
def test_no_bomb_and_no_foreign_value_is_taken(text: str) -> None:
    with in_time():
        try:
            values = yaml.safe_load(io.StringIO(text))
        except yaml.YAMLError:
            return
    taken, _ = law_of("config bombs", lambda: parse_experiment(values), names="config.yaml: ")
    assert not taken


@pytest.mark.parametrize(("text", "value"), [("1e-5", 1e-5), ("'1.0e-5'", 1e-5), ("1.0e-5", 1e-5), ("0.00001", 1e-5)])
def test_a_number_may_be_spelt_as_text(text: str, value: float) -> None:
    values = yaml.safe_load(f"presets: {{published: {{rce: {{learning_rate: {text}}}}}}}")
    assert parse_experiment(values).presets["published"].rce.learning_rate == value


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_experiment({"data": {"n_eval": "x" * 10**6}})
    assert len(str(refusal.value)) < 1500
    assert len(NASTY) > 40
