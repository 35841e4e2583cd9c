"""A small part of the embedded world with its own LVLM, for jobs that ask it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from builders import prepared, shipped, world_files

from lever_pipe.experiment.data import WorldData
from lever_pipe.experiment.identities import config_of
from lever_pipe.experiment.lvlm import LvlmConfig
from lever_pipe.experiment.on_policy import TrainOnPolicyEpochConfig
from lever_pipe.experiment.studies import parse_experiment

LVLM = Path(__file__).parents[2] / "resources" / "world" / "lvlm"
N_TRAIN = 64  # the world's least
CODE = "of the test"


@cache
def world() -> Path:
    """Return the folder of the one world of this test process: `train.jsonl` and the images of its questions."""
    folder = Path(tempfile.mkdtemp(prefix="lvlm-world-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    files = world_files(folder, WorldData(n_train=N_TRAIN, n_eval=8))
    prepared(folder, files, parse_experiment(shipped()).data, n_eval=8)
    return folder


@cache
def lvlm_config() -> LvlmConfig:
    """Return what the default run asks its LVLM with."""
    wildcards = {"objective": "on_policy", "preset": "world", "base": "1", "beta": "0", "seed": "0", "epoch": "1"}
    config = config_of(parse_experiment(shipped()), "train_on_policy_epoch", wildcards)
    assert isinstance(config, TrainOnPolicyEpochConfig)
    return config.lvlm
