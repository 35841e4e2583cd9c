"""The official VQA file format: a question file, an annotation file and a folder of images.

`limit` bounds the questions whose images are opened; both JSON files are always checked whole.
"""

from __future__ import annotations

import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lever_pipe.base import images
from lever_pipe.base.errors import DataError, ImageError
from lever_pipe.base.records import Example, ExampleId
from lever_pipe.base.sections import dotted
from lever_pipe.base.seeding import generator
from lever_pipe.base.storage import read_json, shortened
from lever_pipe.lever.datasets.protocol import ReadOptions, ReadResult, VqaFilePaths

QUESTION_FILE_KEYS = frozenset(
    {"info", "license", "data_type", "data_subtype", "task_type", "num_choices", "questions"}
)
ANNOTATION_FILE_KEYS = frozenset({"info", "license", "data_type", "data_subtype", "question_types", "annotations"})
log = logging.getLogger(__name__)
SHOWN = 5
"""Items of a kind of fault that are named."""
MEND = "Restore the official files, or mend the named entries."


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


Text = Annotated[str, AfterValidator(partial(unicodedata.normalize, "NFC"))]
"""One spelling of an accented letter, as tokenizers write it: else an answer may miss its own reference."""
Id = Annotated[int, Field(ge=0, lt=2**63)]


class QuestionEntry(_Entry):
    """An entry of a question file."""

    image_id: Id
    question: Text
    question_id: Id


class AnswerEntry(_Entry):
    """One annotator's answer; `answer` is the normalised text that VQA accuracy compares."""

    answer: Text
    answer_id: int = 0
    answer_confidence: str = ""
    raw_answer: str = ""


class Annotation(_Entry):
    """An entry of an annotation file."""

    image_id: Id
    question_id: Id
    question_type: str = ""
    answer_type: str = ""
    answers: list[AnswerEntry]
    confidence: float | int | None = None  # OK-VQA
    multiple_choice_answer: Text | None = None  # VQAv2


M = TypeVar("M", bound=_Entry)


def read_questions(path: Path) -> list[QuestionEntry]:
    """Return the questions of one file, sorted by question id.

    Raises:
        DataError: missing file, missing or unknown keys, blank questions, duplicate question ids; all at once.
    """
    faults = Faults()
    questions, _ = _read_questions(path, faults)
    faults.raise_any(f"{path}: expected an official VQA question file", do=MEND)
    return questions


def read_split(
    files: VqaFilePaths,
    options: ReadOptions,
    *,
    shown_answer: Callable[[Annotation], str | None],
) -> ReadResult:
    """Return one split's examples in question-id order.

    Args:
        files: questions, annotations and image folder.
        options: see `ReadOptions`. With `on_bad_image="skip"`, a `limit` counts readable questions.
        shown_answer: the answer that a demonstration shows; None is a fault of the annotation.

    Raises:
        DataError: anything missing, unknown, duplicate or contradictory; all faults at once.
        ImageError: images that do not decode, when `on_bad_image="stop"`.
    """
    faults = Faults()
    questions, broken_questions = _read_questions(files.questions, faults)
    annotations, broken_annotations = _read_annotations(files.annotations, faults)
    # An entry with a fault of its own is reported once, not as unmatched as well.
    _compare(questions, annotations, broken_questions | broken_annotations, faults)
    _check_answers(annotations, options.n_answers, shown_answer, faults)
    wanted = questions if options.seed is None else _drawn(questions, options.seed)
    folder = ImageFolder(files.images, options.image_name)
    folder.find(dict.fromkeys(q.image_id for q in wanted[: options.limit]), faults)
    where = f"expected complete and consistent {files.questions} and {files.annotations}"
    faults.raise_any(where, do=MEND)
    kept = folder.readable(wanted, options.on_bad_image, options.limit)
    examples = []
    for position, question in enumerate(sorted(kept, key=lambda question: question.question_id)):
        annotation = annotations[question.question_id]
        examples.append(_example(position, question, annotation, folder, shown_answer(annotation)))
    return ReadResult(examples, folder.skipped)


def _drawn(questions: list[QuestionEntry], seed: int) -> list[QuestionEntry]:
    """Return the questions in drawn order."""
    return [questions[i] for i in generator(seed, "eval subset").permutation(len(questions))]


