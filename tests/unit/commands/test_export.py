"""Words of `export`, and curves that every tracker gives back as they were written."""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

import pytest
from agent_runs import Study, card

from lever_pipe.__main__ import main
from lever_pipe.base import storage
from lever_pipe.base.errors import RecordError
from lever_pipe.commands import export_tool
from lever_pipe.commands.trackers import TRACKERS, TrackedRun

TRAINING = """stage,mode,base_rce_epoch,kl_beta,seed,epoch,metric,value,preset
rce,,,,0,1,loss,11.7775341,world
rce,,,,0,2,loss,1e-300,world
rce,,,,0,2,entropy,,world
grpo,on_policy,2,0.15,0,1,loss,-0.1,world
"""
CURVES = """arm,seed,step,split,mode,metric,value
start,0,0,test,greedy,reward,0.5625
bundle,0,1,train,,reward,123456789
bundle,0,1,val,sampled,reward,0.219148425
bundle,0,1,val,greedy,reward,0.219148425
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, text in (("lever/tables/training.csv", TRAINING), ("intention/tables/curves.csv", CURVES)):
        path = tmp_path / "smoke" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "smoke/lever/tables/lineage.csv").write_text("group,field,value\npreset~world/rce/epoch~2,lvlm,tiny\n")
    return tmp_path / "smoke"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    return capsys.readouterr().err


def test_each_row_of_each_file_is_a_value_of_the_run_that_it_names(results: Path) -> None:
    runs = {run.name: run for run in export_tool.tracked_runs(results)}
    assert {name: dict(run.values) for name, run in runs.items()} == {
        "preset~world/rce/seed~0": {(1, "loss"): 11.7775341, (2, "loss"): 1e-300},
        "preset~world/on_policy/base~2/beta~0.15/seed~0": {(1, "loss"): -0.1},
        "arm~start/seed~0": {(0, "test/greedy/reward"): 0.5625},
        "arm~bundle/seed~0": {
            (1, "train/reward"): 123456789.0,
            (1, "val/sampled/reward"): 0.219148425,
            (1, "val/greedy/reward"): 0.219148425,
        },
    }
    assert [run.kind for _, run in sorted(runs.items())] == [
        "agent",
        "agent",
        "on_policy",
        "rce",
    ]
    assert runs["preset~world/rce/seed~0"].facts == {"lineage.lvlm": "tiny"}


def test_a_run_states_what_its_card_does_also_where_nothing_is_trained(results: Path) -> None:
    with (results / "intention/tables/curves.csv").open("a") as handle:
        handle.write("gpt,0,0,test,greedy,reward,0.5\n")
    folders = {"start": "start", "bundle": "arm~bundle/seed~0", "gpt": "served~gpt"}
    for name, folder in folders.items():
        storage.write_row(results / "intention" / folder / "run.json", card(Study()).model_copy(update={"code": name}))
    runs = {run.name: run for run in export_tool.tracked_runs(results)}
    assert {name: runs[f"arm~{name}/seed~0"].facts.get("code") for name in folders} == {name: name for name in folders}


def test_what_cannot_be_exported_is_named(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(results.parent / "out")
    assert "Did you mean 'tensorboard'?" in said(capsys, "export", "tensorbord", str(results), out)
    assert "finish its run first" in said(capsys, "export", "mlflow", str(results.parent), out)
    assert "expected an empty folder" in said(capsys, "export", "mlflow", str(results), str(results))
    with (results / "intention/tables/curves.csv").open("a") as handle:
        handle.write("bundle,0,1,val,greedy,reward,0.3\n")
    assert "curves.csv:6: expected one row a value" in said(capsys, "export", "mlflow", str(results), out)
    (results / "lever/tables/training.csv").write_text("stage,value\nrce,x\n")
    assert "training.csv:2: expected a row of curves" in said(capsys, "export", "mlflow", str(results), out)
    assert not Path(out).exists()


def test_a_library_that_is_absent_is_named_with_its_extra(
    results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in TRACKERS:
        for module in [name, *(found for found in sys.modules if found.startswith(f"{name}."))]:
            monkeypatch.setitem(sys.modules, module, None)
        told = said(capsys, "export", name, str(results), str(results.parent / name))
        assert f"expected the library {name}" in told and f"lever-pipe[{name}]" in told


def awkward(n: int) -> list[float]:
    """Return the edges of 64-bit floats, what 32 bits or nine digits would round, and any others of every size."""
    edges = [0.0, 0.1 + 0.2, 1 / 3, -1e-300, 5e-324, 1.7976931348623157e308, 2.0**53 + 2, 123456789.0, -1.0]
    draw = random.Random(0)
    return edges + [draw.uniform(-1, 1) * 10.0 ** draw.randint(-40, 40) for _ in range(n)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_gives_back_every_bit(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    tracker, values = TRACKERS[name], awkward(200)
    facts = {"config.rce.learning_rate": "0.0001", "lineage.decode": "ends ; \u00e9", "code": "48356e6094bf6c89"}
    facts |= {f"config.{place}": str(place) for place in range(150)}
    metrics = ("loss", "val/greedy/reward", "train/end_complete")
    runs = [
        TrackedRun(run, "rce", facts, {(7 * step, metrics[step % k]): value for step, value in enumerate(values)})
        for k, run in ((1, "preset~a/grpo/base~2/beta~1e-05/seed~3"), (3, "preset~world/rce/seed~0"))
    ]
    tracker.write(runs, tmp_path, "smoke")
    export_tool.require_same(runs, tracker.read(tmp_path, "smoke"), of=name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRACKERS)
def test_an_export_is_the_file_row_for_row(
    name: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(name)
    assert main(["export", name, str(results), str(tmp_path / "out")]) == 0
    assert "6 runs, 9 values, read back and equal" in capsys.readouterr().out
    read = TRACKERS[name].read(tmp_path / "out", "smoke")
    with (results / "intention/tables/curves.csv").open(newline="") as handle:
        for line in csv.DictReader(handle):
            metric = "/".join(filter(None, (line["split"], line["mode"], line["metric"])))
            values = read[f"arm~{line['arm']}/seed~{line['seed']}"]
            assert f"{values[int(line['step']), metric]:.9g}" == line["value"]


def test_any_other_value_run_or_row_that_is_read_back_is_refused() -> None:
    run = TrackedRun("arm~a/seed~0", "agent", {}, {(1, "loss"): 0.1, (2, "loss"): 0.2})
    same = {run.name: dict(run.values)}
    export_tool.require_same([run], same, of="x")
    rounded = {**same[run.name], (1, "loss"): 0.10000000149011612}  # as a float of 32 bits
    for other in ({}, {run.name: rounded}, {run.name: {(1, "loss"): 0.1}}, {**same, "more": {(1, "loss"): 0.1}}):
        with pytest.raises(RecordError, match="expected every row as written"):
            export_tool.require_same([run], other, of="x")
