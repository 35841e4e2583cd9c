"""From a number back to what made it: which artefacts are on the way, which are not, and how they are told."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import card_tree as tree
import pytest

from lever_pipe.base import contents, storage
from lever_pipe.base.errors import ConfigError, LeverPipeError, UnknownMemberError
from lever_pipe.commands import trace, trace_tool, trace_values
from lever_pipe.commands.trace_values import asked_for

RESULTS = Path("results")
STUDY = "results/lever"
TABLES = f"{STUDY}/tables"
SEEDS, BETAS = (0, 1), ("0", "0.15")
REFERENCE = "resources/reference/lever-plus-published.csv"


def rce(seed: int) -> str:
    return f"preset~world/rce/seed~{seed}/epoch~1"


def grpo(beta: str, seed: int) -> str:
    return f"preset~world/grpo/base~1/beta~{beta}/seed~{seed}/epoch~1"


POLICIES = [*map(rce, SEEDS), *(grpo(beta, seed) for beta in BETAS for seed in SEEDS)]
GROUPS = ["preset~world/rce/epoch~1", *(f"preset~world/grpo/base~1/beta~{beta}/epoch~1" for beta in BETAS)]
ACCURACIES = dict(zip(GROUPS, (40.125, 51.0, 62.5), strict=True))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a study of three policies with two seeds, from raw data to a table."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tree.write("raw/train.json", "{}")
        examples = {name: (f"{STUDY}/examples/{name}.jsonl", name) for name in ("eval", "train")}
        reads: dict[str, tree.Paths] = {"train_questions": "raw/train.json"}
        tree.make(f"{STUDY}/examples/run.json", "prepare_examples", examples, inputs=reads)
        for policy in POLICIES:
            train(policy)
        answer_and_score()
        collect()
    return folder


@pytest.fixture(autouse=True)
def _study(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a copy of the study, with the times of its files."""
    shutil.copytree(made, tmp_path / "study")
    monkeypatch.chdir(tmp_path / "study")
    contents._remembered.cache_clear()


def train(policy: str) -> None:
    seed = int(policy.split("seed~")[1][0])
    is_rce = "/rce/" in policy
    groups = {"groups": f"{STUDY}/examples/train.jsonl"}
    reads = groups if is_rce else {"start": f"{STUDY}/{rce(seed)}/selector.safetensors"}
    outputs = {
        "selector": (f"{STUDY}/{policy}/selector.safetensors", {"w": [len(policy), seed]}),
        "metrics": (f"{STUDY}/{policy}/metrics.json", {"of": policy}),
    }
    config = {"seed": seed, "learning_rate": 0.5, "empty": None, "long": list(range(9))}
    stage = "train_rce_epoch" if is_rce else "train_grpo_epoch"
    tree.make(f"{STUDY}/{policy}/run.json", stage, outputs, inputs=reads, config=config)
    chosen = {"selections": (f"{STUDY}/{policy}/selections.jsonl", policy)}
    selector = {"selector": f"{STUDY}/{policy}/selector.safetensors"}
    tree.make(f"{STUDY}/{policy}/selections.run.json", "select_demonstrations", chosen, inputs=selector)


def answer_and_score() -> None:
    for seed in SEEDS:
        folder = f"{STUDY}/answers/preset~world/seed~{seed}"
        of_seed = [f"{STUDY}/{policy}/selections.jsonl" for policy in POLICIES if f"seed~{seed}" in policy]
        reads: dict[str, tree.Paths] = {"selections": of_seed, "eval_examples": f"{STUDY}/examples/eval.jsonl"}
        config = {"lvlm": {"model_identity": "94408fe1831b2711", "dtype": "float32"}}
        answers = {"answers": (f"{folder}/answers.jsonl", str(seed))}
        tree.make(f"{folder}/run.json", "answer_prompts", answers, inputs=reads, config=config)
    for policy in POLICIES:
        outputs = {
            "cells": (f"{STUDY}/{policy}/scores/cells.jsonl", f"cells of {policy}"),
            "per_question": (f"{STUDY}/{policy}/scores/per_question.jsonl", f"questions of {policy}"),
        }
        reads = {"answers": f"{STUDY}/answers/preset~world/seed~{policy.split('seed~')[1][0]}/answers.jsonl"}
        tree.make(f"{STUDY}/{policy}/scores/run.json", "score_answers", outputs, inputs=reads)


