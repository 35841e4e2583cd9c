"""`lever-pipe trace WHAT`: from a number of the report back to the checkpoint, data, config and code.

WHAT is a file of the results, a table's cell as `TABLE:ROW:COLUMN` (rows count from 1), a key of evidence, or `e12`:
line 12 of `results/report/evidence.csv`, as the pages show at each number. The trace of a cell lists its rows of the
evidence, the rows that these are computed from, the source lines of their measurements, and only the runs of these
lines. Each artifact occurs once: its settings, code fingerprint, commit, device, seconds, and whether its files are
unchanged. The trace ends at raw data and model folders, with their digests, and at the row of `resources/reference` of
a published number.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from lever_pipe.base import contents, storage
from lever_pipe.base.artefacts import MANIFEST, STUDIES, Artefact, absolute, flat, label, manifests_below, read_artefact
from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import RecordError, UnknownNameError, first
from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.base.records import Manifest
from lever_pipe.base.sections import did_you_mean
from lever_pipe.experiment import configuration
from lever_pipe.experiment.plans import grid
from lever_pipe.experiment.studies import Experiment, parse_experiment
from lever_pipe.report.evidence import DERIVED, EvidenceRow, adjusted_in, read_evidence
from lever_pipe.runtime.reruns import own_images
from lever_pipe.runtime.reruns.manifest import state_of
from lever_pipe.runtime.snakemake_adapter import configured

REPORT, EVIDENCE, INDEX = "report", "evidence.csv", "index.json"
UNCHANGED, MISSING, OTHER = "as made", "missing", "other content"
LINE = re.compile(r"e(?P<line>\d{1,9})(?::(?P<part>\w+))?")
"""A row of the evidence by its line, and optionally a column."""
SOURCE_LINES = re.compile(r":\d+(\+\d+)*$")
OF_FAMILY = "p_holm"
"""Column whose value depends on every comparison of its family."""
RUNS = ("preset~", "baseline/", "arm~")
"""Prefixes of the names of policies and agents that have their own files."""
MODEL = "model_identity"
DISPLAY_LIMIT, DIGITS = 6, 12


class TracedRow(NamedTuple):
    """A row of the evidence, the traced column, and the rows that it is computed from."""

    line: int
    row: EvidenceRow
    part: str = "value"
    operands: tuple[TracedRow, ...] = ()

    @property
    def measured(self) -> Iterator[EvidenceRow]:
        """Yield the measured rows at the ends, which are not computed from others."""
        yield from (row for operand in self.operands for row in operand.measured) if self.operands else (self.row,)


@dataclass(slots=True)
class TracedJob:
    """An artifact between a value and its raw data.

    Attributes:
        outputs: the outputs that lead to the value.
        inputs: the inputs that these outputs depend on: name -> path.
        makers: name of an input -> index of the step that made it; absent for files that no rule makes.
        states: name of a file -> whether it still has the content of that time.
        images: changed images of a user, by path; for `prepare_examples` only.
    """

    artefact: Artefact
    origin: Manifest
    outputs: list[str] = field(default_factory=list)
    inputs: dict[str, Path] = field(default_factory=dict)
    makers: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The artifact's label."""
        return label(self.origin.stage, str(self.artefact.manifest))


class Traced(NamedTuple):
    """A trace: rows of the evidence, the sources of their measurements, and steps, makers after their outputs."""

    rows: tuple[TracedRow, ...]
    sources: tuple[str, ...]
    steps: tuple[TracedJob, ...]


