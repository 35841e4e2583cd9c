"""The embedded tasks: a category, some of its relevant slots stated in the request, the others hidden.

How many are hidden follows IntentionGym's validation tasks. A request that states few slots has words beside the point
instead, so that even one that states none can be put in hundreds of ways and no request need come twice. A good agent
must know which slots matter for a category, and read which of them the request already states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from lever_pipe.base.errors import DataError
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.agent_config import SyntheticTasks
from lever_pipe.intention.lexicon import CATEGORIES, IMPORTANCES, RELEVANT, VALUES, inquiry
from lever_pipe.intention.records import MissingDetail, Task
from lever_pipe.intention.sources.protocol import RawFiles, Splits

N_HIDDEN = (2, 3, 4, 5)
N_HIDDEN_CHANCES = (0.075, 0.375, 0.35, 0.2)
N_VALUES = 3
"""Of a request: one a stated slot, and the others before the category, where they say nothing. Irrelevant slots in
their place would make the world too hard for a small policy."""
_N_OPTIONS = 3
_TRIES = 1000
"""Wordings drawn for a request before the world counts as exhausted."""


def read(synthetic: SyntheticTasks | None, files: RawFiles = RawFiles()) -> Splits:
    """Return tasks made from the seed alone, no two with the same request.

    Each task has a stream of its own, and the held-out ones are made first, so a larger split begins with the smaller
    one and more training tasks leave the others as they are.
    """
    del files
    settings = synthetic or SyntheticTasks()
    requests: set[str] = set()
    test = _tasks(settings.seed, "test", settings.n_test, requests)
    val = _tasks(settings.seed, "val", settings.n_val, requests)
    return Splits(_tasks(settings.seed, "train", settings.n_train, requests), val, test)


def _tasks(seed: int, split: str, n: int, requests: set[str]) -> tuple[Task, ...]:
    """Return tasks whose requests are not taken, and take them."""
    tasks = []
    for i in range(n):
        name = f"{split}-{i:05d}"
        tasks.append(_task(name, generator(seed, "intention tasks", split, i), requests))
        requests.add(tasks[-1].task)
    return tuple(tasks)


def _task(name: str, rng: np.random.Generator, requests: set[str]) -> Task:
    category = CATEGORIES[int(rng.integers(len(CATEGORIES)))]
    slots = RELEVANT[category]
    n_hidden = int(rng.choice(N_HIDDEN, p=N_HIDDEN_CHANCES))
    hidden = sorted(int(k) for k in rng.choice(len(slots), size=n_hidden, replace=False))
    stated = [slot for k, slot in enumerate(slots) if k not in hidden]
    for _ in range(_TRIES):
        request = _request(category, stated, rng)
        if request not in requests:
            break
    else:
        raise DataError(
            "intention.tasks.synthetic: expected no more tasks than the embedded world has requests",
            found=f"none left for {name} in {_TRIES} draws with {n_hidden} hidden details of {category!r}",
            do="Lower n_train, n_val or n_test.",
        )
    details = tuple(_detail(slots[k], IMPORTANCES[k], rng) for k in hidden)
    return Task(id=name, category=category, task=request, missing_details=details)


def _request(category: str, stated: Sequence[str], rng: np.random.Generator) -> str:
    """Return a request that states these slots in any order."""
    plain = [_value(rng) for _ in range(N_VALUES - len(stated))]
    facts = [f"{stated[int(k)]} {_value(rng)}" for k in rng.permutation(len(stated))]
    return " , ".join([" ".join(["task :", *plain, category]), *facts]) + " ."


def _value(rng: np.random.Generator) -> str:
    return VALUES[int(rng.integers(len(VALUES)))]


def _detail(slot: str, importance: Literal[1, 2, 3], rng: np.random.Generator) -> MissingDetail:
    locations = rng.choice(len(VALUES), size=_N_OPTIONS, replace=False)
    options = tuple(VALUES[int(k)] for k in locations)
    return MissingDetail(description=slot, importance=importance, inquiry=inquiry(slot), options=options)
