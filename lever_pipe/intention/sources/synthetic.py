"""Generator of embedded tasks: a category with some of its relevant slots stated in the request and the others hidden.

The number of hidden slots follows IntentionGym's validation tasks. A request with few stated slots contains meaningless
words instead. Even a request without stated slots then has hundreds of variants, so that no request occurs twice. A
good agent must learn the relevant slots of a category and read the slots that the request already states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from lever_pipe.base.errors import DataError
from lever_pipe.base.seeding import generator
from lever_pipe.experiment.agent_tasks import SyntheticTasks
from lever_pipe.intention.lexicon import CATEGORIES, IMPORTANCES, RELEVANT, VALUES, inquiry
from lever_pipe.intention.records import MissingDetail, Task
from lever_pipe.intention.sources.protocol import RawFiles, Splits

N_HIDDEN = (2, 3, 4, 5)
N_HIDDEN_CHANCES = (0.075, 0.375, 0.35, 0.2)
N_VALUES = 3
"""Number of values in a request: one per stated slot, and the others before the category, without meaning. Irrelevant
slots instead of these values would make the world too hard for a small policy."""
_N_OPTIONS = 3
_TRIES = 1000
"""Number of attempts to draw a new request before the embedded world counts as exhausted."""


def read(synthetic: SyntheticTasks | None, files: RawFiles = RawFiles()) -> Splits:
    """Return tasks that depend only on the seed and the split sizes, all with different requests.

    Each task has its own random stream, and test and val are generated before train. A larger split therefore starts
    with the tasks of a smaller one, and the number of training tasks does not affect the other splits.

    Raises:
        DataError: more tasks than the embedded world has requests.
    """
    del files
    settings = synthetic or SyntheticTasks()
    requests: set[str] = set()
    test = _tasks(settings.seed, "test", settings.n_test, requests)
    val = _tasks(settings.seed, "val", settings.n_val, requests)
    return Splits(_tasks(settings.seed, "train", settings.n_train, requests), val, test)


def _tasks(seed: int, split: str, n: int, requests: set[str]) -> tuple[Task, ...]:
    """Return tasks with new requests, and add these to `requests`."""
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
    # Sorted: details stay in the order of importance.
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
    """Return a request that states these slots in random order."""
    plain = [_value(rng) for _ in range(N_VALUES - len(stated))]
    facts = [f"{stated[int(k)]} {_value(rng)}" for k in rng.permutation(len(stated))]
    return " , ".join([" ".join(["task :", *plain, category]), *facts]) + " ."


def _value(rng: np.random.Generator) -> str:
    return VALUES[int(rng.integers(len(VALUES)))]


def _detail(slot: str, importance: Literal[1, 2, 3], rng: np.random.Generator) -> MissingDetail:
    indices = rng.choice(len(VALUES), size=_N_OPTIONS, replace=False)
    options = tuple(VALUES[int(k)] for k in indices)
    return MissingDetail(description=slot, importance=importance, inquiry=inquiry(slot), options=options)