def most_frequent(answers: Iterable[str]) -> str:
    """Return the most frequent answer; of equally frequent ones the first met."""
    return Counter(answers).most_common(1)[0][0]  # most_common keeps first-met order among ties


def _example(
    position: int, question: QuestionEntry, annotation: Annotation, folder: ImageFolder, shown: str | None
) -> Example:
    assert shown is not None  # _check_answers has refused the file otherwise
    return Example(
        example_id=ExampleId(position),
        question_id=question.question_id,
        image_id=question.image_id,
        image=folder.name(question.image_id),
        image_digest=folder.digest(question.image_id),
        question=question.question,
        question_type=annotation.question_type,
        answers=tuple(answer.answer for answer in annotation.answers),
        answer=shown,
    )


def _read_questions(path: Path, faults: Faults) -> tuple[list[QuestionEntry], set[int]]:
    entries, broken = _read_entries(path, "questions", QUESTION_FILE_KEYS, QuestionEntry, faults)
    counts = Counter(question.question_id for question in entries)
    repeated = sorted(i for i, count in counts.items() if count > 1)
    faults.extend(f"duplicate question id in {path.name}", repeated)
    faults.extend(f"blank question in {path.name}", (q.question_id for q in entries if not q.question.strip()))
    return sorted(entries, key=lambda question: question.question_id), broken


def _read_annotations(path: Path, faults: Faults) -> tuple[dict[int, Annotation], set[int]]:
    entries, broken = _read_entries(path, "annotations", ANNOTATION_FILE_KEYS, Annotation, faults)
    by_id: dict[int, Annotation] = {}
    for annotation in entries:
        if annotation.question_id in by_id:
            faults.add(f"duplicate question id in {path.name}", annotation.question_id)
        by_id.setdefault(annotation.question_id, annotation)
    return by_id, broken


def _read_entries(
    path: Path, key: str, file_keys: frozenset[str], model: type[M], faults: Faults
) -> tuple[list[M], set[int]]:
    """Return the sound entries, and the question ids of those that have a fault of their own."""
    if not path.is_file():
        faults.add("missing file", str(path))
        return [], set()
    document: Any = read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get(key), list):
        faults.add(f"{path.name}: missing key", f"'{key}' with a list of entries")
        return [], set()
    faults.extend(f"{path.name}: unknown key", sorted(set(document) - file_keys))
    if not document[key]:
        faults.add(f"{path.name}: no entries", f"'{key}' is empty")
    entries: list[M] = []
    broken: set[int] = set()
    for index, entry in enumerate(document[key]):
        try:
            entries.append(model.model_validate(entry))
        except ValidationError as fault:
            _add_entry_faults((key, index), fault, path, faults)
            if isinstance(entry, dict) and isinstance(entry.get("question_id"), int):
                broken.add(entry["question_id"])
    return entries, broken


def _add_entry_faults(place: tuple[int | str, ...], fault: ValidationError, path: Path, faults: Faults) -> None:
    kinds = {"missing": "missing key", "extra_forbidden": "unknown key"}
    for error in fault.errors(include_url=False, include_context=False, include_input=False):
        kind = kinds.get(error["type"], error["msg"].lower())
        faults.add(f"{path.name}: {kind}", dotted((*place, *error["loc"])))


def _compare(
    questions: list[QuestionEntry], annotations: dict[int, Annotation], broken: set[int], faults: Faults
) -> None:
    asked = {question.question_id: question for question in questions}
    unanswered = (i for i in asked if i not in annotations and i not in broken)
    faults.extend("question without annotation", unanswered)
    unasked = sorted(i for i in annotations if i not in asked and i not in broken)
    faults.extend("annotation without question", unasked)
    for question_id, question in asked.items():
        annotation = annotations.get(question_id)
        if annotation is not None and annotation.image_id != question.image_id:
            ids = f"{question.image_id} against {annotation.image_id}"
            faults.add("image_id differs between question and annotation", f"question {question_id}: {ids}")


