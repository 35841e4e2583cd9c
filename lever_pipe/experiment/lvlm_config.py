"""The vision-language model that answers: prompts, generation, and how its work is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.chat import Connection
from lever_pipe.base.plugins import plugin_of
from lever_pipe.base.sections import Distinct, FilePath, Problem, Section, has_fields, rule

AUTO = "auto"


class PromptSettings(Section):
    """How a question with demonstrations becomes text; see `tests/golden/prompts`."""

    layout: Literal["single_turn", "turns"] = "single_turn"
    """`single_turn`: all images and texts in one user turn (published); `turns`: a turn a demonstration."""
    system: str | None = (
        "In the following, you are given four earlier user and assistant dialogues, and then an image and a "
        "question. Act as the assistant: use these examples and your own knowledge to answer. Be as brief as "
        "the examples: one or two keywords where they use one or two, never more than three tokens where they "
        "stay within three."
    )
    """System turn; "" for none, null for that which the model's template writes where none is given. Before the first
    job a run checks that the chat template keeps the text, or adds none to ""."""
    demonstration: str = "Question:{question} Short answer:{answer}"
    query: str = "Question:{question} Short answer:"

    @rule
    def _templates_hold_their_fields(self) -> Iterator[Problem]:
        for key, fields in (("demonstration", ("question", "answer")), ("query", ("question",))):
            template = getattr(self, key)
            if not has_fields(template, **dict.fromkeys(fields, "text")):
                required = " and ".join(f"{{{field}}}" for field in fields)
                yield (key,), f"must hold {required} and no other field, got {template!r}. Double a brace that is text."


class Decode(Section):
    """Generation settings, all pinned so that a model folder's own defaults never leak in."""

    num_beams: int = Field(3, ge=1, le=16)
    """1 is greedy."""
    max_new_tokens: int = Field(5, ge=1, le=32_768)
    length_penalty: float = Field(0.0, ge=-5, le=5)
    repetition_penalty: float = Field(1.05, gt=0, le=10)
    """What makes tokens of prompt and answer less likely to be said again; 1 for none. Published: that of the model's
    `generation_config.json`."""
    ends: Distinct[str] = ()
    """Tokens that end an answer besides the end of a turn; empty for those of the model's `generation_config.json`."""
    temperature: float | None = Field(0.0, ge=0, le=0, exclude_if=lambda value: value == 0)
    """0, or with engine `served` null, which sends none: some models accept no other than their own."""


class AnswerSettings(Section):
    """How a vision-language model answers."""

    engine: Annotated[str, plugin_of("lvlms", AUTO)] = AUTO
    """A plugin of `lever_pipe/lvlms`; `auto` for `vllm` on a GPU if it is installed, on a CPU for that of the folder's
    `model_type`, and for `hf` everywhere else; `served` asks a server, which knows `lvlm.model` by that name."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    wave_tokens: int = Field(32_768, ge=64)
    """Tokens of one forward; identity, because batch composition moves the last bits."""
    kv_tokens: int = Field(400_000, ge=256)
    """Tokens whose keys and values are stored at one time (36 kB each for Qwen2.5-VL-3B in bfloat16)."""
    prompt: PromptSettings = PromptSettings()
    decode: Decode = Decode()


class VllmSettings(Section):
    """How engine `vllm` uses its GPUs; where memory runs out, lower `requests` and `context`."""

    gpus: int = Field(1, ge=1, le=64)
    """GPUs of one node that share each product of a model (tensor parallelism); a job takes so many."""
    memory_share: float = Field(0.9, gt=0, lt=1)
    """Share of a GPU's memory for weights, keys and values."""
    requests: int = Field(256, ge=1)
    """Prompts that are answered at one time."""
    context: int = Field(0, ge=0)
    """Most tokens of a prompt with its answer; 0 for the model's own bound, which takes more memory."""
    image_cache_gb: float = Field(4.0, ge=0)
    """Main memory for processed images; a demonstration's is processed once while it is there."""
    eager: bool = False
    """Whether kernels start one by one, which saves memory and minutes at the start, and is slower."""


class LvlmServer(Connection):
    """How the server of a vision-language model is reached, and which of its replies are answers."""

    timeout_seconds: float = Field(120.0, gt=0, le=600)
    """Of one request."""
    accept_refusals: bool = False
    """Whether a refusal, or a reply that a content filter withheld, is an answer without words, which counts as wrong;
    otherwise the job ends with an error."""


class LvlmExecution(Section):
    """How an LVLM's work is done; it moves no answer's meaning and is in no identity."""

    ask_again: bool = False
    """Whether a GPU may ask although the ledger holds many answers that other code, another library or another numeric
    path gave for this model."""
    vllm: VllmSettings = VllmSettings()
    server: LvlmServer = LvlmServer()
    """Of engine `served`."""


class LvlmSettings(AnswerSettings, LvlmExecution):
    """The frozen vision-language model that answers."""

    model: FilePath = "models/Qwen2.5-VL-3B-Instruct"
    """Its folder; with engine `served` its name at the server."""

    @rule
    def _servers_search_no_beams(self) -> Iterator[Problem]:
        if not self.is_served:
            if self.decode.temperature is None:
                yield ("decode", "temperature"), "must be 0 without engine: served, got null. Drop it."
            return
        if self.decode.num_beams > 1:
            yield ("decode", "num_beams"), f"must be 1 with engine: served, got {self.decode.num_beams}. Lower it."
        if self.decode.ends:
            yield ("decode", "ends"), "must be empty with engine: served, whose server ends answers. Drop them."

    @property
    def is_served(self) -> bool:
        """Return whether a server answers, which knows `model` by that name."""
        return self.engine == "served"

    def execution(self) -> str:
        """Return the settings of `LvlmExecution` that are not the default, as JSON."""
        return self.model_dump_json(include=set(LvlmExecution.model_fields), exclude_defaults=True)
