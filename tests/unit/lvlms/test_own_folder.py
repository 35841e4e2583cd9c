"""A user's own folder: a processor in today's file format, and the requirements on its template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import shipped
from engine_bench import ANSWERS, ATOL, prompts_of, settings
from tiny_folders import FOLDERS
from transformers import AutoModelForImageTextToText, AutoProcessor

from lever_pipe.base.errors import CheckpointError
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.lvlms.asking.answering import LedgerLvlm, open_lvlm
from lever_pipe.lvlms.asking.prompts import Prompt
from lever_pipe.lvlms.protocol import ImageSource, LvlmRequest
from lever_pipe.runtime.checks import answers, local_checks
from lever_pipe.runtime.checks.findings import Level

OWN = {"llava": (" ", "</s>"), "gemma3": ("", "<end_of_turn>")}
"""Family -> text before and after an answer."""
SEARCHES = (
    ("turns", {}),
    ("single_turn", {"num_beams": 3, "repetition_penalty": 1.3}),
)
MESSAGE = "{% for m in messages %}{{ 'SAYS' }}{% for c in m['content'] %}PART{% endfor %}{{ 'END' }}{% endfor %}"
PART = "{{ '<image>' if c['type'] == 'image' else c['text'] }}"
ONE_IMAGE = "{% if c['type'] == 'text' or loop.first %}" + PART + "{% endif %}"
QUERY = "{% if c['type'] == 'image' or 'red' not in c['text'] %}" + PART + "{% endif %}"
IMAGES_FIRST = "{% if loop.first %}{% for c in m['content'] if c['type'] == 'image' %}<image>{% endfor %}{% endif %}"
IMAGES_FIRST += "{{ c['text'] if c['type'] == 'text' }}"


@pytest.fixture(params=sorted(OWN), scope="module")
def saved_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A family and its folder, with the image settings of a saved processor."""
    folder = tmp_path_factory.mktemp("own") / "model"
    FOLDERS[request.param](folder)
    assert not (folder / "preprocessor_config.json").exists()
    return request.param, folder


def opened(folder: Path, paths: dict[str, Path], engine: str = "hf", **options: object) -> LedgerLvlm:
    return open_lvlm(settings(engine, **options), folder, ImageSource(paths))


def template(part: str = PART, *, answer: str = "A: ", end: str = "\\n", generation_prompt: str = "A:") -> str:
    """Return a template that writes a turn as `answer`, its parts and `end`, then `generation_prompt`."""
    message = MESSAGE.replace("SAYS", answer).replace("PART", part).replace("END", end)
    return message + "{{ 'ASKED' if add_generation_prompt }}".replace("ASKED", generation_prompt)


def experiment(folder: Path, layout: str = "turns") -> Experiment:
    values = shipped()
    prompt = {"prompt": values["lvlm"]["prompt"] | {"layout": layout}}
    return parse_experiment(values | {"studies": ["lever"], "lvlm": values["lvlm"] | {"model": str(folder)} | prompt})


class Plain:
    """The model library through its public interface: one prompt at a time, its answer written after it."""

    def __init__(self, folder: Path, paths: dict[str, Path]) -> None:
        self.processor = AutoProcessor.from_pretrained(folder)
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.images = ImageSource(paths)

    def text(self, prompt: Prompt) -> str:
        return str(self.processor.apply_chat_template(prompt.messages(), add_generation_prompt=True))

    def inputs(self, prompt: Prompt, text: str) -> Any:
        displayed = [self.images.open(digest) for digest in prompt.images]
        begins = not text.startswith(self.processor.tokenizer.bos_token)
        return self.processor(text=text, images=displayed, return_tensors="pt", add_special_tokens=begins)

    @torch.inference_mode()
    def answer(self, prompt: Prompt, end: int, *, num_beams: int = 1, repetition_penalty: float = 1.0) -> str:
        inputs = self.inputs(prompt, self.text(prompt))
        output = self.model.generate(
            **inputs,
            do_sample=False,
            num_beams=num_beams,
            repetition_penalty=repetition_penalty,
            length_penalty=0.0,
            max_new_tokens=5,
            eos_token_id=sorted({end, self.model.generation_config.eos_token_id}),
            suppress_tokens=[self.processor.image_token_id],
        )
        new = output[0, inputs["input_ids"].shape[1] :]
        return str(self.processor.decode(new, skip_special_tokens=True))

    @torch.inference_mode()
    def log_probs(self, prompt: Prompt, after: str) -> list[float]:
        begin = self.inputs(prompt, self.text(prompt))["input_ids"].shape[1]
        inputs = self.inputs(prompt, self.text(prompt) + after)
        lines = self.model(**inputs).logits[0, begin - 1 : -1].log_softmax(-1)
        return list(lines.gather(1, inputs["input_ids"][0, begin:, None])[:, 0].tolist())


@pytest.mark.parametrize(("layout", "search"), SEARCHES)
def test_it_answers_and_scores_as_the_plain_library(
    saved_model: tuple[str, Path], paths: dict[str, Path], layout: str, search: dict[str, Any]
) -> None:
    family, folder = saved_model
    plain, engine = Plain(folder, paths), opened(folder, paths, **search)
    prompts = prompts_of(paths, layout)
    replies = engine.run([LvlmRequest(prompt, ANSWERS) for prompt in prompts])
    assert [reply.text for reply in replies] == [plain.answer(p, engine.family.eos, **search) for p in prompts]
    for prompt, reply in zip(prompts, replies, strict=True):
        for answer, scores in zip(ANSWERS, reply.token_log_probs, strict=True):
            assert scores == pytest.approx(plain.log_probs(prompt, answer.join(OWN[family])), abs=ATOL)


