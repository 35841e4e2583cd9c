"""`doctor --answer` sends the same questions to the embedded LVLM and to the model library."""

from __future__ import annotations

from pathlib import Path

from builders import shipped

from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.runtime.checks import answers
from lever_pipe.runtime.checks.findings import Level

ROOT = Path(__file__).parents[3]
N_QUESTIONS = 3


def experiment(**lvlm: object) -> Experiment:
    """Return the shipped experiment with a world of few pictures."""
    values = shipped()
    found = parse_experiment(values | {"lvlm": values["lvlm"] | lvlm})
    world = found.data.world.model_copy(update={"n_train": 64, "n_eval": 8})
    return found.model_copy(update={"data": found.data.model_copy(update={"world": world})})


def test_questions_are_answered_alike_by_both() -> None:
    found = list(answers.check(experiment(), N_QUESTIONS, ROOT))
    assert {outcome.level for outcome in found} == {Level.OK}
    assert "by plugin qwen2_5_vl on cpu" in found[0].text
    assert sum(outcome.check == "answer" for outcome in found) == N_QUESTIONS
    assert found[-1].text == "plugin hf: the same 3 answers"


def test_a_model_that_cannot_be_asked_is_a_problem(tmp_path: Path) -> None:
    *_, last = answers.check(experiment(model=str(tmp_path), engine="hf"), N_QUESTIONS, ROOT)
    assert last.level is Level.PROBLEM
    assert str(tmp_path) in last.text