def collect() -> None:
    lines = [f"{policy},grpo,0,prefix,40,1,{50 + i}.5,40" for i, policy in enumerate(POLICIES)]
    scores = "policy,stage,seed,subset,samples,shots,accuracy,n_questions\n" + "\n".join(lines)
    outputs = {"scores": (f"{TABLES}/scores.csv", scores), "training": (f"{TABLES}/training.csv", "stage,value\n")}
    reads: dict[str, tree.Paths] = {
        "cells": [f"{STUDY}/{policy}/scores/cells.jsonl" for policy in POLICIES],
        "metrics": [f"{STUDY}/{policy}/metrics.json" for policy in POLICIES],
    }
    tree.make(f"{TABLES}/run.json", "collect_results", outputs, inputs=reads)
    head = "group,samples,shots,accuracy,low,high\n"
    cells = [
        f"{group},40,{shots},{value + k},1,2" for group, value in ACCURACIES.items() for k, shots in enumerate("12")
    ]
    reads = {"per_question": [f"{STUDY}/{policy}/scores/per_question.jsonl" for policy in POLICIES]}
    pairs = [f"best,{GROUPS[1]},{GROUPS[0]},40,1,3.5,1", f"best,{GROUPS[2]},{GROUPS[0]},40,1,9.5,1"]
    family = {
        "id": "family",
        "columns": ["Policy", "Difference", "Holm p"],
        "rows": [["GRPO", "+3.50", "1.000"]],
        "groups": [f"{GROUPS[1]} {GROUPS[0]}"],
    }
    intervals: dict[str, tuple[str, Any]] = {
        "intervals": (f"{TABLES}/intervals.csv", head + "\n".join(cells)),
        "comparisons": (
            f"{TABLES}/comparisons.csv",
            "\n".join(["family,left,right,samples,shots,difference,p_holm", *pairs]),
        ),
        "tables": (f"{TABLES}/comparisons.json", [family]),
    }
    tree.make(f"{TABLES}/comparisons.run.json", "compare_policies", intervals, inputs=reads)
    tree.write(
        REFERENCE,
        "source_file,kl_beta,epoch,samples,shot,value\nfile A,0.15(stored 0.1),1,40,1,62.5\nfile B,0.2,1,40,1,62.5\n",
    )
    rows = [[group, "ours", f"{value:.2f} [1.0, 2.0]"] for group, value in ACCURACIES.items()]
    table = {
        "id": "overview",
        "columns": ["Policy", "Source", "Shot 1"],
        "rows": [*rows, ["KL", "published", "62.5"], ["Mean of a run", "ours", "77.7"]],
        "groups": [*GROUPS, "published/grpo/beta~0.15/epoch~1", GROUPS[1]],
    }
    built: dict[str, tuple[str, Any]] = {
        "tables": (f"{TABLES}/documents.json", [table]),
        "csv": (
            f"{TABLES}/documents/overview.csv",
            "Policy,Source,Shot 1\n" + "\n".join(f"{g},ours,1" for g in GROUPS),
        ),
    }
    reads = {"scores": f"{TABLES}/scores.csv", "training": f"{TABLES}/training.csv", "reference": REFERENCE}
    reads |= {"intervals": f"{TABLES}/intervals.csv"}
    tree.make(f"{TABLES}/documents.run.json", "tabulate_documents", built, inputs=reads)
    figures = {"figures": (f"{STUDY}/figures/curve.svg", "<svg/>")}
    tree.make(f"{STUDY}/figures.run.json", "plot_curves", figures, inputs={"training": f"{TABLES}/training.csv"})


def names(traced: trace.Traced) -> set[str]:
    return {step.name for step in traced.steps}


def back(what: str) -> trace.Traced:
    return trace_tool.traced_back(what, RESULTS)


