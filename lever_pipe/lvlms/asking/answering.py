"""Stages and the LVLM: loading the configured member, and prompts from examples."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from lever_pipe.base.records import Example, ExampleId
from lever_pipe.experiment.stage_configs import LvlmConfig, Runtime
from lever_pipe.lvlms.asking.prompts import PromptStyle, TextPrompt, TextSegment, asked, opening, shown
from lever_pipe.lvlms.protocol import ImageSource, Lvlm, LvlmOptions


def load_lvlm(
    config: LvlmConfig, folder: Path, splits: Sequence[tuple[Sequence[Example], Path]], runtime: Runtime
) -> Lvlm:
    """Return the configured LVLM with access to the images of `(examples, image folder)` splits.

    Raises:
        CheckpointError: the model folder is missing or incomplete.
    """
    paths = {e.image_digest: root / e.image for examples, root in splits for e in examples}
    names = ("dtype", "executor", "wave_tokens", "kv_tokens")
    options = LvlmOptions(**{name: getattr(config, name) for name in names}, **config.decode.model_dump())
    member = import_module(f"lever_pipe.lvlms.{config.member}")
    lvlm: Lvlm = member.load(
        folder,
        options=options,
        images=ImageSource(paths),
        device=runtime.device,
        threads=runtime.threads,
        ledger=Path(runtime.ledger) if runtime.ledger else None,
        ask_again=runtime.ask_again,
    )
    return lvlm


class Prompter:
    """Prompts of queries with demonstrations from the train split; each example becomes text once in a role."""

    def __init__(self, config: LvlmConfig, train: Sequence[Example]) -> None:
        self._style = prompt_style(config)
        self._train = train
        self._opening = opening(self._style)
        self._shown: dict[ExampleId, TextSegment] = {}
        self._asked: dict[tuple[str, str, str], TextSegment] = {}  # by all that a query's segment is made of

    def __call__(self, query: Example, demonstrations: Sequence[ExampleId]) -> TextPrompt:
        """Return the prompt with the demonstrations in the given order, the first one farthest from the query."""
        for i in demonstrations:
            if i not in self._shown:
                self._shown[i] = shown(self._train[i], self._style)
        made_of = (query.question, query.answer, query.image_digest)
        if made_of not in self._asked:
            self._asked[made_of] = asked(query, self._style)
        return TextPrompt((*self._opening, *(self._shown[i] for i in demonstrations), self._asked[made_of]))


def prompt_style(config: LvlmConfig) -> PromptStyle:
    """Return the configured way in which a question with demonstrations becomes text."""
    return PromptStyle(**config.prompt.model_dump())
