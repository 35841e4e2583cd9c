from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not installed

from benchmarks import answering
from benchmarks.comparison import Comparison, DifferentAnswersError, Measured, Seconds, compare, largest_difference
from benchmarks.document import gate_faults
from benchmarks.modes import ENGINE, MODES, PLAIN, ByEngine, Mode, Outcome, Work
from benchmarks.subjects import SIZES, Subject, random_subject
from benchmarks.workloads import Workload, evaluation, rl_data
from lever_pipe.lvlms.asking.prompts import ImagePart, Prompt, TextSegment, Turn


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return random_subject(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module", params=["rl_data", "evaluation"])
def workload(subject: Subject, request: pytest.FixtureRequest) -> Workload:
    if request.param == "rl_data":
        return rl_data(subject, n_queries=1, n_sequences=4)
    return evaluation(subject, n_checkpoints=2, n_queries=1)


@pytest.fixture(scope="module")
def comparison(subject: Subject, workload: Workload) -> Comparison:
    return compare(subject, workload, rounds=1)


def segment_tokens(subject: Subject, segment: TextSegment) -> int:
    """Return text tokens and, instead of each image's placeholder, one token for every 28 x 28 pixels."""
    images = [subject.images.open(digest) for digest in segment.images]
    # No image is beyond the bounds of the processor, so each side is only rounded to a multiple of 28.
    merged = sum(round(image.width / 28) * round(image.height / 28) for image in images)
    return len(subject.parts.tokenizer(segment.text).input_ids) - len(images) + merged


def prompt_tokens(subject: Subject, prompt: Prompt) -> int:
    return sum(segment_tokens(subject, segment) for segment in subject.parts.render(prompt).segments)


def test_every_mode_answers_alike(comparison: Comparison) -> None:
    assert set(comparison.measured) == {mode.name for mode in MODES}
    assert comparison.measured[PLAIN.name].difference == 0
    # Above zero, because other shapes round otherwise: nobody compares a mode with itself.
    assert all(0 < comparison.measured[mode.name].difference <= 1e-4 for mode in MODES if mode is not PLAIN)


def test_work_is_what_the_workload_implies(subject: Subject, workload: Workload, comparison: Comparison) -> None:
    requests = workload.requests
    lengths = {request.prompt: prompt_tokens(subject, request.prompt) for request in requests}
    written = {prompt: subject.parts.render(prompt).segments for prompt in lengths}
    beginnings = {segments[: n + 1] for segments in written.values() for n in range(len(segments))}
    shared = sum(segment_tokens(subject, beginning[-1]) for beginning in beginnings)
    plain = sum((1 + len(request.answers)) * lengths[request.prompt] for request in requests)
    tokens = {name: measured.work.tokens for name, measured in comparison.measured.items()}
    assert tokens == {
        "plain": plain,
        "engine": shared,
        "engine, no common beginnings": sum(lengths.values()),
        "engine, padded": shared,
    }
    assert plain > sum(lengths.values()) > shared


def test_images_prompts_and_forwards_are_counted(workload: Workload, comparison: Comparison) -> None:
    requests = workload.requests
    plain, engine = (comparison.measured[mode.name].work for mode in (PLAIN, ENGINE))
    assert plain.prompts == sum(1 + len(request.answers) for request in requests)
    assert plain.images == sum((1 + len(request.answers)) * len(request.prompt.images) for request in requests)
    assert engine.prompts == len({request.prompt for request in requests})
    assert engine.images == len({digest for request in requests for digest in request.prompt.images})
    assert plain.prompts < plain.forwards
    assert 0 < engine.forwards < plain.forwards
    assert (plain.padding, engine.padding) == (0, 0)


def test_plain_counts_are_calls_of_the_model(subject: Subject, workload: Workload) -> None:
    language, tower = [0, 0], [0]

    def count_language(module: object, arguments: object, given: dict) -> None:
        tokens = given["inputs_embeds"].shape[1]
        language[0] += 1
        language[1] += tokens

    model = subject.parts.model.model
    hooks = [
        model.language_model.register_forward_pre_hook(count_language, with_kwargs=True),
        model.visual.register_forward_pre_hook(lambda *_: tower.append(1)),
    ]
    try:
        plain = PLAIN.make(subject)
        plain.run(workload.requests)
    finally:
        for hook in hooks:
            hook.remove()
    answers = [answer for request in workload.requests for answer in request.answers]
    given = sum(len(subject.parts.tokenizer(answer).input_ids) + 1 for answer in answers)
    generated = sum(len(outcome.tokens) - 1 for outcome in plain.outcomes())  # the last one is never fed
    assert language == [plain.work.forwards, plain.work.tokens + given + generated]
    assert sum(tower) == plain.work.prompts  # one pass for all images of a prompt


def test_the_random_model_reacts_to_images_and_their_order(subject: Subject) -> None:
    request = rl_data(subject, n_queries=1, n_sequences=4).requests[0]
    first, second = request.prompt.images[:2]
    exchanged = {first: second, second: first}

    def exchange(turn: Turn) -> Turn:
        shown = (ImagePart(exchanged.get(p.digest, p.digest)) if isinstance(p, ImagePart) else p for p in turn.parts)
        return replace(turn, parts=tuple(shown))

    blocks = tuple(tuple(map(exchange, block)) for block in request.prompt.blocks)
    swapped = replace(request, prompt=replace(request.prompt, blocks=blocks))
    answerer = ENGINE.make(subject)
    answerer.run([request, swapped])
    one, two = (outcome.answer_log_probs for outcome in answerer.outcomes())
    assert max(abs(a - b) for a, b in zip(one, two, strict=True)) > 0.1  # a thousand times the tolerance


def test_workloads_have_their_shapes(subject: Subject) -> None:
    asked, evaluated = rl_data(subject).requests, evaluation(subject).requests
    assert (len(asked), len(evaluated)) == (4 * 20, 4 * 6 * 4)
    assert len({request.prompt for request in asked}) == len(asked)
    assert {len(request.prompt.images) for request in asked} == {3}
    assert {len(set(request.answers)) for request in asked} == {4}
    for start in range(0, len(evaluated), 4):
        prompts = [request.prompt for request in evaluated[start : start + 4]]
        assert [len(prompt.images) for prompt in prompts] == [2, 3, 4, 5]
        assert all(prompt.blocks[:-1] == prompts[-1].blocks[: len(prompt.blocks) - 1] for prompt in prompts)
    assert len({request.prompt for request in evaluated}) < len(evaluated)
    assert rl_data(subject).requests == asked
    assert {image.size for image in map(subject.images.open, asked[0].prompt.images)} <= set(SIZES)


class _Liar(ByEngine):
    def __init__(self, subject: Subject) -> None:
        super().__init__(subject, subject.options, shares=True)

    def outcomes(self) -> list[Outcome]:
        *others, last = super().outcomes()
        return [*others, replace(last, tokens=(*last.tokens[:-1], last.tokens[-1] + 1))]


def test_a_wrong_answer_fails_the_comparison(subject: Subject) -> None:
    workload = rl_data(subject, n_queries=1, n_sequences=4)
    with pytest.raises(DifferentAnswersError, match=r"liar, prompt 3 of 4, .*expected the tokens .*; found"):
        compare(subject, workload, rounds=1, modes=(PLAIN, Mode("liar", "", _Liar)))


@pytest.mark.parametrize(("moved", "passes"), [(0.5e-4, True), (-0.5e-4, True), (2e-4, False), (float("nan"), False)])
@pytest.mark.parametrize("field", ["token_log_probs", "answer_log_probs"])
def test_log_probabilities_may_differ_by_rounding_only(
    subject: Subject, field: str, moved: float, passes: bool
) -> None:
    requests = rl_data(subject, n_queries=1, n_sequences=4).requests[:2]
    plain = [Outcome((1, 2), (-1.0, -2.0), (-3.0,)), Outcome((1,), (-1.0,), (-3.0,))]
    values: Sequence[float] = getattr(plain[1], field)
    found = [plain[0], replace(plain[1], **{field: (values[0] + moved,)})]
    if passes:
        assert largest_difference("engine", requests, plain, found) == pytest.approx(abs(moved))
    else:
        with pytest.raises(DifferentAnswersError, match="engine, prompt 1 of 2"):
            largest_difference("engine", requests, plain, found)


def timed(comparison: Comparison, ratio: float, name: str = "random") -> Comparison:
    """Return a comparison whose engine is `ratio` times as fast as the plain mode."""
    work = {mode: measured.work for mode, measured in comparison.measured.items()}
    measured = {mode: Measured([Seconds(1.0, 1.0)] * 3, work[mode], 0.0) for mode in work}
    measured[PLAIN.name] = Measured([Seconds(ratio, ratio), Seconds(ratio, ratio), Seconds(99.0, 99.0)], Work(), 0.0)
    return replace(comparison, subject=replace(comparison.subject, name=name), measured=measured)


def test_gates_hold_for_the_random_model(comparison: Comparison) -> None:
    gate = {"rl_data": 15, "evaluation": 8}[comparison.workload.name]
    assert gate_faults([timed(comparison, gate)]) == []
    (fault,) = gate_faults([timed(comparison, gate - 0.1)])
    assert f"expected the engine at least {gate} times as fast as plain answering; found {gate - 0.1:.2f}" in fault
    assert gate_faults([timed(comparison, 1.0, name="world")]) == []


@pytest.mark.parametrize(("ratio", "words", "status"), [(16, [], 0), (3, [], 1), (3, ["--no-gate"], 0)])
def test_the_status_follows_the_gates(comparison, monkeypatch, tmp_path, ratio, words, status) -> None:
    found = [timed(comparison, ratio), timed(comparison, ratio, name="world")]
    monkeypatch.setattr(answering, "measure", lambda rounds: iter(found))
    page = tmp_path / "page.md"
    assert answering.main(["--document", str(page), *words]) == status
    assert f"| Random weights | {comparison.workload.title} | {ratio}.0 | {ratio}.0 |" in page.read_text()
    assert (": missed" in page.read_text()) == (ratio == 3)


def test_different_answers_leave_the_page_alone(monkeypatch, tmp_path, capsys) -> None:
    def measure(rounds: int):
        raise DifferentAnswersError("prompt 3 of 80")
        yield

    monkeypatch.setattr(answering, "measure", measure)
    assert answering.main(["--no-gate", "--document", str(tmp_path / "page.md")]) == 1
    assert "prompt 3 of 80" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
