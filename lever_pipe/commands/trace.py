"""`python -m lever_pipe trace WHAT`: from a number of the report back to the checkpoint, data, config and code.

WHAT is a file of the results, a table's cell as `TABLE:ROW:COLUMN` (rows count from 1), a key of evidence, or `e12`:
line 12 of `results/report/evidence.csv`, which the pages name at each number. A cell leads to the rows of the evidence
that it prints, to those that they are worked out from, to the lines of the files that these were measured in, and to
the runs behind these lines alone. Each artefact is shown once: its settings, code fingerprint, commit, device, seconds,
and whether its files still are what was made. The way ends at raw data and model folders, with their digests, and at
the row of `resources/reference` of a published number.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import contents, storage
from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import CheckpointError, UnknownMemberError
from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.base.records import RunCard
from lever_pipe.base.sections import did_you_mean
from lever_pipe.report.evidence import DERIVED, EvidenceRow, adjusted_in, read_evidence
from lever_pipe.runtime.rerun.artefacts import CARD, Artefact, Maker, absolute, cards_below, makers_of, read_artefact
from lever_pipe.runtime.rerun.why_names import STUDIES, flat, label

REPORT, EVIDENCE, INDEX = "report", "evidence.csv", "index.json"
AS_MADE, AS_READ = "as made", "as read"
MISSING, DAMAGED, OTHER = "missing", "damaged", "other content"
LINE = re.compile(r"e(?P<line>\d{1,9})(?::(?P<part>\w+))?")
"""A row of the evidence by its line, and a column of it."""
SOURCE = re.compile(r"(?P<path>.+):(?P<lines>\d+(\+\d+)*)")
OF_FAMILY = "p_holm"
"""Column whose value depends on every comparison of its family."""
RUNS = ("preset~", "baseline/", "arm~")
"""How the names of policies and agents begin that have files of their own."""
MODEL = "model_identity"
SHOWN, DIGITS = 6, 12


class TracedRow(NamedTuple):
    """A row of the evidence, which of its columns is meant, and the rows that this is worked out from."""

    line: int
    row: EvidenceRow
    part: str = "value"
    of: tuple[TracedRow, ...] = ()

    @property
    def measured(self) -> Iterator[EvidenceRow]:
        """Yield the rows at the ends: none of them is made of others."""
        yield from (row for each in self.of for row in each.measured) if self.of else (self.row,)


class TraceTarget(NamedTuple):
    """What is traced: a file, or a number in it with the rows of the evidence that it prints."""

    what: str
    file: Path
    is_number: bool = False
    quantities: tuple[TracedRow, ...] = ()


class Source(NamedTuple):
    """Lines of a file that hold a measured value, and the cells of the first."""

    path: Path
    lines: tuple[int, ...]
    cells: Mapping[str, str]


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
    made: RunCard
    outputs: list[str] = field(default_factory=list)
    inputs: dict[str, Path] = field(default_factory=dict)
    makers: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return what the artefact is called."""
        return label(self.made.stage, str(self.artefact.card))

    @property
    def models(self) -> dict[str, str]:
        """Return the digests of the model folders that the configuration names, by its key."""
        return {key: str(value) for key, value in flat(self.made.config).items() if key.endswith(MODEL)}


class Traced(NamedTuple):
    """A way back; `steps` begin with what holds the value, makers come after what they made.

    Attributes:
        sources: where the values stand that it is made of.
        notes: what could not be narrowed, and why.
    """

    target: TraceTarget
    sources: tuple[Source, ...]
    notes: tuple[str, ...]
    steps: tuple[TracedJob, ...]


