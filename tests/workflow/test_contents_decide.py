"""Content decides what runs again: not times, not Snakemake's records, and not that something above was made again."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from .conftest import Project, copy_project, finished_once
from .counts import EXTRA_OBJECTIVES, GRPO_AND_BELOW, GRPO_EPOCHS, ON_POLICY_EPOCHS

pytestmark = pytest.mark.workflow

RESULTS = "results/smoke"
RCE = f"{RESULTS}/lever/preset~world/rce/seed~0/epoch~2/selector.safetensors"
INITIAL = f"{RESULTS}/lever/preset~world/init/seed~0/selector.safetensors"
GRPO = f"{RESULTS}/lever/preset~world/grpo/base~2/beta~0.15/seed~0/epoch~2/selector.safetensors"
EMBEDDINGS = f"{RESULTS}/lever/embeddings/train.safetensors"
BELOW_RCE = GRPO_AND_BELOW | {
    **EXTRA_OBJECTIVES,
    "select_demonstrations": GRPO_EPOCHS + ON_POLICY_EPOCHS + sum(EXTRA_OBJECTIVES.values()) + 1,
}
BELOW_EMBEDDINGS = {"train_rce_epoch", "train_grpo_epoch", "train_on_policy_epoch", "sample_pools", "select_baseline"}
STARTED = re.compile(r"^Job (\d+): ", re.MULTILINE)  # a skipped job is never started
FINISHED = re.compile(r"^Finished jobid: (\d+) \(Rule: (\w+)\)", re.MULTILINE)
LOG = re.compile(r"^Complete log\(s\): (.+)$", re.MULTILINE)
LONG_AGO = 1_600_000_000


def ran(text: str) -> dict[str, int]:
    """Return the number of started jobs by rule, from the log that Snakemake names at its end."""
    logged = LOG.search(text)
    text = Path(logged[1]).read_text() if logged else text
    rules = dict(FINISHED.findall(text))
    return dict(Counter(rules[job] for job in STARTED.findall(text)))


def run(project: Project, *words: str) -> dict[str, int]:
    """Run and return the number of started jobs by rule."""
    return ran(project.snakemake("--cores", "2", *words))


@contextmanager
def put_back(path: Path) -> Iterator[bytes]:
    """Put a file back as it was, with its time, after the block."""
    content, stat = path.read_bytes(), path.stat()
    try:
        yield content
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@contextmanager
def flipped(path: Path) -> Iterator[None]:
    """Flip the last bit of the last tensor for the time of the block; in a file of another time than its job's."""
    with put_back(path) as content:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        os.utime(path, (LONG_AGO, LONG_AGO))  # else it would depend on the time since the end of the job
        yield


Change = Callable[[Project], AbstractContextManager[object]]


class Scenario(NamedTuple):
    """A change, the number of planned jobs of the whole run after it, and the jobs that one file needs."""

    change: Change
    planned: int
    computed: dict[str, int]
    target: str = GRPO


def checkpoint(bit: int, time_s: int | None = None) -> Change:
    """Flip bits of a checkpoint in a new file: of now, of a time, or at 0 of the time of the job."""

    @contextmanager
    def change(project: Project) -> Iterator[None]:
        path = project.folder / RCE
        content, stat = path.read_bytes(), path.stat()
        path.unlink()  # the store may keep the same file
        path.write_bytes(content[:-1] + bytes([content[-1] ^ bit]))
        if time_s is not None:
            os.utime(path, (time_s, time_s) if time_s else (stat.st_atime, stat.st_mtime))
        try:
            yield
        finally:
            path.unlink()
            path.write_bytes(content)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    return change


def edit(name: str, old: str, new: str) -> Change:
    return lambda project: project.edited(name, old, new)


def forgetful(change: Change) -> Change:
    """Return a change that deletes Snakemake's record of all jobs."""

    def of(project: Project) -> AbstractContextManager[object]:
        shutil.rmtree(project.folder / ".snakemake")
        return change(project)

    return of


@contextmanager
def copied(project: Project) -> Iterator[None]:
    """Put a copy of the results in their place, as `cp -r` makes it, without Snakemake's records."""
    results = project.folder / RESULTS
    shutil.copytree(results, results.with_name("copy"), copy_function=shutil.copyfile)
    shutil.rmtree(results)
    results.with_name("copy").rename(results)
    shutil.rmtree(project.folder / ".snakemake")
    yield