class TestTheWay:
    def test_a_cell_leads_to_the_runs_of_its_row_alone(self) -> None:
        traced = back("overview:2:Shot 1")
        assert traced.asked.value == "51.00 [1.0, 2.0]"
        assert [(s.path, s.row, s.value) for s in traced.sources] == [(f"{TABLES}/intervals.csv", 3, "51.0")]
        trained = {step.artefact.card.as_posix() for step in traced.steps if step.made.stage.startswith("train")}
        assert trained == {f"{STUDY}/{policy}/run.json" for seed in SEEDS for policy in (rce(seed), grpo("0", seed))}
        assert {step.made.stage for step in traced.steps} == {
            *("tabulate_documents", "compare_policies", "score_answers", "answer_prompts", "select_demonstrations"),
            *("train_grpo_epoch", "train_rce_epoch", "prepare_examples"),
        }, "no collect_results: the value stands in intervals.csv"

    def test_makers_come_behind_what_they_made_and_are_told_by_place(self) -> None:
        steps = back("overview:2:Shot 1").steps
        for place, step in enumerate(steps):
            assert all(place < maker for maker in step.makers.values())
            for name, maker in step.makers.items():
                behind = steps[maker].artefact
                assert step.inputs[name] in behind.paths.values()
        assert len({step.artefact.card for step in steps}) == len(steps), "each once"

    def test_the_way_ends_at_raw_data_and_model_folders(self) -> None:
        steps = back("overview:2:Shot 1").steps
        raw = {(str(p), step.made.inputs[n]) for step in steps for n, p in step.inputs.items() if n not in step.makers}
        assert raw == {("raw/train.json", contents.digest(Path("raw/train.json")))}
        assert {value for step in steps for value in step.models.values()} == {"94408fe1831b2711"}

    def test_a_number_that_no_file_holds_leads_everywhere_for_its_policies(self) -> None:
        traced = back("overview:5:Shot 1")
        assert traced.sources == ()
        assert any("holds this value" in note for note in traced.notes)
        assert "collect_results" in names(traced)
        assert not any("beta 0.15" in name for name in names(traced))

    def test_the_same_number_of_another_policy_is_none_of_its_sources(self) -> None:
        path = Path(f"{TABLES}/intervals.csv")
        lines = path.read_text().rstrip("\n").split("\n")
        tree.write(path, "\n".join([*lines, f"{GROUPS[0]},40,1,51.0,1,2", f"{GROUPS[1]},20,1,51.0,1,2"]), now=True)
        assert [source.row for source in back("overview:2:Shot 1").sources] == [3], "nor is that of fewer samples"

    def test_a_table_may_print_what_its_own_stage_wrote_beside_it(self) -> None:
        difference, holm = back("family:1:Difference"), back("family:1:Holm p")
        for traced in (difference, holm):
            assert [(source.input, source.row) for source in traced.sources] == [("comparisons", 1)]
            assert set(traced.steps[0].outputs) == {"comparisons", "tables"}
        assert not any("beta 0.15" in name for name in names(difference))
        assert any("beta 0.15" in name for name in names(holm)), "an adjusted p depends on all of its family"

    def test_a_tie_may_have_been_rounded_either_way(self) -> None:
        assert [source.value for source in back("overview:1:3").sources] == ["40.125"], "printed as 40.12"

    def test_a_published_number_leads_to_its_row_alone(self) -> None:
        traced = back("overview:KL:Shot 1")
        assert [(source.path, source.keys["source_file"]) for source in traced.sources] == [(REFERENCE, "file A")]
        assert names(traced) == {"tabulate_documents"}
        assert set(traced.steps[0].inputs) == {"reference"}

    def test_a_row_of_a_long_file_leads_to_its_run(self) -> None:
        traced = back(f"{TABLES}/scores.csv:3:accuracy")
        assert traced.groups == (grpo("0", 0),)
        scored = [step.name for step in traced.steps if step.made.stage == "score_answers"]
        assert scored == ["score_answers of GRPO beta 0 epoch 1 of seed 0 (world, base 1)"]
        assert not any("metrics" in name for name in traced.steps[0].inputs), "scores.csv holds no metric"

    def test_a_whole_file_and_a_figure_lead_to_all_that_they_need(self) -> None:
        figure = back(f"{STUDY}/figures/curve.svg")
        assert [step.made.stage for step in figure.steps][:2] == ["plot_curves", "collect_results"]
        assert set(figure.steps[1].inputs) == {f"metrics[{i}]" for i in range(len(POLICIES))}
        assert figure.notes
        whole = back(f"{TABLES}/documents.json")
        assert sum(step.made.stage == "score_answers" for step in whole.steps) == len(POLICIES)

    def test_a_table_is_found_by_id_and_by_its_csv_file(self) -> None:
        by_file = back(f"{TABLES}/documents/overview.csv:1:Shot 1")
        assert (by_file.asked.table, by_file.groups) == ("overview", (GROUPS[0],))
        assert by_file.asked.value == "1"

    def test_files_say_whether_they_are_what_was_made(self) -> None:
        tree.write(f"{STUDY}/{rce(0)}/selector.safetensors", {"w": [0, 0]}, now=True)
        tree.write("raw/train.json", "[]", now=True)
        Path(f"{STUDY}/examples/eval.jsonl").unlink()
        states: dict[str, str] = {}
        for step in back("overview:1:Shot 1").steps:
            states |= {str(step.artefact.paths[name]): state for name, state in step.states.items()}
        assert states[f"{STUDY}/{rce(0)}/selector.safetensors"] in (trace.REPLACED, trace.OTHER)
        assert states["raw/train.json"] == trace.OTHER
        assert states[f"{STUDY}/{rce(1)}/selector.safetensors"] in (trace.AS_MADE, trace.AS_READ)
        assert f"{STUDY}/examples/eval.jsonl" in {k for k, v in states.items() if v == trace.MISSING}

    def test_what_nobody_made_is_refused(self) -> None:
        tree.write("results/lever/tables/stray.csv", "a,b\n1,2\n")
        with pytest.raises(UnknownMemberError, match=r"stray\.csv"):
            back("results/lever/tables/stray.csv:1:b")

    def test_moved_results_are_traced_where_they_are(self) -> None:
        Path("results").rename("moved")
        traced = trace_tool.traced_back("overview:2:Shot 1", Path("moved"))
        assert all(str(step.artefact.card).startswith("moved") for step in traced.steps)
        assert {step.made.stage for step in traced.steps} >= {"train_rce_epoch", "prepare_examples"}