def main(words: Sequence[str]) -> int:
    """Print the way back and return 0; raises as `traced_back`."""
    parser = argparse.ArgumentParser(
        prog="python -m lever_pipe trace", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", help="a file, TABLE:ROW:COLUMN, a key of the evidence, or e12")
    parser.add_argument("--results", type=Path, default="results", help="the results folder")
    options = parser.parse_args(words[1:])
    sys.stdout.write(text(traced_back(options.what, options.results)))
    return 0


def traced_back(what: str, results: Path) -> Traced:
    """Return the way back from a word of the command line."""
    target = target_of(what, results)
    way = _Way(map(read_artefact, cards_below(results)))
    maker = way.maker_of(target.file)
    if maker is None:
        expected, found = f"trace: expected a run card that states {target.file}", f"no such card below {results}"
        raise UnknownMemberError(expected, found=found, do="Run the workflow, or name its results: --results FOLDER.")
    rows = [row for quantity in target.quantities for row in quantity.measured]
    notes = [f"{row.key} names nothing that it is made of: all is listed." for row in rows if not row.source]
    if not rows:
        notes = [f"{'A cell without evidence' if target.is_number else 'A whole file'}: all is listed."]
    sources = tuple(way.follow_evidence(maker, [row for row in rows if row.source])) if rows else ()
    if notes:
        way.follow(maker, frozenset())
    return Traced(target, sources, tuple(notes), way.steps(contents.remembered()))


class EvidenceFile:
    """A file of evidence, its rows by line and the lines by key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = dict(enumerate(read_evidence(path), start=2))
        self.lines = {row.key: line for line, row in self.rows.items()}

    def find(self, name: str) -> TracedRow:
        """Return the row of `e12`, `e12:p_holm` or a key."""
        match = LINE.fullmatch(name)
        line = int(match["line"]) if match else self.lines.get(name, 0)
        part = (match and match["part"]) or "value"
        if line not in self.rows or part not in EvidenceRow._fields:
            do = did_you_mean(name, () if match else self.lines, f"Its lines are e2 to e{len(self.rows) + 1}.")
            raise UnknownMemberError(f"trace: expected a row of {self.path}", found=f"'{name}'", do=do)
        return self.quantity(line, part)

    def quantity(self, line: int, part: str = "value") -> TracedRow:
        """Return a row with all that its column is worked out from: an adjusted p comes from its whole family."""
        row = self.rows[line]
        if part == OF_FAMILY:
            family = (row.study, adjusted_in(row.family))
            alike = [(i, of) for i, of in self.rows.items() if (of.study, adjusted_in(of.family)) == family]
            return TracedRow(line, row, part, tuple(TracedRow(i, of, "p") for i, of in alike if of.p == of.p))
        return TracedRow(line, row, part, tuple(self.quantity(self.lines[key]) for key in row.operands))


def target_of(what: str, results: Path) -> TraceTarget:
    """Return what a word of the command line means."""
    report = results / REPORT if (results / REPORT / EVIDENCE).is_file() else results
    if LINE.fullmatch(what) or what.partition(":")[0] in (*STUDIES, DERIVED):
        evidence = EvidenceFile(report / EVIDENCE)
        return TraceTarget(what, evidence.path, is_number=True, quantities=(evidence.find(what),))
    try:
        if what and Path(what).exists():
            return TraceTarget(what, Path(what))
    except (OSError, ValueError):  # too long for a path, or no text of one
        pass
    name, row, column = (*what.split(":", 2), "", "")[:3]
    tables = _tables(report / INDEX)
    if name not in tables:
        do = did_you_mean(name, tables, "Name a file below the results, or TABLE:ROW:COLUMN with a table's id.")
        raise UnknownMemberError(f"trace: expected a file, or a cell of a table of {results}", found=f"'{what}'", do=do)
    columns, lines = tables[name]
    columns_by_word = {str(i): i - 1 for i in range(1, len(columns) + 1)} | {head: i for i, head in enumerate(columns)}
    if row not in map(str, range(1, len(lines) + 1)):
        do = f"Name a row by its number: {name}:1:COLUMN."
        raise UnknownMemberError(f"trace: expected one row of 1 to {len(lines)}", found=f"'{row}'", do=do)
    if column not in columns_by_word:
        do = did_you_mean(column, columns, f"One of: {', '.join(columns)}.")
        raise UnknownMemberError("trace: expected a column", found=f"'{column}'", do=do)
    names = lines[int(row) - 1][columns_by_word[column]]
    quantities = tuple(map(EvidenceFile(report / EVIDENCE).find, names)) if names else ()
    return TraceTarget(what, report / "tables" / f"{name}.csv", is_number=True, quantities=quantities)


def _tables(index: Path) -> dict[str, tuple[list[str], list[list[list[str]]]]]:
    """Return the columns and cells of each table of the report; a cell is the rows of the evidence that it prints."""
    tables = storage.read_json(index)["tables"] if index.is_file() else {}
    return {name: (of["columns"], of["cells"]) for name, of in tables.items()}


def policies_of(row: EvidenceRow) -> frozenset[str]:
    """Return the policies or agents that a row of the evidence is about; none if it is about anything else, too."""
    names = [name for name in (row.subject, row.against) if name]
    return frozenset(names if all(name.startswith(RUNS) for name in names) else ())


def keeps(path: str, names: frozenset[str]) -> bool:
    """Return whether a file of a list belongs to these policies; what belongs to no policy is kept."""
    run = PolicyName.in_path(path)
    if run and "answers/" not in path:
        group = group_of(str(run))
        return not names.isdisjoint((str(run), group, re.sub("/beta~[^/]+", "/beta~all", group)))
    _, is_answer, rest = path.partition("answers/")
    batch = Path(rest).parent.as_posix()
    return not is_answer or any(
        batch == PolicyName.parse(name).batch if "seed~" in name else batch.startswith(name.partition("/")[0])
        for name in names
    )


class _Way:
    """Collects the artefacts behind a value: which outputs of each, and which inputs these depend on."""

    def __init__(self, artefacts: Iterable[Artefact]) -> None:
        self._makers = makers_of(artefacts)
        self._steps: dict[str, TracedJob] = {}
        self._followed: set[tuple[str, str, frozenset[str]]] = set()

    def maker_of(self, path: Path) -> Maker | None:
        """Return who made a file, or the folder that it lies in."""
        whole = Path(absolute(path))  # without `..`, which would lead out of a folder that a rule made
        return next((self._makers[str(each)] for each in (whole, *whole.parents) if str(each) in self._makers), None)

    def follow_evidence(self, maker: Maker, measured: Iterable[EvidenceRow]) -> Iterator[Source]:
        """Add the evidence behind what prints these rows, and all behind each; yield where they were measured."""
        if "evidence" not in maker.made.outputs:
            before = self.maker_of(self._add(maker, ["evidence"])[0])
            if before is None:
                return
            maker = before
        files: dict[Path, list[dict[str, str]]] = {}
        for source, names in dict.fromkeys((row.source, policies_of(row)) for row in measured):
            match = SOURCE.fullmatch(source)
            lines = tuple(map(int, match["lines"].split("+"))) if match else ()
            for path in self._add(maker, _inputs_at(maker, match["path"] if match else source)):
                if path not in files:
                    text = path.read_text(encoding="utf-8") if lines and path.is_file() else ""
                files[path] = list(csv.DictReader(text.splitlines(), restval=""))
                cells = next(iter(files[path][lines[0] - 2 :]), {}) if lines else {}
                yield Source(path, lines, cells)
                self._follow_file(path, names)

    def follow(self, maker: Maker, names: frozenset[str]) -> None:
        """Add an output of an artefact and all behind it; of lists these policies' files, all if none is named."""
        key = (str(maker.artefact.card), maker.output, names)
        if key in self._followed:
            return
        self._followed.add(key)
        read = {name: path for name, path in maker.artefact.paths.items() if name in maker.made.inputs}
        kept = [name for name, path in read.items() if "[" not in name or not names or keeps(str(path), names)]
        for path in self._add(maker, kept):
            self._follow_file(path, names)

    def _follow_file(self, path: Path, names: frozenset[str]) -> None:
        if maker := self.maker_of(path):
            self.follow(maker, names)

    def _add(self, maker: Maker, names: Sequence[str]) -> list[Path]:
        """Add an output of an artefact and these of its inputs; return the paths of the latter."""
        step = self._steps.setdefault(str(maker.artefact.card), TracedJob(maker.artefact, maker.made))
        if maker.output not in (CARD, *step.outputs):
            step.outputs = sorted([*step.outputs, maker.output])
        added = {name: maker.artefact.paths[name] for name in names}
        step.inputs |= added
        return list(added.values())

    def steps(self, digests: Digests) -> tuple[TracedJob, ...]:
        """Return what was collected, each before all that it was made from."""
        behind: dict[str, dict[str, str]] = {}
        for card, step in self._steps.items():
            makers = {name: self.maker_of(path) for name, path in step.inputs.items()}
            behind[card] = {name: str(maker.artefact.card) for name, maker in makers.items() if maker is not None}
        order = list(TopologicalSorter({card: of.values() for card, of in behind.items()}).static_order())[::-1]
        for card, step in self._steps.items():
            step.makers = {name: order.index(maker) for name, maker in behind[card].items()}
            made, paths = step.made, step.artefact.paths
            step.states = {n: _state(paths[n], made.outputs[n], digests, AS_MADE) for n in step.outputs}
            step.states |= {n: _state(path, made.inputs[n], digests, AS_READ) for n, path in step.inputs.items()}
        return tuple(self._steps[card] for card in order)


def _inputs_at(maker: Maker, path: str) -> list[str]:
    """Return which inputs lay at a path, which may hold `*`, when they were read."""
    wanted, then = absolute(path), {name: absolute(maker.made.paths[name]) for name in maker.made.inputs}
    return [name for name, place in then.items() if place == wanted or fnmatch(place, wanted)]


def _state(path: Path, digest: str, digests: Digests, same: str) -> str:
    try:
        return same if digests.of(path) == digest else OTHER
    except FileNotFoundError:
        return MISSING
    except (CheckpointError, OSError):
        return DAMAGED


def text(traced: Traced) -> str:
    """Return the value with its sources, then each artefact by number, and what each was made from."""
    lines = [traced.target.what]
    lines += [line for quantity in traced.target.quantities for line in _quantity_lines(quantity, "  ")]
    for source in traced.sources[:SHOWN]:
        cells = ", ".join(f"{name} {value}" for name, value in source.cells.items() if value)
        at = f", line {_few(list(map(str, source.lines)))}: {cells}" if source.lines else ""
        lines.append(f"  in {source.path}{at}")
    if len(traced.sources) > SHOWN:
        lines.append(f"  ... and {len(traced.sources) - SHOWN} more")
    lines += [*(f"  {note}" for note in traced.notes), ""]
    for number, step in enumerate(traced.steps, start=1):
        made = step.made
        name = step.name if made.stage in step.name else f"{step.name} ({made.stage})"
        outputs = [
            f"{step.artefact.paths[of].name} {made.outputs[of][:DIGITS]} ({step.states[of]})" for of in step.outputs
        ]
        models = [f"model folder {key} {value}" for key, value in step.models.items()]
        commit = f"commit {made.commit[:DIGITS]}{' with uncommitted changes' if made.dirty else ''}"
        how = f"code {made.code}, {commit}, {made.seconds:g} s on {made.device}"
        details = [_settings(made.config), how, *outputs, *models, *_inputs(step)]
        lines += [f"[{number}] {name}", *(f"    {line}" for line in details if line)]
    return "\n".join(lines) + "\n"


def _quantity_lines(quantity: TracedRow, indent: str) -> Iterator[str]:
    """Yield a row of the evidence with its value and interval, then those that it is made of."""
    row, value = quantity.row, getattr(quantity.row, quantity.part)
    shown = row.printed or (f"{value:.6g}" if isinstance(value, float) else str(value))
    ends = f" [{row.low:.6g}, {row.high:.6g}]" if quantity.part == "value" and row.has_interval else ""
    part = "" if quantity.part == "value" else f"{quantity.part} "
    yield f"{indent}e{quantity.line} {row.key}: {part}{shown}{ends}{f' ({row.how})' if row.how else ''}"
    for each in quantity.of[:SHOWN]:
        yield from _quantity_lines(each, f"{indent}  ")
    if len(quantity.of) > SHOWN:
        yield f"{indent}  ... and {len(quantity.of) - SHOWN} more"


def _inputs(step: TracedJob) -> Iterator[str]:
    """Yield each input, members of a list together: the numbers of the steps that made them, or the raw files."""
    of_input: dict[str, list[str]] = {}
    for name, path in step.inputs.items():
        state = "" if step.states[name] == AS_READ else f" ({step.states[name]})"
        raw = f"{path} {step.made.inputs[name][:DIGITS]}"
        place = f"[{step.makers[name] + 1}]" if name in step.makers else raw
        of_input.setdefault(name.partition("[")[0], []).append(place + state)
    yield from (f"{name}: {_few(list(dict.fromkeys(places)))}" for name, places in of_input.items())


def _settings(config: Mapping[str, Any]) -> str:
    """Return the settings that are single values, the outer ones first."""
    single = [leaf for leaf in flat(config).items() if isinstance(leaf[1], str | int | float)]
    single.sort(key=lambda leaf: leaf[0].count("."))
    return _few([f"{key} {value}" for key, value in single if not key.endswith(MODEL)])


def _few(texts: Sequence[str]) -> str:
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return ", ".join([*texts[:SHOWN], *more])
