"""Any vision-language model of the model library, through its own processor, chat template and `generate`.

It is slow and general: every prompt includes its pixels, no beginning is shared, and scoring a prompt's given answers
is a separate forward. It supports families other than Qwen2.5-VL and is the reference for tests of the packed engine.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer, GenerationConfig
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES, processor_class_from_name
from transformers.utils import logging as transformers_logging

from lever_pipe.base.chat_templates import ChatTemplate
from lever_pipe.base.errors import CheckpointError
from lever_pipe.base.model_folders import IMAGES, MAKE, load_strictly, readable, require_size, require_whole, written
from lever_pipe.base.rowwise import rowwise
from lever_pipe.base.storage import digest
from lever_pipe.lvlms._requests import Answer, PromptTooLongError, Result, Results, Scores, TokenPrompt, TokenRequest
from lever_pipe.lvlms.asking.prompts import Prompt, TextSegment, of_system
from lever_pipe.lvlms.protocol import DecodeOptions, ImageSource, LvlmFamily, settings_of

if TYPE_CHECKING:
    from lever_pipe.experiment.job_runtime import LvlmExecution
    from lever_pipe.experiment.lvlm import AnswerSettings

REQUIRED = ("config.json", "tokenizer.json")
PROMPTS_PER_BATCH = 8
REQUESTED, REPLY = "a question", "an answer"
"""Texts for trying out a template."""
FOR_IMAGES = {"smolvlm": "Idefics3Processor"}
"""Families whose own processor requires packages for videos -> another one that processes images equally."""


@dataclass(frozen=True)
class Templated(LvlmFamily):
    """A model that is prompted with its folder's chat template.

    Attributes:
        processor: converts texts and images to inputs of the model.
        begin: text that the tokenizer adds before a text and the template does not.
        template: the tokenizer's chat template.
    """

    processor: Any
    begin: str
    template: ChatTemplate

    def identity(self) -> dict[str, str]:
        """Return digests of the parts of the folder that an answer depends on."""
        paths = sorted([*self.folder.glob("*.safetensors"), *self.folder.glob("*.json"), *self.folder.glob("*.jinja")])
        listing = "\n".join(f"{path.name} {digest(path)}" for path in paths)
        return {
            "weights": hashlib.sha256(listing.encode()).hexdigest(),
            "image_processor": settings_of(self.processor.image_processor),
        }

    def render(self, prompt: Prompt) -> tuple[TextSegment, ...]:
        """Return a prompt in the format of the folder's chat template, as one segment."""
        if problem := self.template.problem_of_system(prompt.system):
            expected, do = of_system(prompt.system)
            raise CheckpointError(f"{self.folder}: expected {expected}", found=problem, do=do)
        text = _applied(self.folder, self.tokenizer, prompt.messages())
        whole = text if text.startswith(self.begin) else self.begin + text
        return (TextSegment(whole, prompt.images),)


@dataclass(frozen=True)
class Stock(Templated):
    """A loaded model in evaluation mode, unchanged from the model library."""

    model: Any

    def engine(
        self, images: ImageSource, settings: AnswerSettings, decode: DecodeOptions, execution: LvlmExecution
    ) -> StockEngine:
        """Return an engine over this model; settings of waves and stored features apply to the packed engine only."""
        del settings, execution
        return StockEngine(self, images, decode)


