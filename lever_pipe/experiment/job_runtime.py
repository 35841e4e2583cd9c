"""Execution of a job; no value here changes the meaning of a result."""

from __future__ import annotations

from pydantic import Field

from lever_pipe.base.chat import Connection
from lever_pipe.base.sections import Section


class VllmSettings(Section):
    """GPU use of engine `vllm`; if memory runs out, lower `requests` and `context`."""

    gpus: int = Field(1, ge=1, le=64)
    """GPUs of one node for tensor parallelism; a job requests this many."""
    memory_share: float = Field(0.9, gt=0, lt=1)
    """Share of a GPU's memory for weights, keys and values."""
    requests: int = Field(256, ge=1)
    """Prompts that are answered concurrently."""
    context: int = Field(0, ge=0)
    """Most tokens of a prompt with its answer; 0 for the model's limit, which takes more memory."""
    image_cache_gb: float = Field(4.0, ge=0)
    """Main memory for processed images; a cached demonstration image is not processed again."""
    eager: bool = False
    """Whether to launch kernels one by one: saves memory and minutes at the start, but is slower."""


class LvlmServer(Connection):
    """Connection to the server of a vision-language model, and handling of its refusals."""

    timeout_seconds: float = Field(120.0, gt=0, le=600)
    """Timeout of one request."""
    accept_refusals: bool = False
    """Whether a refusal, or a reply withheld by a content filter, counts as an empty and wrong answer; otherwise the
    job ends with an error."""


class LvlmExecution(Section):
    """Execution of an LVLM; it does not change the meaning of answers and is part of no identity."""

    ask_again: bool = False
    """Whether a GPU may compute answers although the ledger contains many answers of this model from other code,
    another library version or another numeric path."""
    vllm: VllmSettings = VllmSettings()
    server: LvlmServer = LvlmServer()
    """Server of engine `served`."""


class Runtime(Section):
    """Execution of a stage; it does not change the meaning of results and never enters `spec`."""

    device: str = "cpu"
    threads: int = 1
    ledger: str = ""
    """Folder of the answer ledger; empty for none."""
    lvlm: LvlmExecution = LvlmExecution()
    code: str = ""
    """Fingerprint of the code as the workflow planned this job; empty to compute it."""
    agent: str = ""
    """JSON of an `AgentExecution`, for stages of study `intention`; text, so that other stages need not import it."""
