"""Check the LVLM's answers to a few prompts of the configured data: time them, and compare with the model library.

A served model has no folder to compare with. Instead, check that the server returns probabilities of given answers.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from lever_pipe.base import plugins
from lever_pipe.base.errors import LeverPipeError
from lever_pipe.base.records import Example, ExampleId
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.lvlm import LvlmSettings
from lever_pipe.experiment.plans import models
from lever_pipe.experiment.studies import Experiment
from lever_pipe.lever.datasets._splits import read_train
from lever_pipe.lever.datasets.protocol import VqaFilePaths
from lever_pipe.lvlms.asking.answering import load_lvlm
from lever_pipe.lvlms.asking.prompts import Wording
from lever_pipe.lvlms.protocol import LvlmReply, LvlmRequest
from lever_pipe.runtime import sizing
from lever_pipe.runtime.checks.findings import Outcome, ok, problem, refused, warning
from lever_pipe.world.files import write_raw_files

LIBRARY = "hf"
"""The plugin that uses the model library's own `generate`."""
SHOTS = 2
TAIL = 160
"""Number of characters of a prompt in messages: its end, which the model continues."""


def check(experiment: Experiment, count: int, folder: Path) -> Iterator[Outcome]:
    """Yield the plugin in use and its speed, each answer, and the number of equal answers from the model library.

    Args:
        experiment: configures the model and the data; the prompts are the first train questions, with two
            demonstrations each.
        count: number of questions.
        folder: the working directory.
    """
    lvlm, config = experiment.lvlm, models.lvlm_config(experiment.lvlm)
    device = str(sizing.resources_for(experiment)("answer_prompts").resources["device"])
    name = f"answers of {lvlm.model}"
    yield ok(name, f"by plugin {config.engine} on {device} (lvlm.engine: {lvlm.engine})")
    try:
        with tempfile.TemporaryDirectory() as generated:
            paths = _raw_files(experiment, folder, Path(generated))
            train = read_train(paths, experiment.data).examples
            wording, demonstrations = Wording(lvlm.prompt), train[count + 1 :]
            begin, *requests = [
                LvlmRequest(wording.prompt(train[i], demonstrations[SHOTS * i : SHOTS * (i + 1)]))
                for i in range(count + 1)
            ]
            replies: dict[str, list[LvlmReply]] = {}
            for engine in dict.fromkeys((config.engine, *([] if lvlm.is_served else [LIBRARY]))):
                spec = config.model_copy(update={"engine": engine})
                model = load_lvlm(spec, folder / lvlm.model, [(train, paths.images)], Runtime(device=device, lvlm=lvlm))
                model.run([begin])  # warm-up: exclude one-time work from the measured time
                started = time.perf_counter()
                replies[engine] = model.run(requests)
                seconds = time.perf_counter() - started
                yield ok(f"plugin {engine}", f"{count} prompts in {seconds:.1f} s, {count / seconds:.1f} a second")
            if lvlm.is_served and experiment.rl_data.is_answered:
                model.run([LvlmRequest(begin.prompt, (train[0].answer,))])
                yield ok("probabilities of given answers", "returned")
    except LeverPipeError as refusal:
        yield refused(name, refusal)
        return
    for example, reply in zip(train[1 : count + 1], replies[config.engine], strict=True):
        yield ok("answer", f"{example.question} {reply.text!r} (people: {example.answer})")
    if lvlm.is_served:
        return
    texts = [[reply.text for reply in answers] for answers in replies.values()]
    alike = sum(len(set(pair)) == 1 for pair in zip(*texts, strict=True))
    expected, do = f"the same {count} answers", "In bfloat16 a few differ; if many do, compare in float32 (lvlm.dtype)."
    check = f"plugin {LIBRARY}"
    yield ok(check, expected) if alike == count else warning(check, expected, found=str(alike), do=do)


def prompt(lvlm: LvlmSettings, folder: Path) -> Outcome:
    """Check the prompt of a question with one demonstration by the configured plugin, without reading weights."""
    engine = models.lvlm_engine(lvlm)
    check = f"prompt of {lvlm.model}"
    common = {"image": "", "question_type": "", "answer": "yes", "answers": ("yes",)}
    demonstration, query = (
        Example(example_id=ExampleId(i), question_id=i, image_id=i, image_digest=f"{i}", question=question, **common)
        for i, question in enumerate(("Is it red?", "Is it blue?"))
    )
    try:
        family = plugins.plugin("lvlms", engine).described(folder / lvlm.model)
        prompted = Wording(lvlm.prompt).prompt(query, [demonstration])
        text = "".join(segment.text for segment in family.render(prompted))
    except LeverPipeError as refusal:
        return refused(check, refusal)
    image, end = family.tokenizer.convert_ids_to_tokens([family.image_token, family.eos])
    parts = [part if isinstance(part, str) else image for turn in prompted.turns for part in turn.parts]
    ending = f"{text[-TAIL:]!r} by plugin {engine}"
    if text.count(image) != len(prompted.images) or any(text.count(part) < parts.count(part) for part in parts):
        expected = f"a chat template that writes each text and two images, {image}"
        return problem(
            check, expected, found=ending, do="Fix chat_template.jinja in the folder, or name another model."
        )
    if not re.search(".*".join(map(re.escape, parts)), text, re.DOTALL):
        do = "Set lvlm.prompt.layout to turns, or fix chat_template.jinja in the folder."
        return warning(check, "a chat template that keeps images and texts in their order", found=ending, do=do)
    return ok(check, f"{ending}; an answer ends with {end!r}")


def _raw_files(experiment: Experiment, folder: Path, generated: Path) -> VqaFilePaths:
    """Return the files of the train questions; generate those of the embedded world."""
    data = experiment.data
    if data.source == "files":
        files = data.files
        names = (files.train_questions, files.train_annotations, files.train_images)
        return VqaFilePaths(*(folder / name for name in names))
    paths = VqaFilePaths(generated / "questions.json", generated / "annotations.json", generated / "images")
    write_raw_files(data.world, "train", **asdict(paths))
    return paths
