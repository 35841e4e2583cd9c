"""From a number of the report back to the checkpoints, data, configuration and code that made it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import CheckpointError, RecordError, UnknownMemberError
from lever_pipe.base.records import RunCard
from lever_pipe.commands import trace_values
from lever_pipe.commands.trace_values import FAMILY_WIDE, Asked, Reference, Row, keeps, policies_of
from lever_pipe.runtime.rerun.artefacts import Artefact, Maker, Makers, absolute, makers_of
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
        "parameters": ("selectors",),
        "tensors": ("selectors",),
    },
    "collect_samples": {"flips": ("per_question",)},
    "build_report": {
        "report": ("evidence", "reference_lineage", "lineage", "claims", "english", "chinese", "declared")
    },
}
"""Stage -> output -> the inputs that its content depends on; of what is not listed, all. Of `collect_evidence` and
`build_report`, each row and cell tells its own."""


class TracedJob(NamedTuple):
    """An artefact on the way from a value to its raw data.

    Attributes:
        outputs: those of its files that the way leads through.
        inputs: those of its inputs that these depend on: name -> path.
        makers: name of an input -> place of the step that made it; none for what no rule makes.
        states: name of a file -> whether it still has the content of that time.
    """

    artefact: Artefact
    outputs: tuple[str, ...]
    inputs: dict[str, Path]
    makers: dict[str, int]
    states: dict[str, str]

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
    way, sources, notes = _Way(makers, digests), tuple[FoundRow, ...](), []
    if asked.references:
        sources = tuple(way.follow_evidence(maker, asked.references))
        untold = [each.row.key for of in asked.references for each in of.measured if not each.row.source]
        notes = [f"{key} names nothing that it is made of: all of the evidence is listed." for key in untold]
        if untold:
            way.follow(maker, frozenset())
    elif asked.column and not asked.table:
        sources = (_found(asked.file, (asked.row + 1,), asked.column == FAMILY_WIDE),)
        way.follow(maker, sources[0].names)
        notes = [] if sources[0].names else ["The row names no policy: all that its file was made from is listed."]
    else:
        way.follow(maker, frozenset())
        what = "The cell prints no row of the evidence" if asked.column else "A whole file"
        notes = [f"{what}: all that it was made from is listed."]
    return Traced(asked, sources, tuple(notes), way.steps(maker.artefact))


def maker_of(path: Path, makers: Makers) -> Maker | None:
    """Return who made a file, or the folder that it lies in."""
    return next((makers[key] for key in map(absolute, (path, *path.parents)) if key in makers), None)


def _found(path: Path, lines: tuple[int, ...], is_family_wide: bool) -> FoundRow:
    """Return lines of a long-format file with whom they are about."""
    rows = trace_values.read_csv(path)
    cells = rows[lines[0] - 2]
    family = cells.get("family") or cells.get("role")
    about = [row for row in rows if (row.get("family") or row.get("role")) == family] if is_family_wide else [cells]
    return FoundRow(path, lines, cells, frozenset(name for row in about for name in trace_values.names_of(row)))


class _Way:
    """Collects the artefacts behind a value: which outputs of each, and which inputs these depend on."""

    def __init__(self, makers: Makers, digests: Digests) -> None:
        self._makers = makers
        self._digests = digests
        self._outputs: dict[str, set[str]] = {}
        self._inputs: dict[str, dict[str, Path]] = {}
        self._artefacts: dict[str, Artefact] = {}
        self._followed: set[tuple[str, str, frozenset[str]]] = set()

    def follow_evidence(self, maker: Maker, references: Sequence[Reference]) -> Iterator[FoundRow]:
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
        measured = (each.row for reference in references for each in reference.measured if each.row.source)
        for source, names in dict.fromkeys((row.source, policies_of(row)) for row in measured):
            name, _, numbers = source.rpartition(":") if SOURCE.fullmatch(source) else (source, "", "")
            lines = tuple(map(int, numbers.split("+"))) if numbers else ()
            for path in self._add(maker, _inputs_at(maker, name)):
                if lines and path not in rows:
                    rows[path] = trace_values.read_csv(path) if path.is_file() else []
                cells = rows[path][lines[0] - 2] if lines and lines[0] - 2 < len(rows[path]) else {}
                yield FoundRow(path, lines, cells, names)
                before = maker_of(path, self._makers)
                if before is not None:
                    self.follow(before, names)

    def follow(self, maker: Maker, names: frozenset[str]) -> None:
        """Add an output of an artefact and all behind it; of lists these policies' files, all if none is named."""
        artefact, made = maker.artefact, maker.made
        key = (str(artefact.card), maker.output, names)
        if key in self._followed:
            return
        self._followed.add(key)
        counting = set(NEEDS.get(made.stage, {}).get(maker.output, ()))
        inputs: list[str] = []
        for name, path in artefact.paths.items():
            base, is_member, _ = name.partition("[")
            if name not in made.inputs or (counting and base not in counting):
                continue
            if not (is_member and names) or keeps(str(path), names):
                inputs.append(name)
        for path in self._add(maker, inputs):
            before = maker_of(path, self._makers)
            if before is not None:
                self.follow(before, names)

    def _add(self, maker: Maker, names: Iterable[str]) -> list[Path]:
        """Add an output of an artefact and these of its inputs; return the paths of the latter."""
        artefact, card = maker.artefact, str(maker.artefact.card)
        self._artefacts[card] = artefact
        self._outputs.setdefault(card, set()).add(maker.output)
        added = {name: artefact.paths[name] for name in names}
        self._inputs.setdefault(card, {}).update(added)
        return list(added.values())

    def steps(self, first: Artefact) -> tuple[TracedJob, ...]:
        """Return what was collected, from the first artefact on, each before all that it was made from."""
        order = self._order(str(first.card))
        places = {card: i for i, card in enumerate(order)}
        return tuple(self._step(card, places) for card in order)

    def _order(self, first: str) -> list[str]:
        behind: list[str] = []
        seen: set[str] = set()

        def visit(card: str) -> None:
            seen.add(card)
            for path in self._inputs[card].values():
                maker = maker_of(path, self._makers)
                if maker is not None and str(maker.artefact.card) not in seen | {card}:
                    visit(str(maker.artefact.card))
            behind.append(card)

        visit(first)
        return behind[::-1]

    def _step(self, card: str, places: Mapping[str, int]) -> TracedJob:
        artefact, inputs, outputs = self._artefacts[card], self._inputs[card], sorted(self._outputs[card] - {"card"})
        found = {name: maker_of(path, self._makers) for name, path in inputs.items()}
        makers = {name: places[str(each.artefact.card)] for name, each in found.items() if each is not None}
        states = {name: _output_state(artefact, name) for name in outputs}
        made = artefact.made
        assert made is not None  # only such are followed
        states |= {name: self._input_state(path, made.inputs[name]) for name, path in inputs.items()}
        return TracedJob(artefact, tuple(outputs), dict(inputs), makers, states)

    def _input_state(self, path: Path, digest: str) -> str:
        try:
            return AS_READ if self._digests.of(path) == digest else OTHER
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
