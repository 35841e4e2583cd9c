"""What the model library says of prompts on pixels, each prompt alone and each question to it asked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from lever_pipe.lvlms._decoding import DecodeOptions
from lever_pipe.lvlms._family import Family
from lever_pipe.lvlms._requests import TokenPrompt
from lever_pipe.lvlms.protocol import ImageSource


class StockPath:
    """The stock class of a family's folder; what it says of a prompt depends on nothing else, and is remembered."""

    def __init__(self, family: Family, paths: Mapping[str, Path]) -> None:
        self._family = family
        self._open = cache(ImageSource(paths).open)
        self._answer, self._inputs, self.scores = cache(self._answer), cache(self._inputs), cache(self.scores)

    def tokens(self, prompts: Sequence[TokenPrompt], options: DecodeOptions) -> list[tuple[int, ...]]:
        """Return the tokens of each prompt, asked alone."""
        return [self._answer(prompt, options) for prompt in prompts]

    @torch.inference_mode()
    def scores(self, prompt: TokenPrompt, answer: tuple[int, ...]) -> list[float]:
        """Return the log-probabilities of an answer's tokens by one full forward on pixels."""
        inputs = self.inputs(prompt)
        length, more = inputs["input_ids"].shape[1], torch.tensor([answer])
        inputs["input_ids"] = torch.cat([inputs["input_ids"], more], dim=1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if "mm_token_type_ids" in inputs:
            inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(more).int()], dim=1)
        lines = self._family.model(**inputs).logits[0, length - 1 : -1].float().log_softmax(-1)
        return lines.gather(1, more[0][:, None])[:, 0].tolist()

    def inputs(self, prompt: TokenPrompt) -> dict[str, torch.Tensor]:
        """Return what the model's forward takes of one prompt."""
        return dict(self._inputs(prompt))

    def _inputs(self, prompt: TokenPrompt) -> dict[str, torch.Tensor]:
        return self._family.stock_inputs([prompt], self._open)

    def _answer(self, prompt: TokenPrompt, options: DecodeOptions) -> tuple[int, ...]:
        return self._family.stock_tokens([prompt], open_image=self._open, options=options)[0]
