"""Modes of answering, timed in turns over the same requests; all must give the same answers."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.modes import MODES, Mode, Outcome, Work
from benchmarks.subjects import Subject
from benchmarks.workloads import Workload
from lever_pipe.lvlms.protocol import LvlmRequest

TOLERANCE = 1e-4  # nats; fp32 sums in another order differ by about 1e-5
N_WARM_UP = 2  # requests that trigger the lazy imports of torch and transformers


class DifferentAnswersError(Exception):
    """Two modes give different answers."""


@dataclass(frozen=True)
class Seconds:
    """One run of one mode."""

    cpu: float
    wall: float


@dataclass(frozen=True)
class Measured:
    """One mode over all rounds.

    Attributes:
        seconds: of each round.
        work: the same in every round.
        difference: the largest difference of a log-probability from the first mode's, in nats.
    """

    seconds: Sequence[Seconds]
    work: Work
    difference: float

    @property
    def cpu(self) -> list[float]:
        """CPU seconds of each round."""
        return [one.cpu for one in self.seconds]

    @property
    def wall(self) -> list[float]:
        """Wall seconds of each round."""
        return [one.wall for one in self.seconds]


@dataclass(frozen=True)
class Comparison:
    """All modes on one workload of one model, by name; the first one has the reference answers."""

    subject: Subject
    workload: Workload
    measured: dict[str, Measured]

    def ratio(self, mode: str, over: str) -> float | None:
        """Return the ratio of another mode's median CPU seconds to this mode's; None if the other is absent."""
        if over not in self.measured:
            return None
        return median(self.measured[over].cpu) / median(self.measured[mode].cpu)


def compare(subject: Subject, workload: Workload, *, rounds: int, modes: Sequence[Mode] = MODES) -> Comparison:
    """Run every mode once a round, starting with a different one each time, so that a slow moment affects all of them.

    Args:
        subject: the model.
        workload: its requests.
        rounds: number of runs of each mode.
        modes: the compared modes.

    Raises:
        DifferentAnswersError: the answers of a mode differ from the first mode's.
    """
    requests = workload.requests
    for mode in modes:
        mode.make(subject).run(requests[:N_WARM_UP])
    seconds: dict[str, list[Seconds]] = {mode.name: [] for mode in modes}
    differences = dict.fromkeys(seconds, 0.0)
    work: dict[str, Work] = {}
    for turn in range(rounds):
        outcomes: dict[str, list[Outcome]] = {}
        first = turn % len(modes)
        for mode in [*modes[first:], *modes[:first]]:
            time_used, outcomes[mode.name], work[mode.name] = _run(subject, mode, requests)
            seconds[mode.name].append(time_used)
        for name, found in outcomes.items():
            difference = largest_difference(name, requests, outcomes[modes[0].name], found)
            differences[name] = max(differences[name], difference)
    measured = {name: Measured(seconds[name], work[name], differences[name]) for name in seconds}
    return Comparison(subject, workload, measured)


def largest_difference(
    name: str, requests: Sequence[LvlmRequest], expected: Sequence[Outcome], found: Sequence[Outcome]
) -> float:
    """Return the largest difference of a log-probability, in nats.

    Raises:
        DifferentAnswersError: generated tokens differ, or a log-probability by more than `TOLERANCE`.
    """
    largest = 0.0
    for number, (request, one, other) in enumerate(zip(requests, expected, found, strict=True)):
        where = f"{name}, prompt {number} of {len(requests)}, which ends with {request.prompt.texts[-1][-80:]!r}"
        if one.tokens != other.tokens:
            raise DifferentAnswersError(f"{where}: expected the tokens {one.tokens}; found {other.tokens}")
        pairs = zip(
            one.token_log_probs + one.answer_log_probs, other.token_log_probs + other.answer_log_probs, strict=True
        )
        for difference in (abs(a - b) for a, b in pairs):
            # Negated, so that a NaN fails too.
            if not difference <= TOLERANCE:
                expected_one = f"expected a log-probability within {TOLERANCE:g} of the first mode's"
                raise DifferentAnswersError(f"{where}: {expected_one}; found {difference:.2g}")
            largest = max(largest, difference)
    return largest


def _run(subject: Subject, mode: Mode, requests: Sequence[LvlmRequest]) -> tuple[Seconds, list[Outcome], Work]:
    # Garbage of the preceding mode must not be collected during this one's timing.
    gc.collect()
    answerer = mode.make(subject)
    cpu, wall = time.process_time(), time.perf_counter()
    answerer.run(requests)
    time_used = Seconds(time.process_time() - cpu, time.perf_counter() - wall)
    return time_used, answerer.outcomes(), answerer.work