SMOKE, LOSS = "config/smoke.yaml", "lever_pipe/losses/kl.py"
BETA_MORE = GRPO.replace("0.15/seed~0/epoch~2", "0.3/seed~0/epoch~1")
EPOCH_MORE = GRPO.replace("0.15/seed~0/epoch~2", "0/seed~0/epoch~3")
CELLS = f"{RESULTS}/lever/answers/baseline/cells.jsonl"
OFFLINE = {"train_grpo_epoch": 2}
RATE = ("config.yaml", "grpo: {learning_rate: 1.0e-4", "grpo: {learning_rate: 2.0e-4")
SCENARIOS = {
    "a checkpoint is touched": Scenario(checkpoint(0), 0, {}),
    "other bytes of a later time": Scenario(checkpoint(1), 41, OFFLINE),
    "other bytes of an older time": Scenario(checkpoint(2, LONG_AGO), 41, OFFLINE),
    # A bit that flips at the time of the job is damage, and made good from the store.
    "a bit flips": Scenario(checkpoint(4, 0), 42, {}),
    "a value changes without Snakemake's records": Scenario(forgetful(edit(*RATE)), 24, OFFLINE),
    "results are copied": Scenario(copied, 0, {}),
    # On-policy selectors and agents may take this form of the penalty, so their code is another one, too.
    "a loss has another sign": Scenario(edit(LOSS, "log_ratio) - log", "log_ratio) + log"), 48, OFFLINE),
    "a stage is written otherwise": Scenario(
        edit("lever_pipe/stages/examples.py", "\n    split = ", "\n    split = 0 or "), 82, {"prepare_examples": 1}
    ),
    "a beta more": Scenario(
        edit(SMOKE, "kl_betas: [0, 0.15]", "kl_betas: [0, 0.15, 0.3]"),
        14, {"train_grpo_epoch": 1}, BETA_MORE,
    ),
    "an epoch more": Scenario(  # of beta 0; the long run has already trained the one of beta 0.15
        edit(SMOKE, "grpo_epochs: 2", "grpo_epochs: 3"),
        14, {"train_grpo_epoch": 1}, EPOCH_MORE,
    ),
    "a sample count more": Scenario(
        edit(SMOKE, "samples: [20, 40]", "samples: [20, 30, 40]"), 11, {"score_answers": 1}, CELLS
    ),
    "a checkpoint is replaced where its old one was read": Scenario(checkpoint(8), 41, OFFLINE),
}  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_content_decides_and_a_change_taken_back_computes_nothing(smoke: Project, scenario: Scenario) -> None:
    before = (smoke.folder / GRPO).read_bytes()
    with scenario.change(smoke):
        assert sum(smoke.planned().values()) == scenario.planned
        text = smoke.snakemake("--cores", "2", "--", scenario.target)
        assert ran(text) == scenario.computed
        assert ("found damage" in text) == (scenario is SCENARIOS["a bit flips"])
        assert ((smoke.folder / GRPO).read_bytes() != before) == (scenario.computed == OFFLINE)
    assert run(smoke, "--", GRPO, CELLS) == {}
    assert (smoke.folder / GRPO).read_bytes() == before


class TestContent:
    def test_without_params_among_the_triggers_contents_still_count(self, smoke: Project) -> None:
        with smoke.edited("config.yaml", "grpo: {learning_rate: 1.0e-4", "grpo: {learning_rate: 2.0e-4"):
            assert smoke.planned("--rerun-triggers", "mtime", "--", GRPO) == {}
            with flipped(smoke.folder / RCE):
                assert smoke.planned("--rerun-triggers", "mtime", "--", GRPO) == {"train_grpo_epoch": 2}

    def test_other_embeddings_of_an_older_time_rerun_exactly_what_reads_them(self, smoke: Project) -> None:
        with flipped(smoke.folder / EMBEDDINGS):
            planned = smoke.planned()
        assert planned.keys() >= BELOW_EMBEDDINGS
        assert not planned.keys() & {"embed_examples", "prepare_examples", "generate_world", "train_agent"}

    def test_the_same_tensors_in_another_file_rerun_nothing(self, smoke: Project) -> None:
        from safetensors.numpy import load_file, save_file

        path = smoke.folder / RCE
        with put_back(path) as content:
            save_file(load_file(path), path, metadata={"written": "by another program"})
            assert path.read_bytes() != content
            assert smoke.planned() == {}


