"""The vision-language model (LVLM): prompts, generation, batching, and the stages that only ask it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.plugins import plugin_of
from lever_pipe.base.records import Normalisation
from lever_pipe.base.sections import Counts, Distinct, FilePath, Names, Problem, Section, has_fields, rule
from lever_pipe.experiment.job_runtime import LvlmExecution

LVLM = "lvlms.{lvlm.engine}"
AUTO = "auto"


class PromptSettings(Section):
    """Format of a prompt: a question with demonstrations; see `tests/golden/prompts`."""

    layout: Literal["single_turn", "turns"] = "single_turn"
    """`single_turn`: all images and texts in one user turn (published); `turns`: one turn per demonstration."""
    system: str | None = (
        "In the following, you are given four earlier user and assistant dialogues, and then an image and a "
        "question. Act as the assistant: use these examples and your own knowledge to answer. Be as brief as "
        "the examples: one or two keywords where they use one or two, never more than three tokens where they "
        "stay within three."
    )
    """System turn; "" for none, null for the chat template's default. Before the first job, a run checks that the chat
    template keeps the text, and adds none for ""."""
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
    """Generation settings, all explicit so that a model folder's defaults have no effect."""

    num_beams: int = Field(3, ge=1, le=16)
    """1 is greedy."""
    max_new_tokens: int = Field(5, ge=1, le=32_768)
    length_penalty: float = Field(0.0, ge=-5, le=5)
    repetition_penalty: float = Field(1.05, gt=0, le=10)
    """Penalty on tokens that already occur in prompt or answer; 1 for none. Published: the value of the model's
    `generation_config.json`."""
    ends: Distinct[str] = ()
    """Tokens that end an answer, in addition to the end of a turn; empty for the tokens of the model's
    `generation_config.json`."""
    temperature: float | None = Field(0.0, ge=0, le=0, exclude_if=lambda value: value == 0)
    """0, or null with engine `served` to omit it from requests: some models accept only their own."""


class AnswerSettings(Section):
    """Settings that determine the answers of a vision-language model."""

    engine: Annotated[str, plugin_of("lvlms", AUTO)] = AUTO
    """A plugin of `lever_pipe/lvlms`. `auto` selects `vllm` on a GPU if it is installed, the plugin of the folder's
    `model_type` on a CPU, and `hf` otherwise. `served` sends requests to a server, with `lvlm.model` as the model's
    name."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    wave_tokens: int = Field(32_768, ge=64)
    """Tokens of one forward pass; part of the identity, because batch composition changes the last bits."""
    kv_tokens: int = Field(400_000, ge=256)
    """Capacity of the key-value cache in tokens (36 kB each for Qwen2.5-VL-3B in bfloat16)."""
    prompt: PromptSettings = PromptSettings()
    decode: Decode = Decode()


class LvlmConfig(AnswerSettings):
    """All values that an LVLM answer depends on."""

    model_identity: str


class AnswerPromptsConfig(Section):
    PLUGINS = (LVLM,)
    lvlm: LvlmConfig
    shots: Counts


class AnswerControlsConfig(Section):
    PLUGINS = (LVLM,)
    normalise_references: Normalisation = "when_they_disagree"
    lvlm: LvlmConfig
    policies: Names
    """One for each of the `selections`."""
    questions: int
    """Number of questions: the first ones."""
    shots: int


class LvlmSettings(AnswerSettings, LvlmExecution):
    """The frozen vision-language model."""

    model: FilePath = "models/Qwen2.5-VL-3B-Instruct"
    """The model's folder; with engine `served` its name at the server."""

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
        """Return whether the engine is a server."""
        return self.engine == "served"

    def execution(self) -> str:
        """Return the settings of `LvlmExecution` that are not the default, as JSON."""
        return self.model_dump_json(include=set(LvlmExecution.model_fields), exclude_defaults=True)
