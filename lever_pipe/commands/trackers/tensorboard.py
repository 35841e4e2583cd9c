"""TensorBoard: an event file a run, in a folder of the run's name; `tensorboard --logdir OUT` shows them.

Values are tensors of 64-bit floats: the summary that TensorBoard's own writer of scalars makes would round them to 32.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lever_pipe.commands.trackers.protocol import TrackedRun, Values

SCALARS, TEXT = "scalars", "text"
FACTS = "facts"


def write(runs: Sequence[TrackedRun], folder: Path, project: str) -> None:
    """Write the runs; the facts of each are a text of step 0."""
    from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for run in runs:
        writer = EventFileWriter(str(folder / run.name))

        def add(
            tag: str, plugin: str, step: int, tensor: tensor_pb2.TensorProto, writer: EventFileWriter = writer
        ) -> None:
            about = summary_pb2.SummaryMetadata(plugin_data={"plugin_name": plugin})
            value = summary_pb2.Summary.Value(tag=tag, metadata=about, tensor=tensor)
            writer.add_event(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=[value])))

        told = json.dumps({"project": project, "kind": run.kind, **run.facts}, indent=2)
        fenced = f"```\n{told}\n```".encode()
        add(FACTS, TEXT, 0, tensor_pb2.TensorProto(dtype="DT_STRING", tensor_shape={}, string_val=[fenced]))
        for (step, metric), value in sorted(run.values.items()):
            add(metric, SCALARS, step, tensor_pb2.TensorProto(dtype="DT_DOUBLE", tensor_shape={}, double_val=[value]))
        writer.close()


def read(folder: Path, project: str) -> Values:  # noqa: ARG001 - a folder holds one
    """Return the values by TensorBoard's `EventAccumulator`."""
    from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found: Values = {}
    for place in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(place), size_guidance={TENSORS: 0}).Reload()
        found[place.relative_to(folder).as_posix()] = {
            (event.step, tag): float(make_ndarray(event.tensor_proto))
            for tag in events.PluginTagToContent(SCALARS)
            for event in events.Tensors(tag)
        }
    return found
