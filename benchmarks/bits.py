"""Measure which operations of torch give the same bits on CPUs of different vendors.

`python -m benchmarks.bits record RESULTS FOLDER` repeats one job of each stage of a finished run and keeps a sample of
the arguments of every operation, shape and layout. `replay FOLDER` computes them and prints a checksum each: call it on
this machine and under emulated CPUs. `compare LOG LOG ...` prints the operations whose checksums differ.
`repeat RESULTS` runs every job of a finished run again, in this process, and compares the digests of its outputs with
those in its manifest. If all inputs and outputs of all jobs are equal, a whole run on this CPU gives equal bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from lever_pipe.base import contents, storage
from lever_pipe.base.parsing import parse_model
from lever_pipe.base.records import Manifest
from lever_pipe.experiment import execution
from lever_pipe.experiment.job_runtime import Runtime
from lever_pipe.experiment.stage_files import Role, declared
from lever_pipe.runtime.stage_call import stage_function

PER_OPERATION = 15
"""Largest number of shapes that are kept for an operation of a stage: texts of an agent have any length."""
LARGEST = 300_000
"""Largest number of elements of kept arguments, but for the first call of an operation."""
MODELS = {"lvlm": Path("resources/world/lvlm"), "encoder": Path("resources/world/clip")}
SPLITS = {"train": "train2014", "eval": "val2014"}
UNDEFINED = ("empty", "new_empty")
"""Beginnings of operations whose results are not a function of their arguments."""
NOT_REPEATED = "not repeated"
TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format)
KEPT = (Tensor, bool, int, float, str, type(None), torch.Generator, *TYPES)
"""Types of arguments; a call with another, such as a storage, cannot be repeated."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the arguments of operations on floating-point tensors, without those that another stage has kept."""

    def __init__(self, seen: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen
        self.calls: dict[str, tuple[str, list[Any], str]] = {}
        self.names: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute the operation after a copy of its arguments."""
        kwargs = kwargs or {}
        leaves, spec = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if any(t.is_floating_point() and t.is_cpu for t in tensors) and not any(t.is_meta for t in tensors):
            self.names[str(func)] += 1
            layout = [(str(t.dtype), tuple(t.shape), t.stride()) for t in tensors]
            key = f"{func} {layout}"
            small = sum(t.numel() for t in tensors) <= LARGEST or not self._kept[str(func)]
            wanted = small and self._kept[str(func)] < PER_OPERATION and key not in self._seen
            if wanted and all(isinstance(leaf, KEPT) for leaf in leaves):
                self._kept[str(func)] += 1
                self._seen.add(key)
                copies = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                self.calls[key] = (str(func), copies, treespec_dumps(spec))
        return func(*args, **kwargs)


def record(results: Path, folder: Path) -> None:
    """Repeat the first job of each stage; write the kept calls, one file a stage."""
    folder.mkdir(parents=True, exist_ok=True)
    done: set[str] = set()
    seen: set[str] = set()
    for path in sorted(results.rglob("*run.json")):
        row = storage.read_row(path, Manifest)
        if row.stage in done or "runtime" not in get_type_hints(stage_function(row.stage)):
            continue
        done.add(row.stage)
        recorder = Recorder(seen)
        with tempfile.TemporaryDirectory() as out:
            arguments = _arguments(row, results, Path(out))
            with recorder:
                try:
                    stage_function(row.stage)(**arguments, runtime=Runtime())
                except Exception as error:  # noqa: BLE001 - a stage that cannot be repeated is named
                    sys.stderr.write(f"{row.stage}: {type(error).__name__}: {error}\n")
        _write(folder / row.stage, recorder.calls.values())
        _print(f"{row.stage}: {len(recorder.names)} operations, {len(recorder.calls)} kept calls")


def repeat(results: Path, part: int, n_parts: int) -> None:
    """Run a part of the jobs of a run again, and print for each whether its outputs are equal."""
    paths = sorted(path for path in results.rglob("*run.json") if not path.is_relative_to(results / "code"))
    for path in paths[part::n_parts]:
        row = storage.read_row(path, Manifest)
        function = stage_function(row.stage)
        with tempfile.TemporaryDirectory() as out:
            arguments = _arguments(row, results, Path(out))
            if "runtime" in get_type_hints(function):
                arguments["runtime"] = Runtime(agent="{}")
            try:
                function(**arguments)
            except Exception as error:  # noqa: BLE001 - the others are still of interest
                _print(f"{path}\t{row.stage}\t{NOT_REPEATED}: {type(error).__name__}: {error}")
                continue
            files = {name: file for name, file in declared(function).items() if file.role is Role.OUTPUT}
            made = {name: arguments[name] for name in files if not files[name].several}
            differing = [name for name, file in made.items() if contents.digest(file) != row.outputs.get(name)]
        _print(f"{path}\t{row.stage}\t{'differs: ' + ', '.join(differing) if differing else 'equal'}")


def _arguments(row: Manifest, results: Path, out: Path) -> dict[str, Any]:
    """Return the files and the configuration of a job, with outputs in another folder."""
    function = stage_function(row.stage)
    arguments: dict[str, Any] = {"config": parse_model(get_type_hints(function)["config"], row.config, source="run")}
    for name, file in declared(function).items():
        of_name = [key for key in row.paths if key.partition("[")[0] == name]
        of_name.sort(key=lambda key: int(key.partition("[")[2].rstrip("]") or 0))
        paths = [Path(row.paths[key]) for key in of_name]
        if file.role is Role.EXTERNAL:
            split = "eval" if "eval" in name or "eval" in Path(row.paths["manifest"]).name else "train"
            paths = [MODELS.get(name, results / "world" / SPLITS[split])]
        elif file.role is Role.STATE:
            paths = [out / name]
        elif file.role is Role.OUTPUT:
            paths = [out / name / str(i) / path.name for i, path in enumerate(paths)]
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
        arguments[name] = tuple(paths) if file.several else paths[0]
    return arguments


def _write(file: Path, calls: Iterable[tuple[str, list[Any], str]]) -> None:
    tensors: dict[str, Tensor] = {}
    lines = []
    for number, (name, leaves, spec) in enumerate(calls):
        words: list[Any] = []
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                tensors[f"{number}.{place}"] = leaf.contiguous()
                words.append({"tensor": f"{number}.{place}", "stride": leaf.stride()})
            elif isinstance(leaf, torch.Generator):
                words.append({"seed": 0})
            else:
                words.append({"torch": str(leaf).removeprefix("torch.")} if isinstance(leaf, TYPES) else leaf)
        lines.append(json.dumps([name, words, spec]))
    file.with_suffix(".jsonl").write_text("\n".join(lines), encoding="utf-8")
    save_file(tensors, file.with_suffix(".safetensors"))


def replay(folder: Path) -> None:
    """Print the checksum of each kept call: stage, operation, shapes, checksum."""
    execution.prepare(Runtime())
    for file in sorted(folder.glob("*.jsonl")):
        lines = file.read_text(encoding="utf-8").splitlines()
        with safe_open(file.with_suffix(".safetensors"), "pt") as stored:
            for line in lines:
                name, words, spec = json.loads(line)
                leaves = [_leaf(word, stored) for word in words]
                shapes = " ".join(str(tuple(leaf.shape)) for leaf in leaves if isinstance(leaf, Tensor))
                _print(f"{file.stem}\t{name}\t{shapes}\t{_checksum(name, leaves, spec)}")


def _leaf(word: Any, stored: Any) -> Any:
    if not isinstance(word, dict):
        return word
    if "seed" in word:
        return torch.Generator().manual_seed(word["seed"])
    if "torch" in word:
        named = getattr(torch, word["torch"], None)
        return torch.device(word["torch"]) if named is None or callable(named) else named
    tensor = stored.get_tensor(word["tensor"])
    if 0 in word["stride"]:  # an expanded tensor; its values do not depend on the layout
        return tensor
    return torch.empty_strided(tensor.shape, word["stride"], dtype=tensor.dtype).copy_(tensor)


def _checksum(name: str, leaves: list[Any], spec: str) -> str:
    space, operation, overload = name.split(".")
    args, kwargs = tree_unflatten(leaves, treespec_loads(spec))
    torch.manual_seed(0)
    with torch.no_grad():
        try:
            results, _ = tree_flatten(getattr(getattr(getattr(torch.ops, space), operation), overload)(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - a call that cannot be repeated alone
            return f"{NOT_REPEATED}: {type(error).__name__}"
    # Arguments, too: some operations write into them.
    written = [t for t in (*results, *leaves) if isinstance(t, Tensor) and t.numel()]
    values = (t.detach().numpy().tobytes() for t in written)
    return " ".join(format(zlib.crc32(value), "08x") for value in values)


def compare(logs: list[Path], operations: Path | None) -> None:
    """Print the number of calls, and the operations with a difference between logs; write the names of all others."""
    read: list[Mapping[str, str]] = [_read(log) for log in logs]
    common = [key for key in read[0] if all(key in log for log in read)]
    total: Counter[str] = Counter()
    differing: Counter[str] = Counter()
    for key in common:
        operation = key.split("\t")[2]
        if operation.split(".")[1].startswith(UNDEFINED) or any(NOT_REPEATED in log[key] for log in read):
            continue
        total[operation] += 1
        differing[operation] += len({log[key] for log in read}) > 1
    _print(f"{sum(total.values())} calls of {len(total)} operations; {sum(differing.values())} calls differ")
    for operation, count in sorted(differing.items()):
        if count:
            _print(f"  {operation}: {count} of {total[operation]}")
    if operations is not None:
        names = {key.split("\t")[2] for key in common}
        operations.write_text("".join(f"{name}\n" for name in sorted(names) if not differing[name]), encoding="utf-8")


def _read(log: Path) -> dict[str, str]:
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.count("\t") == 3]
    return {f"{number}\t{line.rpartition(chr(9))[0]}": line.rpartition("\t")[2] for number, line in enumerate(lines)}


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Record, replay or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "replay", "compare", "repeat"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--operations", type=Path, help="where `compare` writes the operations without a difference")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), metavar=("K", "N"), help="every N-th job, from K")
    options = parser.parse_args()
    if options.what == "record":
        record(*options.paths)
    elif options.what == "repeat":
        repeat(options.paths[0], *options.part)
    elif options.what == "replay":
        replay(*options.paths)
    else:
        compare(options.paths, options.operations)


if __name__ == "__main__":
    main()