def main(words: Sequence[str]) -> int:
    """Print the trace and return 0."""
    parser = argparse.ArgumentParser(
        prog="lever-pipe trace", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", help="a file, TABLE:ROW:COLUMN, a key of the evidence, or e12")
    parser.add_argument("--results", type=Path, help="the results folder")
    configuration.add_options(parser)
    options = parser.parse_args(words[1:])
    values = configured(vars(options)).values
    results = options.results or Path(values.get("results", "results"))
    traced = traced_back(options.what, results)
    readers = [step for step in traced.steps if step.origin.stage == own_images.STAGE]
    if readers and options.results is None:  # other results may belong to another configuration, with other images
        experiment = parse_experiment(values)
        for step in readers:
            step.images = _other_images(step, experiment)
    sys.stdout.write(f"{options.what}\n{text(traced)}")
    return 0


def _other_images(step: TracedJob, experiment: Experiment) -> dict[str, str]:
    """Return the images of a user that differ from those in the examples of a step: path -> state."""
    location = str(step.artefact.manifest.relative_to(experiment.results))
    data = grid.at(experiment, {"data": location}).data
    if data.source == "world":
        return {}
    with suppress(RecordError, LookupError):  # the examples are missing or damaged, or of another version
        examples, split = step.artefact.paths[own_images.EXAMPLES], str(step.origin.config["split"])
        return own_images.differences_now(data, split, examples, contents.remembered())
    return {}


def traced_back(what: str, results: Path) -> Traced:
    """Return the trace of a command-line argument."""
    file, rows = _target(what, results)
    way = _Way(map(read_artefact, manifests_below(results)))
    maker = way.maker_of(file)
    if maker is None:
        expected, found = f"trace: expected a manifest that lists {file}", f"no such manifest below {results}"
        raise UnknownNameError(expected, found=found, do="Run the workflow, or name its results: --results FOLDER.")
    ends = [row for traced in rows for row in traced.measured]
    sources = tuple(way.follow_evidence(maker, ends)) if ends else ()
    if not sources:  # a whole file, or a cell that prints no row
        way.follow(file, frozenset())
    return Traced(rows, sources, way.steps(contents.remembered()))


def _target(word: str, results: Path) -> tuple[Path, tuple[TracedRow, ...]]:
    """Return the file that a command-line argument means, and its rows of the evidence."""
    report = results / REPORT if (results / REPORT / EVIDENCE).is_file() else results
    if LINE.fullmatch(word) or word.partition(":")[0] in (*STUDIES, DERIVED):
        return report / EVIDENCE, _evidence_rows(report / EVIDENCE, [word])
    if word and Path(word).exists():
        return Path(word), ()
    tables = storage.read_json(report / INDEX)["tables"] if (report / INDEX).is_file() else {}
    name, row, column = (*word.split(":", 2), "", "")[:3]
    if name not in tables:
        do = "Name a file below the results, or TABLE:ROW:COLUMN with a table's id; give the run's --configfile."
        do = did_you_mean(name, tables, do)
        raise UnknownNameError(f"trace: expected a file, or a cell of a table of {results}", found=f"'{word}'", do=do)
    heads = tables[name]["columns"]
    cells = {str(number): line for number, line in enumerate(tables[name]["cells"], start=1)}
    indices = {key: i for i, head in enumerate(heads) for key in (str(i + 1), head)}
    if row not in cells or column not in indices:
        expected = f"trace: expected a cell {name}:ROW:COLUMN, ROW from 1 to {len(cells)}, COLUMN of {', '.join(heads)}"
        raise UnknownNameError(expected, found=f"'{word}'", do=did_you_mean(column, heads, f"As {name}:1:{heads[0]}."))
    return report / "tables" / f"{name}.csv", _evidence_rows(report / EVIDENCE, cells[row][indices[column]])


def _evidence_rows(path: Path, names: Sequence[str]) -> tuple[TracedRow, ...]:
    """Return the rows of `e12`, `e12:p_holm` or a key, each with the rows that its column is computed from."""
    rows = dict(enumerate(read_evidence(path), start=2)) if names else {}  # line 1 is the header
    lines = {row.key: line for line, row in rows.items()}

    def traced(line: int, part: str = "value") -> TracedRow:
        row = rows[line]
        if part == OF_FAMILY:  # an adjusted p depends on its whole family
            family = (row.study, adjusted_in(row.family))
            alike = [(i, m) for i, m in rows.items() if (m.study, adjusted_in(m.family)) == family]
            return TracedRow(line, row, part, tuple(TracedRow(i, m, "p") for i, m in alike if m.p == m.p))
        return TracedRow(line, row, part, tuple(traced(lines[key]) for key in row.operands))

    def row_of(name: str) -> TracedRow:
        match = LINE.fullmatch(name)
        line, part = (int(match["line"]), match["part"] or "value") if match else (lines.get(name, 0), "value")
        if line not in rows or part not in EvidenceRow._fields:
            do = did_you_mean(name, () if match else lines, f"Its lines are e2 to e{len(rows) + 1}.")
            raise UnknownNameError(f"trace: expected a row of {path}", found=f"'{name}'", do=do)
        return traced(line, part)

    return tuple(map(row_of, names))


def _policies_of(row: EvidenceRow) -> frozenset[str]:
    """Return the policies or agents that a row of the evidence is about; none if it is also about anything else."""
    names = [name for name in (row.subject, row.against) if name]
    return frozenset(names if all(name.startswith(RUNS) for name in names) else ())


def _is_of(path: str, names: frozenset[str]) -> bool:
    """Return whether a file of a list belongs to one of these policies, or to no policy."""
    _, is_answer, rest = path.partition("answers/")
    if is_answer:
        batch = Path(rest).parent.as_posix()
        return any(
            batch == PolicyName.parse(name).batch if "seed~" in name else batch.startswith(name.partition("/")[0])
            for name in names
        )
    run = PolicyName.in_path(path)
    if run is None:
        return True
    # A name may be a policy, its group, or the group's mean over all KL_BETA.
    group = group_of(str(run))
    return not names.isdisjoint((str(run), group, re.sub("/beta~[^/]+", "/beta~all", group)))


class Maker(NamedTuple):
    """The artifact that contains a file as output, and the output's name."""

    artefact: Artefact
    origin: Manifest
    output: str


class _Way:
    """Collects the artifacts that led to a value, with their relevant outputs and the inputs that these depend on."""

    def __init__(self, artefacts: Iterable[Artefact]) -> None:
        # Outputs include the manifests themselves.
        self._makers = {
            absolute(path): Maker(artefact, artefact.origin, name)
            for artefact in artefacts
            if artefact.origin is not None
            for name, path in artefact.paths.items()
            if name in artefact.origin.outputs or name == MANIFEST
        }
        self._steps: dict[str, TracedJob] = {}
        self._followed: set[tuple[str, str, frozenset[str]]] = set()

    def maker_of(self, path: Path) -> Maker | None:
        """Return the maker of a file, or of a folder that contains it."""
        location = Path(absolute(path))  # without `..`, which would lead out of a folder that a rule made
        return next((self._makers[str(p)] for p in (location, *location.parents) if str(p) in self._makers), None)

    def follow_evidence(self, maker: Maker, ends: Iterable[EvidenceRow]) -> Iterator[str]:
        """Add the evidence for these rows and all its sources; yield the sources of the measurements."""
        if "evidence" not in maker.origin.outputs:
            before = self.maker_of(self._add(maker, ["evidence"])[0])
            if before is None:
                return
            maker = before
        paths = {name: absolute(maker.origin.paths[name]) for name in maker.origin.inputs}
        for source, names in dict.fromkeys((row.source, _policies_of(row)) for row in ends):
            location = SOURCE_LINES.sub("", source)
            pattern = absolute(location)  # may contain `*`
            names_read = [name for name, path in paths.items() if path == pattern or fnmatch(path, pattern)]
            for path in self._add(maker, names_read):
                yield f"{path}{source.removeprefix(location)}"
                self.follow(path, names)

    def follow(self, path: Path, names: frozenset[str]) -> None:
        """Add the maker of a file and all its sources; of lists only these policies' files, or all without a name."""
        maker = self.maker_of(path)
        if maker is None or (key := (str(maker.artefact.manifest), maker.output, names)) in self._followed:
            return
        # Many files share sources: without this memory, the number of visits would grow exponentially.
        self._followed.add(key)
        inputs = {name: path for name, path in maker.artefact.paths.items() if name in maker.origin.inputs}
        selected = [name for name, path in inputs.items() if "[" not in name or not names or _is_of(str(path), names)]
        for path in self._add(maker, selected):
            self.follow(path, names)

    def _add(self, maker: Maker, names: Sequence[str]) -> list[Path]:
        """Add an output of an artifact and these of its inputs; return the paths of the latter."""
        step = self._steps.setdefault(str(maker.artefact.manifest), TracedJob(maker.artefact, maker.origin))
        if maker.output not in (MANIFEST, *step.outputs):
            step.outputs = sorted([*step.outputs, maker.output])
        added = {name: maker.artefact.paths[name] for name in names}
        step.inputs |= added
        return list(added.values())

    def steps(self, digests: Digests) -> tuple[TracedJob, ...]:
        """Return the collected steps, each before its sources."""
        sources: dict[str, dict[str, str]] = {}
        for manifest, step in self._steps.items():
            makers = {name: self.maker_of(path) for name, path in step.inputs.items()}
            sources[manifest] = {
                name: str(maker.artefact.manifest) for name, maker in makers.items() if maker is not None
            }
        # `static_order` yields sources first, but a trace starts at the value.
        order = list(
            TopologicalSorter({manifest: names.values() for manifest, names in sources.items()}).static_order()
        )[::-1]
        for manifest, step in self._steps.items():
            step.makers = {name: order.index(maker) for name, maker in sources[manifest].items()}
            now = state_of(step.artefact, digests)
            states = dict.fromkeys((*now.changed, *now.damaged, *now.replaced), OTHER)
            states |= dict.fromkeys(now.missing, MISSING)
            step.states = {name: states.get(name, UNCHANGED) for name in (*step.outputs, *step.inputs)}
        return tuple(self._steps[manifest] for manifest in order)


def text(traced: Traced) -> str:
    """Return the rows with their sources, then each artifact by number, with its inputs."""
    lines = [line for row in traced.rows for line in _row_lines(row, "  ")]
    lines.append(
        f"  in {first(traced.sources, DISPLAY_LIMIT)}"
        if traced.sources
        else "  names no row of the evidence: all is listed"
    )
    for number, step in enumerate(traced.steps, start=1):
        recorded = step.origin
        name = step.name if recorded.stage in step.name else f"{step.name} ({recorded.stage})"
        outputs = [
            f"{step.artefact.paths[n].name} {recorded.outputs[n][:DIGITS]} ({step.states[n]})" for n in step.outputs
        ]
        models = [f"model folder {key} {value}" for key, value in flat(recorded.config).items() if key.endswith(MODEL)]
        commit = f"commit {recorded.commit[:DIGITS]}{' with uncommitted changes' if recorded.dirty else ''}"
        origin = f"code {recorded.code}, {commit}, {recorded.seconds:g} s on {recorded.device}"
        details = [_settings(recorded.config), origin, *outputs, *models, *_inputs(step)]
        lines += [f"[{number}] {name}", *(f"    {line}" for line in details if line)]
    return "\n".join(lines) + "\n"


def _row_lines(traced: TracedRow, indent: str) -> Iterator[str]:
    """Yield a row of the evidence with its value and interval, then the rows that it is computed from."""
    row, value = traced.row, getattr(traced.row, traced.part)
    printed = row.printed or (f"{value:.6g}" if isinstance(value, float) else str(value))
    ends = f" [{row.low:.6g}, {row.high:.6g}]" if traced.part == "value" and row.has_interval else ""
    part = "" if traced.part == "value" else f"{traced.part} "
    yield f"{indent}e{traced.line} {row.key}: {part}{printed}{ends}{f' ({row.how})' if row.how else ''}"
    for operand in traced.operands[:DISPLAY_LIMIT]:
        yield from _row_lines(operand, f"{indent}  ")
    if len(traced.operands) > DISPLAY_LIMIT:
        yield f"{indent}  ... and {len(traced.operands) - DISPLAY_LIMIT} more"


def _inputs(step: TracedJob) -> Iterator[str]:
    """Yield each input, with list entries in one line: the numbers of the steps that made them, or the raw files."""
    of_input: dict[str, list[str]] = {}
    for name, path in step.inputs.items():
        state = "" if step.states[name] == UNCHANGED else f" ({step.states[name]})"
        raw = f"{path} {step.origin.inputs[name][:DIGITS]}"
        source = f"[{step.makers[name] + 1}]" if name in step.makers else raw
        of_input.setdefault(name.partition("[")[0], []).append(source + state)
    yield from (f"{name}: {first(list(dict.fromkeys(sources)), DISPLAY_LIMIT)}" for name, sources in of_input.items())
    if step.images:
        yield f"images: {first([f'{path} {state}' for path, state in step.images.items()], DISPLAY_LIMIT)}"


def _settings(config: Mapping[str, Any]) -> str:
    """Return the settings with single values, the outermost first."""
    single = [leaf for leaf in flat(config).items() if isinstance(leaf[1], str | int | float)]
    single.sort(key=lambda leaf: leaf[0].count("."))
    return first([f"{key} {value}" for key, value in single if not key.endswith(MODEL)], DISPLAY_LIMIT)
