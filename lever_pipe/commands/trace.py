"""From a number of the report back to the checkpoints, data, configuration and code that made it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import CheckpointError, RecordError, UnknownMemberError
from lever_pipe.base.records import RunCard
from lever_pipe.commands import trace_values
from lever_pipe.commands.trace_values import FAMILY_WIDE, Asked, Row, keeps, policies_of
from lever_pipe.report.evidence import EvidenceRow, adjusted_in
from lever_pipe.runtime.rerun.artefacts import CARD, Artefact, Maker, Makers, absolute, makers_of
from lever_pipe.runtime.rerun.why_names import flat, label

AS_MADE, AS_READ = "as made", "as read"
MISSING, DAMAGED, REPLACED, OTHER = "missing", "damaged", "replaced", "other content"
MODEL = "model_identity"
EVIDENCE = "evidence"
"""Name of the file of evidence where it is made and read."""
SOURCE = re.compile(r".+:\d+(\+\d+)*")
NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "collect_results": {
        "scores": ("cells",),
        "arms": ("cells",),
        "training": ("metrics",),
        "arms_training": ("metrics",),
        "steps_csv": ("steps",),
        "rl_data": ("rl_summary",),
        "ties_csv": ("ties",),
        "costs": ("metrics", "groups"),
    },
    "compare_policies": dict.fromkeys(("intervals", "comparisons", "breakdown"), ("per_question", "eval_examples")),
    "measure_agreement": {
        "agreement": ("selections", "eval_examples"),
        "prompts": ("selections", "eval_examples"),
        "parameters": ("selectors", "eval_pools", "train_embeddings", "eval_embeddings"),
        "tensors": ("selectors",),
    },
    "collect_samples": {"flips": ("per_question",)},
    "build_report": {
        "report": ("evidence", "reference_lineage", "lineage", "claims", "english", "chinese", "declared")
    },
}
"""Stage -> output -> the inputs that its content depends on; of what is not listed, all. Of `collect_evidence` and
`build_report`, each row and cell tells its own."""


@dataclass(slots=True)
class TracedJob:
    """An artefact on the way from a value to its raw data.

    Attributes:
        outputs: those of its files that the way leads through.
        inputs: those of its inputs that these depend on: name -> path.
        makers: name of an input -> place of the step that made it; none for what no rule makes.
        states: name of a file -> whether it still has the content of that time.
    """

    artefact: Artefact
    outputs: list[str] = field(default_factory=list)
    inputs: dict[str, Path] = field(default_factory=dict)
    makers: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    @property
    def made(self) -> RunCard:
        """Return the run card."""
        assert self.artefact.made is not None  # steps are made of those that can be read
        return self.artefact.made

    @property
    def name(self) -> str:
        """Return what the artefact is called."""
        return label(self.made.stage, str(self.artefact.card))

    @property
    def models(self) -> dict[str, str]:
        """Return the digests of the model folders that the configuration names, by its key."""
        return {k: str(v) for k, v in flat(self.made.config).items() if k.endswith(MODEL)}


class FoundRow(NamedTuple):
    """Lines of a file that hold a measured value; none: all of the file.

    Attributes:
        lines: as the evidence counts them, the head being line 1.
        cells: of the first of these lines.
        names: the policies that it is about; none: all.
    """

    path: Path
    lines: tuple[int, ...]
    cells: Mapping[str, str]
    names: frozenset[str]


class Traced(NamedTuple):
    """A way back; `steps` begin with what holds the value, makers come after what they made.

    Attributes:
        sources: where the values stand that it is made of.
        notes: what could not be narrowed, and why.
    """

    asked: Asked
    sources: tuple[FoundRow, ...]
    notes: tuple[str, ...]
    steps: tuple[TracedJob, ...]

    @property
    def names(self) -> list[str]:
        """Return the policies that it is about; none: all."""
        return sorted({name for source in self.sources for name in source.names})


def trace(asked: Asked, artefacts: Sequence[Artefact], digests: Digests) -> Traced:
    """Return the way back from what is asked for.

    Args:
        asked: a figure, file or cell.
        artefacts: all below the results, judged.
        digests: contents of files.

    Raises:
        UnknownMemberError: no run card says who made the file.
        RecordError: the evidence names a file that was not read for it.
    """
    makers = makers_of(artefacts)
    maker = maker_of(asked.file, makers)
    if maker is None:
        raise UnknownMemberError(
            f"trace: expected a run card that states {asked.file}",
            found=f"{len(artefacts)} cards below {asked.results}, none of which does",
            do="Run the workflow: cards of earlier versions do not say what they made.",
        )
    way, sources = _Way(makers), tuple[FoundRow, ...]()
    measured = [each.row for of in asked.references for each in of.measured]
    untold = [row.key for row in measured if not row.source]
    notes = [f"{key} names nothing that it is made of: all of the evidence is listed." for key in untold]
    if asked.references:
        sources = tuple(way.follow_evidence(maker, [row for row in measured if row.source]))
        if notes:
            way.follow(maker, frozenset())
    elif asked.column and not asked.table:
        sources = (_found(asked.file, (asked.row + 1,), asked.column == FAMILY_WIDE),)
        way.follow(maker, sources[0].names)
        notes += [] if sources[0].names else ["The row names no policy: all that its file was made from is listed."]
    else:
        way.follow(maker, frozenset())
        what = "The cell prints no row of the evidence" if asked.column else "A whole file"
        notes.append(f"{what}: all that it was made from is listed.")
    return Traced(asked, sources, tuple(notes), way.steps(digests))


def maker_of(path: Path, makers: Makers) -> Maker | None:
    """Return who made a file, or the folder that it lies in."""
    whole = Path(absolute(path))  # without `..`, which would lead out of a folder that somebody made
    return next((makers[str(each)] for each in (whole, *whole.parents) if str(each) in makers), None)


def _found(path: Path, lines: tuple[int, ...], is_family_wide: bool) -> FoundRow:
    """Return lines of a long-format file with whom they are about."""
    rows = trace_values.read_csv(path)
    cells = rows[lines[0] - 2]
    about = [row for row in rows if _family(row) == _family(cells)] if is_family_wide else [cells]
    return FoundRow(path, lines, cells, frozenset(name for row in about for name in trace_values.names_of(row)))


def _family(row: Mapping[str, str]) -> str:
    return adjusted_in(row.get("family") or row.get("role") or "")


class _Way:
    """Collects the artefacts behind a value: which outputs of each, and which inputs these depend on."""

    def __init__(self, makers: Makers) -> None:
        self._makers = makers
        self._jobs: dict[str, TracedJob] = {}
        self._followed: set[tuple[str, str, frozenset[str]]] = set()

    def follow_evidence(self, maker: Maker, measured: Sequence[EvidenceRow]) -> Iterator[FoundRow]:
        """Add the evidence behind what holds these rows, and all behind each; yield where they were measured.

        Raises:
            RecordError: a row is of a file that was not read for the evidence.
        """
        if EVIDENCE not in maker.made.outputs:
            before = maker_of(self._add(maker, [EVIDENCE])[0], self._makers)
            if before is None:
                return
            maker = before
        rows: dict[Path, list[Row]] = {}
        for source, names in dict.fromkeys((row.source, policies_of(row)) for row in measured):
            name, _, numbers = source.rpartition(":") if SOURCE.fullmatch(source) else (source, "", "")
            lines = tuple(map(int, numbers.split("+"))) if numbers else ()
            for path in self._add(maker, _inputs_at(maker, name)):
                if lines and path not in rows:
                    rows[path] = trace_values.read_csv(path) if path.is_file() else []
                cells = rows[path][lines[0] - 2] if lines and lines[0] - 2 < len(rows[path]) else {}
                yield FoundRow(path, lines, cells, names)
                self._follow_file(path, names)

    def follow(self, maker: Maker, names: frozenset[str]) -> None:
        """Add an output of an artefact and all behind it; of lists these policies' files, all if none is named."""
        made, key = maker.made, (str(maker.artefact.card), maker.output, names)
        if key in self._followed:
            return
        self._followed.add(key)
        counting = NEEDS.get(made.stage, {}).get(maker.output, ())
        inputs: list[str] = []
        for name, path in maker.artefact.paths.items():
            base, is_member, _ = name.partition("[")
            is_other = name not in made.inputs or (counting and base not in counting)
            if not is_other and (not (is_member and names) or keeps(str(path), names)):
                inputs.append(name)
        for path in self._add(maker, inputs):
            self._follow_file(path, names)

    def _follow_file(self, path: Path, names: frozenset[str]) -> None:
        maker = maker_of(path, self._makers)
        if maker is not None:
            self.follow(maker, names)

    def _add(self, maker: Maker, names: Iterable[str]) -> list[Path]:
        """Add an output of an artefact and these of its inputs; return the paths of the latter."""
        job = self._jobs.setdefault(str(maker.artefact.card), TracedJob(maker.artefact))
        if maker.output not in (CARD, *job.outputs):
            job.outputs = sorted([*job.outputs, maker.output])
        added = {name: maker.artefact.paths[name] for name in names}
        job.inputs.update(added)
        return list(added.values())

    def steps(self, digests: Digests) -> tuple[TracedJob, ...]:
        """Return what was collected, each before all that it was made from."""
        behind = {card: self._behind(job) for card, job in self._jobs.items()}
        order = list(TopologicalSorter({card: of.values() for card, of in behind.items()}).static_order())[::-1]
        for card, job in self._jobs.items():
            job.makers = {name: order.index(maker) for name, maker in behind[card].items()}
            job.states = {name: _output_state(job.artefact, name) for name in job.outputs}
            job.states |= {
                name: _input_state(path, job.made.inputs[name], digests) for name, path in job.inputs.items()
            }
        return tuple(self._jobs[card] for card in order)

    def _behind(self, job: TracedJob) -> dict[str, str]:
        """Return the run cards of what made a step's inputs, by the name of the input."""
        found = {name: maker_of(path, self._makers) for name, path in job.inputs.items()}
        return {name: str(maker.artefact.card) for name, maker in found.items() if maker is not None}


def _input_state(path: Path, digest: str, digests: Digests) -> str:
    try:
        return AS_READ if digests.of(path) == digest else OTHER
    except FileNotFoundError:
        return MISSING
    except (CheckpointError, OSError):
        return DAMAGED


def _inputs_at(maker: Maker, path: str) -> list[str]:
    """Return which inputs lay at a path, which may hold `*`, when they were read.

    Raises:
        RecordError: none did.
    """
    wanted, then = absolute(path), maker.made.paths
    found = [
        name for name in maker.made.inputs if absolute(then[name]) == wanted or fnmatch(absolute(then[name]), wanted)
    ]
    if not found:
        what = f"{maker.artefact.card}: expected the input {path}, which the evidence names"
        raise RecordError(what, found="none", do="Run the workflow again.")
    return found


def _output_state(artefact: Artefact, name: str) -> str:
    if name in artefact.damaged:
        return DAMAGED
    if name in artefact.replaced:
        return REPLACED
    return AS_MADE if artefact.paths[name].exists() else MISSING