class TestCutOff:
    def test_without_a_store_it_stops_there_too(self, smoke: Project) -> None:
        words = ("--config", "store=null", "--forcerun", "prepare_examples", "--", GRPO, CELLS)
        assert run(smoke, *words) == {"prepare_examples": 2}
        assert smoke.planned() == {}

    def test_what_somebody_replaced_outlives_a_rerun_above_it(self, smoke: Project) -> None:
        with flipped(smoke.folder / RCE):
            replaced = (smoke.folder / RCE).read_bytes()
            assert smoke.planned("--", RCE) == {}
            assert run(smoke, "--forcerun", "prepare_examples", "--", RCE) == {"prepare_examples": 1}
            assert (smoke.folder / RCE).read_bytes() == replaced
            assert smoke.planned() == BELOW_RCE
        assert smoke.planned() == {}

    def test_a_time_to_come_stops_no_run(self, smoke: Project) -> None:
        os.utime(smoke.folder / EMBEDDINGS, (2_051_222_400, 2_051_222_400))
        assert smoke.planned() == {}
        assert run(smoke, "--force", "--", GRPO) == {"train_grpo_epoch": 1}

    def test_another_command_runs_although_what_it_reads_comes_out_the_same(self, smoke: Project) -> None:
        line = "python -m lever_pipe initialise_selector {params.files:q}"
        with smoke.edited("workflow/rules/training.smk", line, line.replace(" {params", "  {params")):
            started = run(smoke, "--forcerun", "prepare_examples", "--", INITIAL)
        assert started.keys() == {"prepare_examples", "initialise_selector"}
        assert run(smoke, "--", INITIAL) == {"initialise_selector": 1}


class TestRecords:
    def test_another_torch_plans_what_it_computed_unless_that_is_no_reason(self, smoke: Project) -> None:
        manifests = list((smoke.folder / RESULTS).rglob("*run.json"))
        with ExitStack() as files:
            for manifest in manifests:
                content = json.loads(files.enter_context(put_back(manifest)))
                content["versions"]["torch"] = "2.0.0"
                manifest.write_text(json.dumps(content))
            planned, computing = (
                smoke.planned(),
                {"initialise_selector", "train_rce_epoch", "answer_prompts", "train_agent"},
            )
            assert planned.keys() >= computing
            assert not planned.keys() & {"generate_world", "prepare_examples", "prepare_tasks"}
            # A stage that collects from manifests has read others.
            assert not smoke.planned("--config", "rerun_on_library_versions=false").keys() & computing
        assert smoke.planned() == {}

    def test_files_without_their_manifest_are_not_trusted(self, smoke: Project) -> None:
        """As after a kill between them; Snakemake itself does not miss a file without readers."""
        manifest = smoke.folder / Path(RCE).with_name("run.json")
        manifest.unlink()
        assert smoke.planned()["train_rce_epoch"] == 1
        assert run(smoke) == {}  # from the store
        assert manifest.exists()
        assert smoke.planned() == {}

    def test_an_agent_of_a_model_folder_is_made_once(self, smoke: Project) -> None:
        shutil.copytree(smoke.folder / RESULTS / "intention/warm_start/policy", smoke.folder / "models/policy")
        of = ("results=results/model", "intention={model: {folder: models/policy}, grpo: {steps: 2}}")
        target = "results/model/intention/arm~baseline/seed~0/done.json"
        assert run(smoke, "--config", *of, "--", target) == {"train_agent": 1}, "the tasks are in the store"
        above = ("--forcerun", "prepare_tasks")
        assert run(smoke, "--config", *of, *above, "--", target) == {"prepare_tasks": 1}
        shutil.rmtree(smoke.folder / ".snakemake")
        assert smoke.planned("--config", *of, "--", target) == {}
        shutil.rmtree(smoke.folder / "results/model")
        assert run(smoke, "--config", *of, "--", target) == {}, "all is in the store"

    def test_a_raw_file_may_be_named_in_several_ways(self, smoke: Project) -> None:
        world = f"{RESULTS}/world"
        names = {
            "train_questions": f"./{world}/OpenEnded_mscoco_train2014_questions.json",
            "train_annotations": f"{world}/mscoco_train2014_annotations.json",
            "eval_questions": f"{smoke.folder}/{world}/OpenEnded_mscoco_val2014_questions.json",
            "eval_annotations": f"{world}/../world/mscoco_val2014_annotations.json",
            "train_images": f"{world}/train2014",
            "eval_images": f"./{world}/val2014",
        }
        words = ("--config", "results=results/files", f"data={json.dumps({'source': 'files', 'files': names})}")
        target = ("--", "results/files/lever/examples/eval.summary.json")
        assert run(smoke, *words, *target) == {"prepare_examples": 2}
        assert smoke.planned(*words, *target) == {}


