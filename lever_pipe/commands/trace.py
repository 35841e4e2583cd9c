"""From a number of the report back to the checkpoints, data, configuration and code that made it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lever_pipe.base.contents import Digests
from lever_pipe.base.errors import CheckpointError, UnknownMemberError
from lever_pipe.base.policy_names import PolicyName, group_of
from lever_pipe.base.records import RunCard
from lever_pipe.commands import trace_values
from lever_pipe.commands.trace_values import Asked, FoundRow, keeps, read_csv
from lever_pipe.runtime.rerun.artefacts import Artefact, Maker, Makers, absolute, makers_of
from lever_pipe.runtime.rerun.why_names import flat, label

AS_MADE, AS_READ = "as made", "as read"
MISSING, DAMAGED, REPLACED, OTHER = "missing", "damaged", "replaced", "other content"
MODEL = "model_identity"
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
    "plot_agents": {"published_rewards": ("reference_intention",)},
    "plot_curves": {"accuracy_by_kind": ("breakdown",)},
}
"""Stage -> output or figure -> the inputs that its content depends on; of what is not listed, all."""


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


class Traced(NamedTuple):
    """A way back; `steps` begin with what holds the value, makers come after what they made.

    Attributes:
        groups: the policies that it is about; none: all.
        sources: rows in which the value was found.
        notes: what could not be narrowed, and why.
    """

    asked: Asked
    groups: tuple[str, ...]
    sources: tuple[FoundRow, ...]
    notes: tuple[str, ...]
    steps: tuple[TracedJob, ...]


def trace(asked: Asked, artefacts: Sequence[Artefact], digests: Digests) -> Traced:
    """Return the way back from what is asked for.

    Args:
        asked: a figure, file or cell.
        artefacts: all below the results, judged.
        digests: contents of files.

    Raises:
        UnknownMemberError: no run card says who made the file.
    """
    makers = makers_of(artefacts)
    maker = maker_of(asked.file, makers)
    if maker is None:
        raise UnknownMemberError(
            f"trace: expected a run card that states {asked.file}",
            found=f"{len(artefacts)} cards below {asked.results}, none of which does",
            do="Run the workflow: cards of earlier versions do not say what they made.",
        )
    known = [PolicyName.in_path(str(each.card)) for each in artefacts]
    groups = trace_values.groups_of(asked, [str(run) for run in known if run])
    about = asked._replace(groups=groups)
    way = _Way(makers, digests)
    sources, notes = _start(way, maker, about)
    told = {group_of(name) for source in sources for name in source.names} | {n for s in sources for n in s.names}
    shown = groups if asked.groups else tuple(group for group in groups if group in told) or groups
    return Traced(asked, shown, tuple(sources), tuple(notes), way.steps(maker.artefact))


def maker_of(path: Path, makers: Makers) -> Maker | None:
    """Return who made a file, or the folder that it lies in."""
    return next((makers[key] for key in map(absolute, (path, *path.parents)) if key in makers), None)


def _start(way: _Way, maker: Maker, asked: Asked) -> tuple[list[FoundRow], list[str]]:
    """Follow the way from an artefact; return where the value was found and what could not be narrowed."""
    artefact, names = maker.artefact, frozenset(asked.groups)
    stage, listed = (artefact.made.stage, artefact.made.inputs) if artefact.made else ("", {})
    needs = NEEDS.get(stage, {})
    if not (asked.column and asked.table):  # a row of a long-format file holds the value itself
        output = asked.file.stem if asked.file.stem in needs else maker.output
        way.follow(maker.artefact, maker.output, names if asked.column else frozenset(), needs.get(output, ()))
        if asked.column:
            return [], [] if names else ["The row names no policy: all that its file was made from is listed."]
        return [], [] if output in needs else [f"A whole file: all that {stage} read is listed."]
    paths = {name: path for name, path in artefact.paths.items() if name in listed or name in needs}
    sources = trace_values.sources_of(asked, paths)
    if sources:
        _follow_sources(way, maker, sources, needs, names)
        is_open = not (names or trace_values.is_published(asked))
        return sources, ["The row names no policy: it is found by its value alone."] if is_open else []
    way.follow(maker.artefact, maker.output, trace_values.earlier_epochs(names))
    where = "No file that the table was built from holds this value as it is printed"
    return [], [f"{where}: all of them are listed{', for the policies of the row' if names else ''}."]


def _follow_sources(
    way: _Way, maker: Maker, sources: Sequence[FoundRow], needs: Mapping[str, tuple[str, ...]], names: frozenset[str]
) -> None:
    """Follow what holds a value: inputs of the table's stage, or further outputs of it."""
    for source in sources:
        rows = read_csv(Path(source.path)) if source.keys.get("family") else []
        names |= trace_values.family_names(source, rows)
    only: set[str] = set()
    for name in sorted({source.input for source in sources}):
        only |= set(needs.get(name, (name,)))
        if name in needs:
            way.follow(maker.artefact, name, names)
    way.follow(maker.artefact, maker.output, names, only)


class _Way:
    """Collects the artefacts behind a value: which outputs of each, and which inputs these depend on."""

    def __init__(self, makers: Makers, digests: Digests) -> None:
        self._makers = makers
        self._digests = digests
        self._outputs: dict[str, set[str]] = {}
        self._inputs: dict[str, dict[str, Path]] = {}
        self._artefacts: dict[str, Artefact] = {}

    def follow(self, artefact: Artefact, output: str, names: frozenset[str], only: Collection[str] = ()) -> None:
        """Add an artefact and all behind it; of lists only the files of these policies, if any are named.

        `only` names the inputs that count; by default those that the output depends on.
        """
        made, card = artefact.made, str(artefact.card)
        if made is None or output in self._outputs.get(card, ()):
            return
        self._artefacts[card] = artefact
        self._outputs.setdefault(card, set()).add(output)
        inputs = self._inputs.setdefault(card, {})
        counting = set(only) or set(NEEDS.get(made.stage, {}).get(output, ()))
        for name, path in artefact.paths.items():
            base, is_member, _ = name.partition("[")
            if name not in made.inputs or (counting and not {name, base} & counting):
                continue
            if is_member and names and not keeps(str(path), names):
                continue
            inputs[name] = path
            maker = maker_of(path, self._makers)
            if maker is not None:
                self.follow(maker.artefact, maker.output, names)

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


def _output_state(artefact: Artefact, name: str) -> str:
    if name in artefact.damaged:
        return DAMAGED
    if name in artefact.replaced:
        return REPLACED
    return AS_MADE if artefact.paths[name].exists() else MISSING