def test_the_packed_plugin_reads_a_processor_as_it_is_saved(tmp_path: Path, paths: dict[str, Path]) -> None:
    FOLDERS["qwen2_5_vl"](tmp_path)
    alone, whole = tmp_path / "preprocessor_config.json", tmp_path / "processor_config.json"
    requests = [LvlmRequest(prompt, ANSWERS) for prompt in prompts_of(paths)]
    replies = opened(tmp_path, paths, "qwen2_5_vl").run(requests)
    image_settings = json.loads(alone.read_text())
    whole.write_text(json.dumps({"image_processor": image_settings, "processor_class": "Qwen2_5_VLProcessor"}))
    alone.unlink()
    assert opened(tmp_path, paths, "qwen2_5_vl").run(requests) == replies
    whole.write_text(json.dumps({"image_processor": {k: v for k, v in image_settings.items() if k != "image_mean"}}))
    with pytest.raises(CheckpointError, match=r"processor_config\.json: .*image_mean"):
        opened(tmp_path, paths, "qwen2_5_vl")
    whole.unlink()
    (found,) = [each for each in local_checks.check(experiment(tmp_path), rules=None, folder=Path()) if each.do]
    assert found.found == "none of preprocessor_config.json, processor_config.json"
    assert "docs/your-model.md" in found.do


def test_doctor_writes_a_prompt_and_names_the_end_of_an_answer(saved_model: tuple[str, Path]) -> None:
    found = {
        outcome.check: outcome for outcome in local_checks.check(experiment(saved_model[1]), rules=None, folder=Path())
    }
    assert found[f"lvlm.model {saved_model[1]}"].level is Level.OK
    (end,) = found[f"prompt of {saved_model[1]}"].text.rpartition("ends with ")[2:]
    assert (found[f"prompt of {saved_model[1]}"].level, end) == (Level.OK, repr(OWN[saved_model[0]][1]))


@pytest.mark.parametrize(
    ("written", "level", "message"),
    [
        (template(), Level.OK, "ends with '<0x0A>'"),
        (template(end=" "), Level.OK, "ends with '</s>'"),
        (template(end=" </s>"), Level.OK, "ends with '</s>'"),
        (template(end=""), Level.PROBLEM, "found nothing after an answer."),
        (
            template(generation_prompt="B:"),
            Level.PROBLEM,
            "found an assistant turn that does not start with the generation prompt.",
        ),
        (
            template(answer="A:"),
            Level.PROBLEM,
            r"found 'uestion\nA:an answer\n', where an answer has no tokens of its own.",
        ),
        (
            template(generation_prompt="A: "),
            Level.PROBLEM,
            r"found 'estion\nA: an answer\n', where an answer has no tokens of its own.",
        ),
        (template(PART.replace("<image>", "")), Level.PROBLEM, "found 0 times <image> for one image."),
        (template(ONE_IMAGE), Level.PROBLEM, "writes each text and two images, <image>"),
        (template(QUERY), Level.PROBLEM, "writes each text and two images, <image>"),
        (template(IMAGES_FIRST), Level.WARNING, "keeps images and texts in their order"),
        ("{{ raise_exception('no images here') }}", Level.PROBLEM, "no images here"),
        ("{{ 1 / 0 }}", Level.PROBLEM, "ZeroDivisionError"),
    ],
)
def test_what_a_template_lacks_is_told_before_a_job(tmp_path: Path, written: str, level: Level, message: str) -> None:
    FOLDERS["llava"](tmp_path)
    (tmp_path / "chat_template.jinja").write_text(written)
    found = answers.prompt(experiment(tmp_path, "single_turn").lvlm, Path())
    assert (found.level, message in found.text) == (level, True), found.text


REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (REFUSING + template(), "one that refuses a system turn (System role not supported)"),
        (template().replace("in messages", "in messages if m.role != 'system'"), "one that leaves the system text out"),
    ],
)
def test_a_lost_system_text_stops_every_run_and_none_is_written(
    tmp_path: Path, paths: dict[str, Path], written: str, found: str
) -> None:
    FOLDERS["llava"](tmp_path)
    (tmp_path / "chat_template.jinja").write_text(written)

    def problems(system: str | None) -> list[str]:
        sound = experiment(tmp_path)
        prompt = sound.lvlm.prompt.model_copy(update={"system": system})
        changed = sound.model_copy(update={"lvlm": sound.lvlm.model_copy(update={"prompt": prompt, "engine": "hf"})})
        outcomes = local_checks.check(changed, rules={"answer_prompts"}, folder=Path())
        return [outcome.found for outcome in outcomes if outcome.level is Level.PROBLEM]

    assert problems("be brief") == [found]
    assert problems("") == problems(None) == []
    family = opened(tmp_path, paths).family
    with pytest.raises(CheckpointError, match=r"lvlm\.prompt\.system"):
        family.render(prompts_of(paths, "turns", "be brief")[0])
    (segment,) = family.render(prompts_of(paths, "turns", "")[0])
    assert "be brief" not in segment.text
    assert "what" in segment.text