OWN = "results/mine"
OWN_GRPO, OWN_CELLS = (path.replace(RESULTS, OWN) for path in (GRPO, CELLS))
OWN_EMBEDDINGS = tuple(f"{OWN}/lever/embeddings/{split}.safetensors" for split in ("train", "eval"))
READ_AGAIN = {"prepare_examples": 1, "embed_examples": 1}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    """Return a project with the same data in files of a user's own; all but the first stage is in the store."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(finished_once(tmp_path_factory, store=True).folder, folder, dirs_exist_ok=True)
    return Own(Project(folder))


class Own:
    """A project whose questions and images are files that no rule makes."""

    words = ("--configfile", "config/smoke.yaml", "own.json")

    def __init__(self, project: Project) -> None:
        self.project, world = project, project.folder / RESULTS / "world"
        shutil.copytree(world, project.folder / "own")
        names = {"train_images": "own/train2014", "eval_images": "own/val2014"}
        for split, name in (("train", "train"), ("eval", "val")):
            names[f"{split}_questions"] = f"own/OpenEnded_mscoco_{name}2014_questions.json"
            names[f"{split}_annotations"] = f"own/mscoco_{name}2014_annotations.json"
        values = {"results": OWN, "data": {"source": "files", "files": names}}
        (project.folder / "own.json").write_text(json.dumps(values))
        assert self.run(OWN_GRPO, OWN_CELLS) == {"prepare_examples": 2}

    def run(self, *targets: str) -> dict[str, int]:
        return run(self.project, *self.words, "--", *targets)

    def planned(self, *words: str) -> dict[str, int]:
        return self.project.planned(*self.words, *words, "--", OWN_GRPO, OWN_CELLS)

    def images(self, split: str) -> list[Path]:
        """Return the images of a split's first questions that are not the same picture."""
        rows = (self.project.folder / OWN / f"lever/examples/{split}.jsonl").read_text().splitlines()
        names = {row["image_digest"]: row["image"] for row in map(json.loads, rows)}
        return [
            self.project.folder / "own" / {"train": "train2014", "eval": "val2014"}[split] / n for n in names.values()
        ]

    @contextmanager
    def exchanged(self, split: str, change: Callable[[Path, Path], object]) -> Iterator[Path]:
        """Change the first image, given another one, for the time of the block."""
        image, *others = self.images(split)
        with put_back(image):
            try:
                change(image, others[change is _link])  # each change has unique content, so no store has it yet
                yield image
            finally:
                image.unlink(missing_ok=True)  # it may be a link by now


def _become(image: Path, content: Path) -> None:
    image.write_bytes(content.read_bytes())


def _link(image: Path, target: Path) -> None:
    image.unlink()
    image.symlink_to(target)


def _copy(image: Path, _: Path) -> None:
    content = image.read_bytes()
    image.unlink()
    image.write_bytes(content)


def _link_to_copy(image: Path, _: Path) -> None:
    _link(image, Path(shutil.copyfile(image, image.with_suffix(".copy"))))