class StockEngine:
    """Answers requests with the model library alone (`protocol.Engine`)."""

    backend = "stock"

    def __init__(self, family: Stock, images: ImageSource, decode: DecodeOptions) -> None:
        self.counters = Counter[str]()
        self._family = family
        self._model = family.model
        self._taken = inspect.signature(family.model.forward).parameters.keys()
        self._images = images
        self._decode = decode

    def run(self, requests: Sequence[TokenRequest]) -> Results:
        """Yield each request with its result, batch by batch."""
        # Sorted, so that batches do not depend on the order of requests.
        ordered = sorted(requests, key=lambda r: [(s.ids, s.images) for s in r.prompt.segments])
        for start in range(0, len(ordered), PROMPTS_PER_BATCH):
            try:
                with self._counted():
                    answered = list(self._batch(ordered[start : start + PROMPTS_PER_BATCH]))
            except PromptTooLongError:
                raise
            except ValueError as error:  # a processor writes another number of image tokens than the model has features
                raise CheckpointError(
                    f"{self._family.folder}: expected a processor whose images the model takes",
                    found=" ".join(str(error).split()),
                    do="Bring the processor files of this very model, or write them with its save_pretrained.",
                ) from None
            yield from answered

    def _batch(self, requests: Sequence[TokenRequest]) -> Iterator[tuple[TokenRequest, Result]]:
        prompts = [request.prompt for request in requests if request.generate]
        generated = iter(self.generate(prompts) if prompts else [])
        for request in requests:
            tokens, beam_score = next(generated) if request.generate else ((), None)
            answers = [*request.answers, *([tokens] if tokens else [])]
            scores = self.scores(request.prompt, answers) if answers else []
            log_probs = scores[len(request.answers)] if tokens else ()
            yield request, Result(tokens, log_probs, beam_score, tuple(scores[: len(request.answers)]))

    @torch.inference_mode()
    def generate(self, prompts: Sequence[TokenPrompt]) -> list[tuple[Answer, float | None]]:
        """Return the tokens of each prompt and the score of its beam, by one call of `generate`."""
        options = self._decode
        inputs = self.inputs(prompts, reserved=options.max_new_tokens)
        # `generate` warns about a length penalty without beams.
        beams = {"length_penalty": options.length_penalty} if options.num_beams > 1 else {}
        output = self._model.generate(
            **inputs,
            **beams,
            do_sample=False,
            num_beams=options.num_beams,
            max_new_tokens=options.max_new_tokens,
            repetition_penalty=options.repetition_penalty,
            suppress_tokens=list(options.never) or None,
            eos_token_id=list(options.eos),
            pad_token_id=self._family.tokenizer.pad_token_id,
            return_dict_in_generate=True,
            output_scores=True,
        )
        new = output.sequences[:, inputs["input_ids"].shape[1] :].tolist()
        scores = output.sequences_scores.tolist() if options.num_beams > 1 else [None] * len(new)
        ends = (next((i + 1 for i, token in enumerate(row) if token in options.eos), len(row)) for row in new)
        return [(tuple(row[:end]), score) for row, end, score in zip(new, ends, scores, strict=True)]

    @torch.inference_mode()
    def scores(self, prompt: TokenPrompt, answers: Sequence[Answer]) -> list[Scores]:
        """Return the log-probability of each token of each answer, by one forward with a row an answer."""
        longest = max(map(len, answers))
        inputs = self.inputs([prompt], reserved=longest)
        shape = inputs["input_ids"].shape
        rows = {name: tensor.repeat(len(answers), *[1] * (tensor.ndim - 1)) for name, tensor in inputs.items()}
        for name, tensor in inputs.items():
            if tensor.shape == shape:  # values for each token; 0 fits answers, which have no image tokens
                rows[name] = torch.nn.functional.pad(rows[name], (0, longest))
        for row, answer in enumerate(answers):
            span = slice(shape[1], shape[1] + len(answer))
            rows["input_ids"][row, span] = torch.tensor(answer)
            rows["attention_mask"][row, span] = 1
        n_lines = longest + 1  # the lines of a whole prompt with a large vocabulary take gigabytes
        last = {"logits_to_keep": n_lines} if "logits_to_keep" in self._taken else {}
        lines = self._model(**rows, **last).logits[:, -n_lines:-1].float().log_softmax(-1)
        return [tuple(line[range(len(a)), list(a)].tolist()) for line, a in zip(lines, answers, strict=True)]

    def inputs(self, prompts: Sequence[TokenPrompt], *, reserved: int) -> dict[str, Tensor]:
        """Return the model's inputs for prompts, padded on the left; `reserved` tokens must remain for an answer."""
        images = [[self._images.open(digest) for digest in prompt.images] for prompt in prompts]
        extra = {"images": images} if any(images) else {}
        padding = {"padding": True, "padding_side": "left", "add_special_tokens": False}
        batch = self._family.processor(
            text=[prompt.text for prompt in prompts], **extra, text_kwargs=padding, return_tensors="pt"
        )
        for prompt, length in zip(prompts, batch["attention_mask"].sum(dim=1).tolist(), strict=True):
            if length + reserved > self._family.context:
                raise PromptTooLongError(prompt, length + reserved, self._family.context)
        return {name: tensor.to(self._model.device) for name, tensor in batch.items() if name in self._taken}

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the model's work in this context."""

        def count(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
            ids, alive = kwargs.get("input_ids"), kwargs.get("attention_mask")
            self.counters["forwards"] += 1
            if ids is None or ids.shape[1] == 1 or alive is None or alive.ndim > 2:
                return
            real = int(alive[:, -ids.shape[1] :].sum())
            self.counters["prompt_tokens"] += real
            self.counters["tokens_prefilled"] += real
            self.counters["tokens_padded"] += ids.numel() - real

        hook = self._model.register_forward_pre_hook(count, with_kwargs=True)
        n_opened = self._images.opened
        try:
            yield
        finally:
            hook.remove()
            self.counters["images_encoded"] += self._images.opened - n_opened


def load(folder: Path, *, dtype: str, device: str) -> Stock:
    """Return model and processor of a folder as `save_pretrained` writes it.

    Raises:
        CheckpointError: as `described`, or tensors that differ from the architecture or were never trained.
    """
    family = described(folder)
    part = "set of weights for its own config.json"
    model = load_strictly(AutoModelForImageTextToText, folder, part, dtype=getattr(torch, dtype)).to(device)
    model.eval().requires_grad_(False)
    # The folder's own sampling defaults must not affect any `generate` call.
    model.generation_config = GenerationConfig(pad_token_id=family.tokenizer.pad_token_id)
    return replace(family, model=rowwise(model))


def described(folder: Path) -> Stock:
    """Return a folder's model without its weights, ready to write prompts; `model` is None.

    Raises:
        CheckpointError: missing files, no vision-language model, or a chat template that cannot express a question with
            an image.
    """
    require_whole(folder, "a model folder", files=REQUIRED, any_of=IMAGES)
    transformers_logging.disable_progress_bar()
    with readable(folder, "config.json"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        require_size(folder, config)
    with readable(folder, "processor of images and texts"):
        processor = _processor(folder, config.model_type)
        tokenizer, image = processor.tokenizer, str(processor.image_token)
    if tokenizer.pad_token_id is None:
        raise CheckpointError(f"{folder}: expected a tokenizer with a pad_token", found="none", do=MAKE)
    if tokenizer.chat_template is None:  # older folders have it with the processor, in chat_template.json
        tokenizer.chat_template = processor.chat_template
    before_answer, end = _around_answer(folder, tokenizer, image)
    return Stock(
        folder=folder,
        tokenizer=tokenizer,
        eos=end,
        image_token=_ids(tokenizer, image)[0],
        context=config.get_text_config().max_position_embeddings,
        before_answer=before_answer,
        processor=processor,
        begin=_begin(tokenizer),
        template=ChatTemplate(tokenizer.get_chat_template(), _named(tokenizer)),
        model=None,
    )


def _named(tokenizer: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str))


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def _applied(folder: Path, tokenizer: Any, messages: Sequence[dict[str, Any]], *, is_open: bool = True) -> str:
    with readable(folder, "chat template for prompts of images and texts"):
        return written(tokenizer, messages, add_generation_prompt=is_open)


def _around_answer(folder: Path, tokenizer: Any, image: str) -> tuple[str, int]:
    """Return the text before a separately tokenized answer, and the token that ends the answer, found by trial.

    If only blanks follow an answer in the template, the end of a text ends it.

    Raises:
        CheckpointError: the folder's template starts no assistant turn with the generation prompt, or shows no
            image; or an answer has no separate tokens.
    """
    user_turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": REQUESTED}]}]
    answered = [*user_turn, {"role": "assistant", "content": [{"type": "text", "text": REPLY}]}]
    question, whole = _applied(folder, tokenizer, user_turn), _applied(folder, tokenizer, answered, is_open=False)
    before, answer, tail = whole.removeprefix(question).partition(REPLY)
    problems = [] if question.count(image) == 1 else [f"{question.count(image)} times {image} for one image"]
    if not whole.startswith(question) or not answer or before.strip():
        problems.append("an assistant turn that does not start with the generation prompt")
    elif not tail:
        problems.append("nothing after an answer")
    question_ids, answered_ids, ended_ids = (
        _ids(tokenizer, question + text) for text in ("", before + REPLY, before + REPLY + tail.lstrip(" "))
    )
    # If the tokenizer itself adds a blank before a text, the template's blank must not be added again.
    begins = [text for text in (before, before[1:]) if question_ids + _ids(tokenizer, text + REPLY) == answered_ids]
    end = next(iter(ended_ids[len(answered_ids) :]), tokenizer.eos_token_id)
    if not problems and (not begins or ended_ids[: len(answered_ids)] != answered_ids or end is None):
        problems.append(f"{question[-10:] + whole.removeprefix(question)!r}, where an answer has no tokens of its own")
    if problems:
        expected = f"{folder}: expected a chat template that shows images and ends answers"
        raise CheckpointError(expected, found="; ".join(problems), do="Fix its chat template, or name another model.")
    return begins[0], int(end)


def _begin(tokenizer: Any) -> str:
    """Return the text that the tokenizer itself adds before a text: the beginning of a sequence, or nothing."""
    plain, usual = (tokenizer(REPLY, add_special_tokens=added).input_ids for added in (False, True))
    return str(tokenizer.bos_token) if usual != plain and usual[:1] == [tokenizer.bos_token_id] else ""


def _processor(folder: Path, kind: str) -> Any:
    """Return the processor of a family with an image processor without torchvision, and without videos."""
    name = FOR_IMAGES.get(kind) or PROCESSOR_MAPPING_NAMES.get(kind)
    family: Any = processor_class_from_name(name) if name else None
    if family is None:
        raise CheckpointError(
            f"{folder}/config.json: expected the model_type of a vision-language model of the installed transformers",
            found=repr(kind),
            do="Name another model, or install the transformers release that knows it.",
        )
    # The library checks the class of each part, including the video part, which it cannot import here.
    unchecked = type(family.__name__, (family,), {"check_argument_for_proper_class": lambda *_: None})
    settings, _ = family.get_processor_dict(folder, local_files_only=True)
    parameters = set(inspect.signature(family.__init__).parameters) - {"self", "kwargs", *family.get_attributes()}
    parts: dict[str, Any] = dict.fromkeys(family.get_attributes()) | {
        "image_processor": AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil"),
        "tokenizer": AutoTokenizer.from_pretrained(folder, local_files_only=True),
    }
    return unchecked(**parts, **{name: value for name, value in settings.items() if name in parameters})
