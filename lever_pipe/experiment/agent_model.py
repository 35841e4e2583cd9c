"""The trained agent."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lever_pipe.base.plugins import plugin_of
from lever_pipe.base.sections import FilePath, Problem, Section, dividing, rule

WORDS = "word"
TINY = "tiny Qwen3"
"""The codec of the embedded world's vocabulary, and the name of the agent that uses it."""


class TinyQwen3(Section):
    """A small Qwen3 with random weights and a word-level vocabulary."""

    hidden: int = Field(96, ge=8, le=8192)
    layers: int = Field(2, ge=1, le=128)
    heads: int = Field(4, ge=1, le=128)
    kv_heads: int = Field(2, ge=1, le=128)
    head_dim: int = Field(24, ge=2, le=512)
    mlp: int = Field(288, ge=8, le=65_536)
    positions: int = Field(512, ge=16)

    @rule
    def _kv_heads_divide_heads(self) -> list[Problem]:
        return dividing(("kv_heads",), self.kv_heads, "heads", self.heads)


class AgentModel(Section):
    """The trained policy."""

    folder: FilePath = "models/Qwen3-8B"
    """A local folder of a Llama, Qwen2 or Qwen3; empty builds the tiny Qwen3 below. `warm_start` applies to either."""
    codec: Annotated[str, plugin_of("intention/codecs")] = "hf"
    """A plugin of `lever_pipe/intention/codecs`, which converts dialogues to tokens."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    max_context: int = Field(9344, ge=16)
    """Most tokens of an episode; a full episode ends. Published: 1,152 of the prompt and 8,192 of the response."""
    max_new_tokens: int = Field(1024, ge=1)
    """Most tokens of one agent turn (chosen; not published)."""
    tiny: TinyQwen3 = TinyQwen3()


CODEC = "intention.codecs.{policy.model.codec}"


class PolicyConfig(Section):
    """Everything that determines the policy's output: model content, precision and dialogue format."""

    model: AgentModel
    """With an empty folder; `model_identity` contains the folder's content."""
    model_identity: str
    """`embedded` for the tiny model."""