class TestAsked:
    def test_rows_have_many_names(self) -> None:
        for row in ("2", GROUPS[1], f"Policy={GROUPS[1]}", f"{GROUPS[1]}|ours"):
            assert asked_for(f"overview:{row}:shot 1", RESULTS).row == 2

    def test_a_row_that_is_several_is_refused_with_their_numbers(self) -> None:
        with pytest.raises(ConfigError, match=r"found 4 with 'ours'.*1: .*; 2: "):
            asked_for("overview:ours:Shot 1", RESULTS)

    @pytest.mark.parametrize(
        ("what", "message"),
        [
            ("overveiw:1:Shot 1", "overview"),
            ("overview:9:Shot 1", "expected a row"),
            ("overview:0:Shot 1", "expected a row"),
            ("overview:1:Shot 7", "Shot 1"),
            ("overview:1:0", "expected a column"),
            ("nothing.csv:1:a", "expected a file"),
        ],
    )
    def test_what_is_not_there_is_refused(self, what: str, message: str) -> None:
        with pytest.raises(UnknownMemberError, match=message):
            asked_for(what, RESULTS)

    @pytest.mark.parametrize("what", ["x" * 5000, "\0:1:a", ":::", ".csv:1:a", "overview:1:", "overview::Shot 1", ""])
    def test_no_word_is_a_riddle(self, what: str) -> None:
        with pytest.raises(LeverPipeError):
            back(what)

    @pytest.mark.parametrize("content", ["", "[{]", "{}", '[{"id": "overview"}]', "[7, null]"])
    def test_a_broken_file_of_tables_is_refused(self, content: str) -> None:
        tree.write(f"{TABLES}/documents.json", content)
        with pytest.raises(LeverPipeError):
            back("overview:1:Shot 1")

    def test_a_csv_file_with_short_and_long_rows_is_read(self) -> None:
        tree.write(f"{TABLES}/scores.csv", "policy,accuracy\na\nb,1,2,3\n", now=True)
        assert back(f"{TABLES}/scores.csv:2:accuracy").asked.value == "1"
        Path(f"{TABLES}/scores.csv").write_bytes(b"policy,\xff\n1,2\n")
        with pytest.raises(LeverPipeError, match="expected CSV"):
            back(f"{TABLES}/scores.csv:1:1")

    def test_a_row_needs_a_column(self) -> None:
        with pytest.raises(ConfigError, match="Columns: Policy, Source, Shot 1"):
            asked_for("overview:1", RESULTS)


