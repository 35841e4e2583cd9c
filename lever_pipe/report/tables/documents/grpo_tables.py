"""Parts that documents 001 and 002 share: training metrics, accuracies and differences of GRPO epochs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lever_pipe.report.tables.comparisons.estimates import UNADJUSTED, comparing_test, method_of
from lever_pipe.report.tables.evidence import Paired
from lever_pipe.report.tables.lineage import published_key
from lever_pipe.report.tables.published import Key, Lineage, Published
from lever_pipe.report.tables.results import Results
from lever_pipe.report.tables.text import mean, number, sentences

REFERENCE_BETA = 0.15
ACCURACY_DIGITS = 2
INTERVALS = "In brackets: 95 % interval; a difference is paired over the same questions."
HOLM = "Holm p: adjusted for all comparisons of this epoch, shots included."
ONE_SEED = "No inference about training variance: one seed."


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """A training metric as a column: heading, our name, published name, decimals."""

    heading: str
    metric: str
    published: str
    digits: int


KL = MetricColumn("KL", "kl", "kl", 5)
TRAIN_LOSS = MetricColumn("Train Loss", "loss", "grpo_loss", 5)
VAL_LOSS = MetricColumn("Val Loss", "val_loss", "val_loss", 5)
PPO_LOSS = MetricColumn("PPO Loss", "ppo_loss", "ppo_loss", 5)
ADV_STD = MetricColumn("Adv Std", "std_advantage", "adv_std", 4)
ADV_MAX = MetricColumn("Adv Max", "max_advantage", "adv_max", 4)


@dataclass(frozen=True, slots=True)
class Sources:
    """Our results beside the published files that one document quotes, in order of precedence."""

    results: Results
    published: Published
    files: tuple[str, ...]

    def our_metrics(self, columns: Sequence[MetricColumn], beta: float, epoch: int) -> dict[str, str]:
        """Return our training metrics of one epoch by heading."""
        return {c.heading: number(self.results.metric(beta, epoch, c.metric), c.digits) for c in columns}

    def published_metrics(
        self, columns: Sequence[MetricColumn], beta: float, epoch: int, lineage: Lineage
    ) -> dict[str, str]:
        """Return the published training metrics of one epoch by heading, and note their lineage."""
        cells = {}
        for column in columns:
            key = Key("grpo_frozen", beta, str(epoch), column.published)
            found = self.published.find(key, self.files)
            lineage.add(key, found)
            cells[column.heading] = number(found.value if found else None, column.digits)
        return cells

    def groups(self, beta: float, epoch: int) -> tuple[str, str]:
        """Return the names of ours and of the published policy behind a row of one beta and epoch."""
        return self.results.group(beta, epoch), published_key(beta, epoch)

    def our_cells(self, beta: float, epoch: int, samples: int) -> dict[str, str]:
        """Return our accuracies with their intervals as cells under `Shot k`."""
        found = {k: self.results.interval(beta, epoch, samples, k) for k in self.results.shots}
        return {f"Shot {k}": interval.text() for k, interval in found.items() if interval}

    def our_accuracies(self, beta: float, epoch: int, samples: int) -> dict[int, float | None]:
        """Return our accuracies in percent by shots."""
        shots = self.results.shots
        return {k: self.results.accuracy(beta, epoch, samples, k) for k in shots}

    def published_accuracies(self, beta: float, epoch: int, samples: int, lineage: Lineage) -> dict[int, float | None]:
        """Return the published accuracies in percent by shots, and note their lineage."""
        values: dict[int, float | None] = {}
        for shots in self.results.shots:
            key = Key("grpo_frozen", beta, str(epoch), "vqa_acc_pct", samples, shots)
            found = self.published.find(key, self.files)
            lineage.add(key, found)
            values[shots] = found.value if found else None
        return values


def detectable(pairs: Iterable[Paired | None]) -> str:
    """Return the sentence about the smallest difference that the comparisons of a table could have found."""
    known = [pair.detectable for pair in pairs if pair is not None]
    if not known:
        return ""
    least = number(max(known), 1)
    return f"Smallest difference that such a comparison detects at 80 % power: {least} points, without adjustment."


def method(results: Results) -> str:
    """Return how the intervals and p values of a table's differences were made; nothing without GRPO."""
    return sentences(method_of([comparing_test(results.runs)]), UNADJUSTED) if results.runs else ""


def training_variance(results: Results) -> str:
    """Return the sentence about one seed, or nothing where several stand behind a row."""
    return ONE_SEED if results.runs == [1] else ""


def accuracy_cells(by_shots: dict[int, float | None]) -> dict[str, str]:
    """Return accuracies as cells under `Shot k`."""
    return {f"Shot {k}": number(value, ACCURACY_DIGITS) for k, value in by_shots.items()}


def average(by_shots: dict[int, float | None]) -> float | None:
    """Return the mean over shots, or None where one is absent."""
    return mean(by_shots.values())


def near_200(results: Results) -> tuple[int, str]:
    """Return the sample count nearest to the documents' 200, and a sentence where it is another."""
    counts = results.samples or [200]
    if 200 in counts:
        return 200, ""
    chosen = min(counts, key=lambda n: (abs(n - 200), n))
    return chosen, f"The document has 200 samples; this configuration evaluates {chosen}."
