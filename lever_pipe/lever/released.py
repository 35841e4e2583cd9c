"""A released policy: loads from its folder alone and selects demonstrations for any question about any image.

`lever-pipe release` writes the folder. Examples are identified by the question ids of the original data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lever_pipe.base import contents, storage
from lever_pipe.base.errors import CheckpointError, ConfigError, DataError
from lever_pipe.base.plugins import plugin
from lever_pipe.base.records import Example, ExampleId, Pool, Row
from lever_pipe.base.sections import Section
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.examples import EmbedExamplesConfig
from lever_pipe.experiment.pools import Pools
from lever_pipe.experiment.selector import Selector
from lever_pipe.lever.encoders.protocol import Encoder
from lever_pipe.lever.samplers.protocol import SamplingView
from lever_pipe.lever.selector.decoding import choose
from lever_pipe.lever.selector.embeddings import INPUTS, EmbeddingTable
from lever_pipe.lever.selector.network import architecture_of, load_selector

SETTINGS, WEIGHTS, EXAMPLES, EMBEDDINGS = "config.json", "model.safetensors", "examples.jsonl", "embeddings.safetensors"
POOLS, SELECTIONS, ENCODER = "pools.jsonl", "selections.jsonl", "encoder"


class OfQuestion(Row):
    """Train questions of an evaluation question, in order: its candidate pool, or a policy's selection."""

    question_id: int
    train_question_ids: tuple[int, ...]


class ReleasedPolicy(Section):
    """Contents of a released policy's `config.json`."""

    policy: str
    lineage: str
    """Digest of all inputs of the policy and its scores."""
    selector: Selector
    shots: int
    pools: Pools
    """Settings for drawing candidates."""
    encoder: EmbedExamplesConfig


class Policy:
    """A policy that selects demonstrations on CPU and reads only its folder.

    Attributes:
        settings: contents of `config.json`.
        examples: the train examples by question id, the only possible demonstrations.
        pools: evaluation question -> its candidates.
        selections: evaluation question -> the policy's selection from them.

    Raises:
        CheckpointError: the weights or the encoder differ from the released ones.
        RecordError: a file is missing or malformed.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.settings = storage.read_row(folder / SETTINGS, ReleasedPolicy)
        encoder, selector, model = self.settings.encoder, self.settings.selector, folder / ENCODER
        # The selector was trained on this encoder's embeddings only.
        if (identity := contents.model_identity(str(model))) != encoder.model_identity:
            expected = f"{model}: expected the encoder {encoder.model_identity}"
            raise CheckpointError(expected, found=identity, do="Fetch the folder again, whole.")
        self._train = storage.read_examples(folder / EXAMPLES)
        self.examples = {example.question_id: example for example in self._train}
        self.pools, self.selections = (
            {row.question_id: row.train_question_ids for row in storage.read_rows(folder / name, OfQuestion)}
            for name in (POOLS, SELECTIONS)
        )
        arrays = storage.read_embeddings(folder / EMBEDDINGS, len(self._train))
        self._vectors = arrays["image"], arrays["question"]
        self._encoder: Encoder = plugin("lever/encoders", encoder.plugin).load(model, device="cpu", batch_size=1)
        self._table = self._table_of(*self._vectors)
        self._module = load_selector(folder / WEIGHTS, architecture_of(selector, self._table.width))

    def select(
        self, question: str, image: str | Path, k: int | None = None, *, pool: Sequence[int] | None = None
    ) -> list[Example]:
        """Return the demonstrations for a question about an image, in the order of a prompt.

        Args:
            question: its text.
            image: its file.
            k: number of demonstrations, None for the evaluation's; a head that stops may give fewer.
            pool: question ids of the candidates, as `pools[ID]`; None draws them, the same for the same question.

        Raises:
            ConfigError: more demonstrations than candidates or than `selector.steps`, candidates that are not train
                questions, or no candidates if another encoder than the selector's draws them.
            ImageError: the image cannot be read.
            DataError: fewer train examples than a pool needs.
        """
        vectors = self._encoder.images([Path(image)]), self._encoder.texts([question])
        offered = self._sample(question, Path(image), *vectors) if pool is None else self._example_ids(pool)
        shots = self.settings.shots if k is None else k
        # A selector with step embeddings can make only as many picks as it has embeddings.
        most = min(len(offered), self.settings.selector.steps or len(offered))
        if not 1 <= shots <= most:
            expected = f"k: expected 1 to {most}, by the candidates and the selector's steps"
            raise ConfigError(expected, found=str(shots), do="Ask for another number.")
        # The score of a candidate depends on no other example, so a table of the candidates suffices.
        candidates = EmbeddingTable(self._table.vectors[offered])
        # The table of queries has a single row, 0.
        pool_of_all = Pool(query_id=ExampleId(0), candidates=tuple(map(ExampleId, range(len(offered)))))
        (selection,) = choose(self._module, candidates, self._table_of(*vectors), [pool_of_all], shots)
        return [self._train[offered[position]] for position in selection.demonstrations]

    def _table_of(self, image: NDArray[np.float32], question: NDArray[np.float32]) -> EmbeddingTable:
        inputs = INPUTS[self.settings.selector.inputs](image, question)
        return EmbeddingTable(torch.from_numpy(inputs))

    def _example_ids(self, pool: Sequence[int]) -> list[ExampleId]:
        if wrong := [
            name for position, name in enumerate(pool) if name not in self.examples or name in pool[:position]
        ]:
            expected = f"pool: expected question ids of {EXAMPLES}, each once"
            raise ConfigError(expected, found=str(wrong[0]), do="Leave it out.")
        return [self.examples[name].example_id for name in pool]

    def _sample(self, question: str, image: Path, *vectors: NDArray[np.float32]) -> list[ExampleId]:
        """Return candidates drawn as in the evaluation, from a random stream of the question and the image."""
        pools, digest = self.settings.pools, storage.digest(image)
        if pools.encoder is not None:
            expected = "pool: expected candidates: those of the evaluation were drawn with another encoder"
            raise ConfigError(expected, found="none", do="Give their question ids.")
        eligible = [e.example_id for e in self._train if not (pools.exclude_same_image and e.image_digest == digest)]
        if len(eligible) < pools.size:
            expected = f"{image}: expected {pools.size} train examples to choose from"
            raise DataError(expected, found=str(len(eligible)), do="Give a pool.")
        similar = (train @ query[0] for train, query in zip(self._vectors, vectors, strict=True))
        # Keyed by question and image, so that the same question always gets the same candidates.
        view, stream = SamplingView(np.array(eligible), *similar), generator(pools.seed, "released", question, digest)
        return plugin("lever/samplers", pools.sampler).sample(view, pools.size, stream).tolist()  # type: ignore[no-any-return]
