"""Supervised learning through files: random beam data, and the epochs of one seed."""

from __future__ import annotations

import numpy as np
from builders import embedding_arrays, ids, random_pools
from chains import Chain

from lever_pipe.base import storage
from lever_pipe.base.records import Beam, EpochMetrics, QueryBeams
from lever_pipe.experiment.config import Sft
from lever_pipe.experiment.stage_configs import TrainSftEpochConfig
from lever_pipe.lever.training.groups import Groups, groups_of_beams, save_groups
from lever_pipe.stages.selector_training import train_sft_epoch

SFT = Sft(batch_queries=4, learning_rate=1e-2, horizon_epochs=3, warmup_share=0.2)
N_QUERIES, N_TRAIN = 40, 60


def beam_groups(n: int = N_QUERIES, *, k: int = 8, seed: int = 0) -> Groups:
    """Return random beams, three a query, the best first."""
    rng, rows = np.random.default_rng(seed), []
    pools = random_pools(n, N_TRAIN, size=k, seed=seed)
    for of in pools:
        found = [rng.permutation(of.candidates)[:2] for _ in range(3)]
        beams = tuple(
            Beam(demonstrations=ids(chosen), gains=(0.1, 0.1), probability=p)
            for chosen, p in zip(found, (0.9, 0.5, 0.2), strict=True)
        )
        rows.append(QueryBeams(query_id=of.query_id, empty=0.1, beams=beams))
    return groups_of_beams(rows, pools, lambda chosen: chosen)


class SftChain(Chain):
    """Jobs of one seed: INIT as `sft0`, then SFT epochs, each from the files of the one before."""

    def __post_init__(self) -> None:
        embeddings = self.folder / "embeddings.safetensors"
        storage.write_arrays(embeddings, embedding_arrays(N_TRAIN))
        save_groups(self.folder / "beams.safetensors", beam_groups())
        self.files = {"groups": self.folder / "beams.safetensors", "embeddings": embeddings}
        self.initialise()

    def config(self, epoch: int, settings: Sft) -> TrainSftEpochConfig:
        return TrainSftEpochConfig(
            preset="p",
            selector=self.selector,
            sft=settings,
            train_share=0.8,
            max_gradient_norm=1.0,
            seed=0,
            epoch=epoch,
        )

    def sft_epoch(self, epoch: int, settings: Sft = SFT) -> EpochMetrics:
        start = self.outputs(f"sft{epoch - 1}" if epoch > 1 else "rce0")
        return train_sft_epoch(
            **self.files, start=start["selector"], start_optimiser=start["optimiser"], **self.outputs(f"sft{epoch}"),
            config=self.config(epoch, settings),
        )  # fmt: skip