class TestNames:
    @pytest.mark.parametrize(
        ("row", "expected"),
        [
            ({"policy": "oracle", "stage": "baseline"}, {"baseline/oracle"}),
            ({"left": "a", "right": "b"}, {"a", "b"}),
            (
                {"preset": "world", "stage": "rce", "mode": "", "seed": "0", "epoch": "2", "kl_beta": ""},
                {"preset~world/rce/seed~0/epoch~2"},
            ),
            (
                {
                    "preset": "w",
                    "stage": "grpo",
                    "mode": "on_policy",
                    "base_rce_epoch": "5",
                    "kl_beta": "0",
                    "seed": "1",
                    "epoch": "3",
                },
                {"preset~w/on_policy/base~5/beta~0/seed~1/epoch~3"},
            ),
            ({"arm": "bundle", "seed": "2"}, {"arm~bundle/seed~2"}),
            ({"arm": "bundle", "reference": "baseline"}, {"arm~bundle", "arm~baseline"}),
            ({"metric": "x"}, set()),
        ],
    )
    def test_a_row_tells_whom_it_is_about(self, row: dict[str, str], expected: set[str]) -> None:
        assert trace_values.names_of(row) == expected

    def test_a_list_keeps_files_of_the_policies_and_of_nobody(self) -> None:
        kept = frozenset(("preset~world/rce/epoch~1", "baseline/oracle"))
        paths = {
            "r/lever/preset~world/rce/seed~3/epoch~1/metrics.json": True,
            "r/lever/preset~world/rce/seed~3/epoch~2/metrics.json": False,
            "r/lever/answers/preset~world/seed~0/counters.json": True,
            "r/lever/answers/preset~other/seed~0/counters.json": False,
            "r/lever/answers/baseline/counters.json": True,
            "r/lever/rl_data/shard~1/trajectories.jsonl": True,
        }
        assert {path: trace_values.keeps(path, kept) for path in paths} == paths

    def test_an_adjusted_p_depends_on_its_family(self) -> None:
        rows = [{"family": f, "left": f"{f}{i}", "right": "r"} for f in "ab" for i in range(2)]
        source = trace_values.FoundRow("comparisons", "x", 1, "p_holm", "1", {"family": "a"}, frozenset(("a0", "r")))
        assert trace_values.family_names(source, rows) == {"a0", "a1", "r"}
        assert trace_values.family_names(source._replace(column="p"), rows) == {"a0", "r"}

    def test_a_statistic_over_a_run_depends_on_its_earlier_epochs(self) -> None:
        assert trace_values.earlier_epochs(["preset~x/rce/epoch~3", "baseline/y"]) == {
            *("preset~x/rce/epoch~1", "preset~x/rce/epoch~2", "preset~x/rce/epoch~3", "baseline/y")
        }


def files_of(stage: str) -> set[str]:
    """Return the names of a stage's files, without importing what it computes with."""
    module = ast.parse((Path(trace.__file__).parents[1] / "stages" / f"{stage}.py").read_text())
    function = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == stage)
    return {argument.arg for argument in function.args.kwonlyargs} - {"config", "runtime"}


def test_what_outputs_need_are_files_of_their_stages() -> None:
    for stage, outputs in trace.NEEDS.items():
        for output, inputs in outputs.items():
            assert set(inputs) < files_of(stage), (stage, output)
            assert output in files_of(stage) or stage.startswith("plot_"), (stage, output)