class TestOwnImages:
    @pytest.mark.parametrize("change", [_become, _link])
    def test_an_image_of_the_train_split_reruns_what_reads_it(
        self, own: Own, change: Callable[[Path, Path], object]
    ) -> None:
        with own.exchanged("train", change) as image:
            planned = own.planned()
            assert planned.keys() >= {"prepare_examples", "embed_examples", "generate_rl_data", "train_grpo_epoch"}
            text = own.project.tool("why", OWN_EMBEDDINGS[0], *own.words)
            assert f"prepare_examples runs because the images differ: {image.name} has other content." in text
            assert own.run(OWN_EMBEDDINGS[0]) == READ_AGAIN
        assert own.run(OWN_GRPO, OWN_CELLS) == {}, "all is in the store"

    def test_an_image_of_the_eval_split_trains_nothing(self, own: Own) -> None:
        with own.exchanged("eval", _become):
            planned = own.planned()
            assert planned.keys() >= {"prepare_examples", "embed_examples", "answer_prompts", "score_answers"}
            assert (planned["prepare_examples"], planned["embed_examples"]) == (1, 1)
            assert not [rule for rule in planned if rule.startswith(("train_", "generate_", "propose_"))]
            assert own.run(OWN_EMBEDDINGS[1]) == READ_AGAIN
        assert own.run(OWN_GRPO, OWN_CELLS) == {}

    @pytest.mark.parametrize("change", [_copy, _link_to_copy, lambda image, _: os.utime(image, (LONG_AGO, LONG_AGO))])
    def test_the_same_picture_in_another_file_reruns_nothing(
        self, own: Own, change: Callable[[Path, Path], object]
    ) -> None:
        with own.exchanged("train", change):
            assert own.planned() == {}

    def test_a_missing_image_is_planned_and_stops_a_run(self, own: Own) -> None:
        with own.exchanged("train", lambda image, _: image.unlink()) as image:
            assert own.planned()["prepare_examples"] == 2
            elsewhere = ("--config", "results=results/else", "--", OWN_GRPO.replace("mine", "else"))  # in the store
            done = own.project.call(*own.words, "--cores", "1", *elsewhere)
            location = image.relative_to(own.project.folder)
            messages = rf"expected an image for each question; found no {location} \(question \d+, entry \d+ of own/"
            assert done.returncode
            assert re.search(messages, done.stdout)
            assert ran(done.stdout) == {}
            traced = own.project.tool("trace", OWN_EMBEDDINGS[0], *own.words)
            assert f"images: {location} is missing" in traced
        assert own.planned() == {}


class TestStore:
    def test_results_that_were_deleted_come_back_without_computing(self, smoke: Project) -> None:
        selector = (smoke.folder / GRPO).read_bytes()
        page = (smoke.folder / RESULTS / "report.html").read_bytes()
        shutil.rmtree(smoke.folder / RESULTS)
        assert re.search(r"\d\d+ will come from the store", smoke.snakemake("--dry-run"))
        found = json.loads(smoke.tool("plan", "--json", "--configfile", "config/smoke.yaml", "--", GRPO))
        assert all(rule["skipped"] == rule["jobs"] > 0 for rule in found["rules"])
        assert run(smoke) == {}
        assert (smoke.folder / GRPO).read_bytes() == selector
        assert (smoke.folder / RESULTS / "report.html").read_bytes() == page
        assert smoke.planned() == {}

    def test_a_second_working_directory_computes_nothing(self, smoke: Project, tmp_path: Path) -> None:
        second = copy_project(tmp_path)
        words = ("--config", f"store={{folder: {smoke.folder}/.lever_pipe/store}}")
        assert run(second, *words, "--", GRPO) == {}
        assert (second.folder / GRPO).read_bytes() == (smoke.folder / GRPO).read_bytes()
        manifest = json.loads((second.folder / Path(GRPO).parent / "run.json").read_text())
        assert manifest["paths"]["selector"] == GRPO

    def test_one_line_switches_it_off(self, project: Project) -> None:
        target = f"{RESULTS}/intention/tasks/test.jsonl"
        project.snakemake("--cores", "2", "--config", "store=null", "--", target)
        assert not (project.folder / ".lever_pipe").exists()


OWN_RULES = f"""

rule own:
    input:
        "in.txt",
        "{RESULTS}/lever/pools/train.run.json",
    output:
        "own.txt",
    params:
        word="a",
    message:
        "What a user adds"
    shell:
        "cat {{input}} > {{output}}; echo {{params.word}} >> {{output}}"
"""


def test_a_rule_without_a_manifest_is_snakemakes_own_affair(smoke: Project) -> None:
    """Times and records decide of it, and of nothing that it reads."""
    snakefile = smoke.folder / "Snakefile"
    text = snakefile.read_text()
    (smoke.folder / "in.txt").write_text("in")
    try:
        snakefile.write_text(text + OWN_RULES)
        assert run(smoke, "--", "own.txt") == {"own": 1}
        assert smoke.planned("--", "own.txt") == {}
        os.utime(smoke.folder / EMBEDDINGS)
        assert smoke.planned("--", "own.txt") == {}
        snakefile.write_text(text + OWN_RULES.replace('word="a"', 'word="b"'))
        assert smoke.planned("--", "own.txt") == {"own": 1}
        snakefile.write_text(text + OWN_RULES)
        (smoke.folder / "in.txt").write_text("another")
        assert run(smoke, "--", "own.txt") == {"own": 1}
        assert (smoke.folder / "own.txt").read_text().startswith("another")
    finally:
        snakefile.write_text(text)
