"""TensorBoard: an event file a run, in a folder of the run's name; `tensorboard --logdir OUT` shows them.

Its server shows scalars of 32 bits and no others, so beside each stands the exact value, which no plugin shows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lever_pipe.commands.trackers.protocol import TrackedRun, Values

FACTS, EXACT = "facts", "exact/"
"""The tag of a run's facts, and what the tags of exact values begin with."""
CLASSES = {"text": "DATA_CLASS_TENSOR", "scalars": "DATA_CLASS_SCALAR", "exact": "DATA_CLASS_TENSOR"}
"""Plugin -> how the server keeps its values."""


def write(runs: Sequence[TrackedRun], folder: Path, project: str) -> None:
    """Write the runs; the facts of each are a text of step 0."""
    from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for run in runs:
        writer = EventFileWriter(str(folder / run.name))

        def add(tag: str, plugin: str, step: int, writer: Any = writer, **tensor: Any) -> None:
            about = {"plugin_data": {"plugin_name": plugin}, "data_class": CLASSES[plugin]}
            held = tensor_pb2.TensorProto(tensor_shape={}, **tensor)
            value = summary_pb2.Summary.Value(tag=tag, metadata=summary_pb2.SummaryMetadata(**about), tensor=held)
            summary = summary_pb2.Summary(value=[value])
            writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))

        told = json.dumps({"project": project, "kind": run.kind, **run.facts}, indent=2)
        add(FACTS, "text", 0, dtype="DT_STRING", string_val=[f"```\n{told}\n```".encode()])
        for (step, metric), value in sorted(run.values.items()):
            add(metric, "scalars", step, dtype="DT_FLOAT", float_val=[_rounded(value)])
            add(f"{EXACT}{metric}", "exact", step, dtype="DT_DOUBLE", double_val=[value])
        writer.close()


def read(folder: Path, project: str) -> Values:  # noqa: ARG001 - a folder holds one
    """Return the values by TensorBoard's `EventAccumulator`; the shown one where it is not the exact one rounded."""
    from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found: Values = {}
    for place in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(place), size_guidance={TENSORS: 0}).Reload()
        values = found[place.relative_to(folder).as_posix()] = {}
        for tag in events.PluginTagToContent("scalars"):
            for shown, exact in zip(events.Tensors(tag), events.Tensors(f"{EXACT}{tag}"), strict=True):
                small, value = (float(make_ndarray(each.tensor_proto)) for each in (shown, exact))
                values[shown.step, tag] = value if (small, shown.step) == (_rounded(value), exact.step) else small
    return found


def _rounded(value: float) -> float:
    """Return the 32-bit float next to a value."""
    import numpy as np

    with np.errstate(over="ignore"):
        return float(np.float32(value))
