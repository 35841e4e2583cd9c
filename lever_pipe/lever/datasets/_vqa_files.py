"""The official VQA file format: a question file, an annotation file and a folder of images.

`limit` bounds the questions whose images are opened; both JSON files are always checked whole.
"""

from __future__ import annotations

import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lever_pipe.base import images
from lever_pipe.base.errors import DataError, ImageError, shortened
from lever_pipe.base.records import AnswerText, Example, ExampleId
from lever_pipe.base.sections import dotted
from lever_pipe.base.seeding import generator
from lever_pipe.base.storage import read_json
from lever_pipe.lever.datasets.protocol import AskedImage, ReadOptions, ReadResult, VqaFilePaths

log = logging.getLogger(__name__)
SHAPES = {
    "answers": '{"answer": "cup"}',
    "annotations": '{"question_id": 1, "image_id": 2, "answers": [{"answer": "cup"}]}',
    "questions": '{"question_id": 1, "image_id": 2, "question": "What is it?"}',
}
"""Examples of the objects in the lists of the format."""
DISPLAY_LIMIT = 5
"""Maximum number of named items for each kind of problem."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Text = Annotated[str, AfterValidator(partial(unicodedata.normalize, "NFC"))]
"""Text in the Unicode form of tokenizers: an answer in another form would not match its own reference."""
Id = Annotated[int, Field(ge=0, lt=2**63)]


class Question(_Entry):
    """An entry of a question file."""

    image_id: Id
    question: Text
    question_id: Id


class Answer(_Entry):
    """One annotator's answer; OK-VQA stems `answer` and keeps the annotator's words in `raw_answer`."""

    answer: Text
    answer_id: int = 0
    answer_confidence: str = ""
    raw_answer: Text = ""


class Annotation(_Entry):
    """An entry of an annotation file."""

    image_id: Id
    question_id: Id
    question_type: str = ""
    answer_type: str = ""
    answers: list[Answer]
    confidence: float | int | None = None  # OK-VQA
    multiple_choice_answer: Text | None = None  # VQAv2


class _File(_Entry):
    info: Any = None
    license: Any = None
    data_type: Any = None
    data_subtype: Any = None


class QuestionFile(_File):
    """A question file; keys that are not declared here are errors."""

    task_type: Any = None
    num_choices: Any = None
    questions: list[Question] = Field(min_length=1)


class AnnotationFile(_File):
    """An annotation file."""

    question_types: Any = None
    annotations: list[Annotation] = Field(min_length=1)


F = TypeVar("F", bound=_File)


Problem = tuple[str, object]
"""A kind of problem and its location; for example `"missing image", "a.jpg"`."""


def read_split(
    files: VqaFilePaths,
    options: ReadOptions,
    *,
    displayed_answer: Callable[[Annotation], str | None],
) -> ReadResult:
    """Return one split's examples in question-id order.

    With `on_bad_image="skip"`, a `limit` counts readable questions. `displayed_answer` gives the answer that a
    demonstration shows; None is a problem of the annotation.
    """
    problems = list[Problem]()
    questions = _questions(files.questions, problems)
    annotations = _annotations(files.annotations, options.answers, problems)
    if questions and annotations:
        problems += _disagreements(questions, annotations)
        problems += _answer_problems(annotations, options.n_answers, displayed_answer)
    questions = _in_order(questions, options)
    problems += _missing_images(questions[: options.limit], files.images, options.image_name)
    # All problems are collected first, so that one error lists them together.
    if problems:
        expected = f"expected complete and consistent {files.questions} and {files.annotations}"
        do = "Correct these entries, or data.n_answers, data.answers, data.train_image_name and data.eval_image_name."
        raise DataError(expected, found=f"\n{_listed(problems)}", do=do)
    digests, skipped = _digests(questions, files.images, options)
    examples = list[Example]()
    for question in sorted((q for q in questions if q.question_id in digests), key=lambda q: q.question_id):
        annotation = annotations[question.question_id]
        answer = displayed_answer(annotation)
        assert answer is not None  # reported as a problem above
        examples.append(
            Example(
                example_id=ExampleId(len(examples)),
                question_id=question.question_id,
                image_id=question.image_id,
                image=options.image_name.format(image_id=question.image_id),
                image_digest=digests[question.question_id],
                question=question.question,
                question_type=annotation.question_type,
                answers=tuple(answer.answer for answer in annotation.answers),
                answer=answer,
            )
        )
    return ReadResult(examples, skipped)


def asked_images(questions: Path, options: ReadOptions) -> dict[str, AskedImage]:
    """Return the names of the images that `read_split` opens, each with its first question, in reading order.

    For an unreadable file the result is empty: `read_split` reports the error.
    """
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        entries = json.loads(questions.read_bytes())["questions"]
        rows = [(int(entry["question_id"]), entry["image_id"], number) for number, entry in enumerate(entries, start=1)]
        first_questions: dict[Any, AskedImage] = {}
        for question_id, image_id, number in _in_order(sorted(rows), options)[: options.limit]:
            first_questions.setdefault(image_id, AskedImage(question_id, number))
        return {
            options.image_name.format(image_id=image_id): question for image_id, question in first_questions.items()
        }
    return {}


R = TypeVar("R")


def _in_order(rows: list[R], options: ReadOptions) -> list[R]:
    """Return rows sorted by question id in the order in which they count towards the limit."""
    if options.seed is None:
        return rows
    return [rows[i] for i in generator(options.seed, "eval subset").permutation(len(rows))]


def _questions(path: Path, problems: list[Problem]) -> list[Question]:
    file = _read(path, QuestionFile, problems)
    questions = file.questions if file else []
    problems += _repeated(path, questions)
    problems += ((f"blank question in {path.name}", q.question_id) for q in questions if not q.question.strip())
    return sorted(questions, key=lambda question: question.question_id)


def _annotations(path: Path, text: AnswerText, problems: list[Problem]) -> dict[int, Annotation]:
    file = _read(path, AnnotationFile, problems)
    annotations = file.annotations if file else []
    problems += _repeated(path, annotations)
    if text == "raw":
        without = (a.question_id for a in annotations if any(x.answer and not x.raw_answer for x in a.answers))
        problems += ((f"no raw_answer in {path.name}, which data.answers: raw reads", i) for i in without)
        annotations = list(map(_with_raw_answers, annotations))
    return {annotation.question_id: annotation for annotation in annotations}


def _with_raw_answers(annotation: Annotation) -> Annotation:
    answers = [answer.model_copy(update={"answer": answer.raw_answer}) for answer in annotation.answers]
    return annotation.model_copy(update={"answers": answers})


def _read(path: Path, model: type[F], problems: list[Problem]) -> F | None:
    if not path.is_file():
        problems.append(("missing file", path))
        return None
    try:
        return model.model_validate(read_json(path))
    except ValidationError as exception:
        kinds = {"missing": "missing key", "extra_forbidden": "unknown key"}
        for error in exception.errors(include_url=False, include_context=False):
            location = dotted(error["loc"])
            if error["type"] == "model_type":
                problems.append(_no_object(path, error["loc"], location, error["input"]))
            else:
                problems.append((f"{path.name}: {kinds.get(error['type'], error['msg'].lower())}", location))
        return None


def _no_object(path: Path, keys: Sequence[int | str], location: str, value: object) -> Problem:
    """Return the problem of a value in place of an object; the message shows an example of the object."""
    name = next((key for key in reversed(keys) if isinstance(key, str)), "")
    expected = f"{name} must be objects like {SHAPES[name]}" if name else "the file must be an object"
    found = "a list" if isinstance(value, list) else json.dumps(value, ensure_ascii=False)
    found = f"the string {found}" if isinstance(value, str) else found
    return f"{path.name}: {expected}", f"{location} is {found}"


def _repeated(path: Path, entries: Sequence[Question | Annotation]) -> Iterator[Problem]:
    counts = Counter(entry.question_id for entry in entries)
    yield from ((f"duplicate question id in {path.name}", i) for i in sorted(counts) if counts[i] > 1)


def _disagreements(questions: list[Question], annotations: dict[int, Annotation]) -> Iterator[Problem]:
    by_id = {question.question_id: question for question in questions}
    yield from (("question without annotation", i) for i in by_id if i not in annotations)
    yield from (("annotation without question", i) for i in sorted(annotations) if i not in by_id)
    for i, question in by_id.items():
        if i in annotations and annotations[i].image_id != question.image_id:
            difference = f"question {i}: {question.image_id} against {annotations[i].image_id}"
            yield "image_id differs between question and annotation", difference


def _answer_problems(
    annotations: dict[int, Annotation], n_answers: int, displayed_answer: Callable[[Annotation], str | None]
) -> Iterator[Problem]:
    for question_id, annotation in sorted(annotations.items()):
        location = f"question {question_id}"
        if len(annotation.answers) != n_answers:
            yield f"wrong answer count, expected {n_answers}", f"{location}: {len(annotation.answers)}"
        elif not any(answer.answer.strip() for answer in annotation.answers):
            yield "blank answers only", location
        elif (answer := displayed_answer(annotation)) is None:
            yield "no multiple_choice_answer", location
        elif not answer.strip():
            yield "a blank answer to show", location


def _missing_images(questions: list[Question], folder: Path, template: str) -> Iterator[Problem]:
    if not folder.is_dir():
        yield "missing image folder", folder
        return
    names = dict.fromkeys(template.format(image_id=question.image_id) for question in questions)
    if missing := [name for name in names if not (folder / name).is_file()]:
        present = min((path.name for path in folder.iterdir()), default="nothing")
        yield from ((f"missing image in {folder}, which contains {present}", name) for name in missing)


def _digests(questions: list[Question], folder: Path, options: ReadOptions) -> tuple[dict[int, str], dict[str, int]]:
    """Return the sha256 of each question's image, and the number of questions of each unreadable image."""
    may_skip = options.on_bad_image == "skip"
    digest_of, digests, skipped, problems = dict[str, str](), dict[int, str](), Counter[str](), list[Problem]()
    # When unreadable images are skipped, later questions fill up to the limit.
    for question in questions if may_skip else questions[: options.limit]:
        if len(digests) == options.limit:
            break
        name = options.image_name.format(image_id=question.image_id)
        # Several questions share an image; each file is read once.
        if name not in digest_of and name not in skipped:
            try:
                digest_of[name] = images.digest_of(folder / name)
            except ImageError as refusal:
                problems.append((refusal.found, name))
        if name in digest_of:
            digests[question.question_id] = digest_of[name]
        else:
            skipped[name] += 1
    if problems and not may_skip:
        raise ImageError(
            f"expected readable images in {folder}",
            found=f"\n{_listed(problems)}",
            do='Restore or convert the files, or set data.on_bad_image to "skip".',
        )
    if problems:
        log.warning("skipped %d questions of unreadable images:\n%s", skipped.total(), _listed(problems))
    return digests, dict(skipped)


def _listed(problems: Iterable[Problem]) -> str:
    """Return one line for each kind of problem, in order of occurrence: its name, its count and the first few items."""
    by_kind: dict[str, list[str]] = {}
    for kind, item in problems:
        by_kind.setdefault(shortened(kind), []).append(shortened(str(item)))
    lines = []
    for kind, items in by_kind.items():
        rest = f", and {len(items) - DISPLAY_LIMIT} more" if len(items) > DISPLAY_LIMIT else ""
        lines.append(f"  {kind}: {len(items)} ({', '.join(items[:DISPLAY_LIMIT])}{rest})")
    return "\n".join(lines)
