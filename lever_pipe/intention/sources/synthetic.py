"""The embedded tasks: a category, some of its relevant slots stated in the request, the others hidden.

How many are hidden follows IntentionGym's validation tasks. A good agent must know which slots matter for a category,
and read which of them the request already states.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lever_pipe.base.seeding import generator
from lever_pipe.experiment.agent_config import SyntheticTasks
from lever_pipe.intention.lexicon import CATEGORIES, IMPORTANCES, RELEVANT, VALUES, inquiry
from lever_pipe.intention.records import MissingDetail, Task
from lever_pipe.intention.sources.protocol import RawFiles, Splits

N_HIDDEN = (2, 3, 4, 5)
N_HIDDEN_CHANCES = (0.075, 0.375, 0.35, 0.2)
_N_OPTIONS = 3


def read(synthetic: SyntheticTasks | None, files: RawFiles = RawFiles()) -> Splits:
    """Return tasks made from the seed alone; each has a stream of its own, so a larger split begins with the smaller.

    Raises:
        ValueError: no settings are given.
    """
    del files
    if synthetic is None:
        raise ValueError("source synthetic needs the settings of its generator")
    return Splits(
        train=_tasks(synthetic.seed, "train", synthetic.n_train),
        val=_tasks(synthetic.seed, "val", synthetic.n_val),
        test=_tasks(synthetic.seed, "test", synthetic.n_test),
    )


def _tasks(seed: int, split: Literal["train", "val", "test"], n: int) -> tuple[Task, ...]:
    return tuple(_task(f"{split}-{i:05d}", generator(seed, "intention tasks", split, i)) for i in range(n))


def _task(name: str, rng: np.random.Generator) -> Task:
    category = CATEGORIES[int(rng.integers(len(CATEGORIES)))]
    slots = RELEVANT[category]
    n_hidden = int(rng.choice(N_HIDDEN, p=N_HIDDEN_CHANCES))
    hidden = sorted(int(k) for k in rng.choice(len(slots), size=n_hidden, replace=False))
    stated = [slot for k, slot in enumerate(slots) if k not in hidden]
    facts = [f"{stated[int(k)]} {VALUES[int(rng.integers(len(VALUES)))]}" for k in rng.permutation(len(stated))]
    return Task(
        id=name,
        category=category,
        task=" , ".join([f"task : {category}", *facts]) + " .",
        missing_details=tuple(_detail(slots[k], IMPORTANCES[k], rng) for k in hidden),
    )


def _detail(slot: str, importance: Literal[1, 2, 3], rng: np.random.Generator) -> MissingDetail:
    chosen = rng.choice(len(VALUES), size=_N_OPTIONS, replace=False)
    options = tuple(VALUES[int(k)] for k in chosen)
    return MissingDetail(description=slot, importance=importance, inquiry=inquiry(slot), options=options)