class TestTold:
    def test_runs_that_differ_in_their_seed_are_one_entry(self) -> None:
        said = trace_tool.text(back("overview:2:Shot 1"))
        assert said.count("train_grpo_epoch") == 1
        assert "GRPO beta 0 epoch 1 (world, base 1), seeds 0, 1 (train_grpo_epoch)" in said
        assert "learning_rate 0.5" in said
        assert "empty" not in said
        assert "raw/train.json" in said
        assert "All of it: commit c0ffeec0ffee, python 3.11.7, on cpu" in said

    def test_runs_that_differ_otherwise_are_entries_of_their_own(self) -> None:
        card = Path(f"{STUDY}/{grpo('0', 1)}/run.json")
        values = json.loads(card.read_text())
        storage.write_json(card, values | {"code": "f" * 16})
        said = trace_tool.text(back("overview:2:Shot 1"))
        assert said.count("(train_grpo_epoch)") == 2
        assert "code ffffffffffffffff" in said

    def test_each_entry_is_told_once_and_then_by_its_number(self) -> None:
        said = trace_tool.text(back("overview:2:Shot 1"))
        numbers = [line.split("]")[0].strip() for line in said.splitlines() if line.strip().startswith("[")]
        assert numbers == [f"[{i}" for i in range(1, len(numbers) + 1)]
        assert said.count("] prepare_examples") == 1
        assert "see [" in said

    def test_as_data_its_shape_is_stable(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert trace_tool.main(["trace", "overview:2:Shot 1", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert set(found) == {
            *(
                "format",
                "what",
                "file",
                "table",
                "row",
                "column",
                "value",
                "cells",
                "policies",
                "sources",
                "notes",
                "steps",
            )
        }
        assert found["format"] == 1
        step = found["steps"][1]
        assert set(step) == {
            *("name", "card", "stage", "config", "code", "commit", "dirty", "versions", "device", "threads", "seconds"),
            *("models", "inputs", "outputs"),
        }
        assert set(step["inputs"]["per_question[2]"]) == {"path", "digest", "state", "made_by"}

    def test_text_goes_to_the_reader(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert trace_tool.main(["trace", "overview:2:Shot 1"]) == 0
        assert capsys.readouterr().out.startswith("51.00 [1.0, 2.0]: row 2, column Shot 1 of overview")


class TestCrate:
    def test_without_the_library_the_remedy_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "rocrate.rocrate", None)
        with pytest.raises(ConfigError, match="pip install"):
            trace_tool.main(["trace", "overview:2:Shot 1", "--ro-crate", "crate"])
        assert not Path("crate").exists()

    @pytest.mark.parametrize("folder", ["results", "crate"])
    def test_what_is_written_is_a_process_run_crate(self, folder: str) -> None:
        crates = pytest.importorskip("rocrate.rocrate")
        from lever_pipe.commands import trace_crate

        tree.write("raw/train.json", "[]", now=True)
        traced = back("overview:2:Shot 1")
        path = trace_crate.write(traced, Path(folder))
        crate: Any = crates.ROCrate(folder)
        root = crate.root_dataset
        assert root["conformsTo"].id == trace_crate.PROFILE
        actions = root["mentions"]
        assert len(actions) == len(traced.steps)
        for action in actions:
            assert action.type == "CreateAction"
            assert action["instrument"].type == "SoftwareApplication"
            assert action["result"]
            assert action["endTime"] >= action["startTime"]
        graph = {entity["@id"]: entity for entity in json.loads(path.read_text())["@graph"]}
        files = {name: entity for name, entity in graph.items() if entity["@type"] == "File"}
        own = Path(STUDY, rce(0), "selector.safetensors")
        inside = own.relative_to("results").as_posix()
        entity = files[inside if folder == "results" else own.absolute().as_uri()]
        assert entity["sha256"] == storage.digest(own)
        raw = files[Path("raw/train.json").absolute().as_uri()]
        assert "sha256" not in raw
        assert trace.OTHER in raw["description"]
