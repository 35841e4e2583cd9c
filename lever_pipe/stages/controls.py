"""Controls of a selector's choice: the LVLM's answers with modified demonstrations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from PIL import Image

from lever_pipe.base import images, storage
from lever_pipe.base.policy_names import group_of
from lever_pipe.base.records import Example
from lever_pipe.experiment import execution
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.lvlm import AnswerControlsConfig
from lever_pipe.experiment.stage_files import External, Input, Inputs, Output
from lever_pipe.lever.samples import CopyingRow
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import LvlmRequest
from lever_pipe.metrics.vqa_accuracy import cut_answer, vqa_accuracy
from lever_pipe.report.long_format import write_csv

CONTROLS = ("blank", "moved", "reversed")
BLANK_SIZE, GREY = (56, 56), (128, 128, 128)


def controlled(control: str, demonstrations: Sequence[Example], blank: str) -> list[Example]:
    """Return the demonstrations of a control; `blank` is the digest of a blank image.

    * `blank`: all with the blank image, so that only questions and answers can help.
    * `moved`: each with the answer of the next one, the last with the first one's answer. The majority answer and the
      answers to copy are unchanged, but every answer belongs to another question.
    * `reversed`: in reverse order, which moves the first choice next to the question.
    """
    match control:
        case "blank":
            return [example.model_copy(update={"image_digest": blank}) for example in demonstrations]
        case "moved":
            donors = [*demonstrations[1:], *demonstrations[:1]]
            return [
                e.model_copy(update={"answer": donor.answer}) for e, donor in zip(demonstrations, donors, strict=True)
            ]
        case _:
            return [*reversed(demonstrations)]


def answer_controls(
    *,
    selections: Inputs,
    train_examples: Input,
    eval_examples: Input,
    train_images: External,
    eval_images: External,
    lvlm: External,
    controls: Output,
    blank: Output,
    counters: Output,
    config: AnswerControlsConfig,
    runtime: Runtime = Runtime(),
) -> None:
    """Write the LVLM's accuracy with each policy's demonstrations under each of `CONTROLS`, as `CopyingRow`s.

    Uses `config.shots` demonstrations and the first `config.questions` questions; `blank` is the blank image.
    """
    execution.prepare(runtime)
    train, queries = storage.read_examples(train_examples), storage.read_examples(eval_examples)
    Image.new("RGB", BLANK_SIZE, GREY).save(blank, format="PNG")
    digest, k, evaluated = images.digest_of(blank), config.shots, queries[: config.questions]
    nothing = train[0].model_copy(update={"image": blank.name, "image_digest": digest})
    pictures = [(train, train_images), (queries, eval_images), ([nothing], blank.parent)]
    model, wording = load_lvlm(config.lvlm, lvlm, pictures, runtime), Wording(config.lvlm.prompt)
    prompts = {
        (policy, control): [
            wording.prompt(
                query, controlled(control, [train[position] for position in picks[query.example_id][:k]], digest)
            )
            for query in evaluated
        ]
        for policy, path in zip(config.policies, selections, strict=True)
        for picks in [storage.read_selections(path)]
        for control in CONTROLS
    }
    replies = iter(model.run([LvlmRequest(prompt) for batch in prompts.values() for prompt in batch]))

    def rows() -> Iterator[CopyingRow]:
        for policy, control in prompts:
            texts = [cut_answer(next(replies).text) for _ in evaluated]
            earned = [
                vqa_accuracy(answer, query.answers, normalise_references=config.normalise_references)
                for answer, query in zip(texts, evaluated, strict=True)
            ]
            yield CopyingRow(group_of(policy), k, f"llm.{control}", fmean(earned), len(earned))

    write_csv(controls, CopyingRow._fields, rows())
    storage.write_json(counters, model.counters)