def _check_answers(
    annotations: dict[int, Annotation],
    n_answers: int,
    shown_answer: Callable[[Annotation], str | None],
    faults: Faults,
) -> None:
    for question_id, annotation in sorted(annotations.items()):
        count = len(annotation.answers)
        if count != n_answers:
            kind = f"wrong answer count, expected {n_answers}"
            faults.add(kind, f"question {question_id}: {count}")
        elif not any(answer.answer.strip() for answer in annotation.answers):
            faults.add("blank answers only", f"question {question_id}")
        elif (shown := shown_answer(annotation)) is None:
            faults.add("no multiple_choice_answer", f"question {question_id}")
        elif not shown.strip():
            faults.add("a blank answer to show", f"question {question_id}")


class ImageFolder:
    """Files under one folder, named by image id."""

    def __init__(self, folder: Path, template: str) -> None:
        self._folder = folder
        self._template = template
        self._digests: dict[int, str] = {}
        self._refusals: dict[int, str] = {}  # why an image cannot be shown
        self.skipped: dict[str, int] = {}

    def name(self, image_id: int) -> str:
        """Return the file name of an image."""
        return self._template.format(image_id=image_id)

    def digest(self, image_id: int) -> str:
        """Return the sha256 of the bytes of an image that was found readable."""
        return self._digests[image_id]

    def find(self, image_ids: Iterable[int], faults: Faults) -> None:
        """Record every image that is no file."""
        if not self._folder.is_dir():
            faults.add("missing image folder", str(self._folder))
            return
        missing = [i for i in image_ids if not _is_file(self._folder / self.name(i))]
        faults.extend(f"missing image in {self._folder}", map(self.name, missing))

    def readable(
        self, questions: list[QuestionEntry], on_bad_image: Literal["stop", "skip"], limit: int | None
    ) -> list[QuestionEntry]:
        """Return the first `limit` questions, in their order, whose image can be shown.

        Raises:
            DataError: an image beyond the first `limit` questions is needed and missing.
            ImageError: images cannot be shown and are not to be skipped; the first few are named by reason.
        """
        kept: list[QuestionEntry] = []
        bad: dict[str, int] = {}
        faults = Faults()
        for question in questions:
            if len(kept) + (sum(bad.values()) if on_bad_image == "stop" else 0) == limit:
                break
            if refusal := self._refusal(question.image_id):
                name = self.name(question.image_id)
                if name not in bad:
                    faults.add(refusal, name)
                bad[name] = bad.get(name, 0) + 1
            else:
                kept.append(question)
        if bad and on_bad_image == "stop":
            raise ImageError(
                f"expected readable images in {self._folder}",
                found=f"\n{faults}\n",
                do='Restore or convert the files, or set data.on_bad_image to "skip".',
            )
        if bad:
            n_questions = sum(bad.values())
            log.warning("skipped %d questions of unreadable images:\n%s", n_questions, faults)
        self.skipped = bad
        return kept

    def _refusal(self, image_id: int) -> str:
        """Return why an image cannot be shown; empty for one that can. Each is looked at once."""
        if image_id not in self._digests and image_id not in self._refusals:
            path = self._folder / self.name(image_id)
            if not _is_file(path):
                where = "expected an image for every question"
                raise DataError(where, found=f"no {path}", do="Restore the file.")
            try:
                self._digests[image_id] = images.digest_of(path)
            except ImageError as fault:
                self._refusals[image_id] = fault.found
        return self._refusals.get(image_id, "")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


class Faults:
    """Faults by kind, in the order in which the kinds are first met."""

    def __init__(self) -> None:
        self._items: dict[str, list[str]] = {}

    def add(self, kind: str, item: str | int) -> None:
        """Record one fault of a kind, for example `add("missing image", "a.jpg")`."""
        self._items.setdefault(shortened(kind), []).append(shortened(str(item)))

    def extend(self, kind: str, items: Iterable[str | int]) -> None:
        """Record several faults of one kind."""
        for item in items:
            self.add(kind, item)

    def __str__(self) -> str:
        """Return one line a kind: its name, its count and the first few items."""
        lines = []
        for kind, items in self._items.items():
            rest = f", and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
            lines.append(f"  {kind}: {len(items)} ({', '.join(items[:SHOWN])}{rest})")
        return "\n".join(lines)

    def raise_any(self, expected: str, *, do: str) -> None:
        """Raise one DataError when there is any fault."""
        if self._items:
            raise DataError(expected, found=f"\n{self}\n", do=do)
