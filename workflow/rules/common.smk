import atexit
import gc
import itertools
import json
import time
from pathlib import Path

from lever_pipe.runtime import agent_plan, grid_plan, plan, snakemake_adapter
from lever_pipe.base import numerics
from lever_pipe.runtime import duplicates, failures, invocation, sizing
from lever_pipe.base.errors import LeverPipeError, MachineError
from lever_pipe.experiment.evaluation_config import EMULATED_ARMS
from lever_pipe.runtime.rerun import decision, sparing

STARTED = time.monotonic()

# A plan makes many lasting objects and few cycles; each search for garbage would pass over all of them again, and the
# last one, at the end of the process, would take each apart.
gc.set_threshold(50_000)
atexit.register(gc.freeze)

plan.lead_jobs_here(OWN)

try:
    EXPERIMENT = invocation.experiment_of(workflow, config, OWN)
    numerics.choose(EXPERIMENT.numerics)  # jobs inherit it
    JOBS = failures.Invocation()
    SPARING = sparing.Sparing(invocation.store_of(EXPERIMENT))
    room = sizing.rooms(
        EXPERIMENT,
        gpu_request=snakemake_adapter.gpu_request(workflow),
        starved=JOBS.starved,
    )
except LeverPipeError as fault:
    raise WorkflowError(str(fault)) from None

if workflow.is_main_process:
    JOBS.attach()

RESULTS = EXPERIMENT.results
LEVER = f"{RESULTS}/lever"
# Where a job's artefacts lie: those of a data set, of its pools, and of an LVLM's answers about them. In the documents'
# study all three are `LEVER`; the grid has a folder for each value of each axis (`runtime/grid_plan.py`).
OF_DATA = f"{RESULTS}/{{data}}"
OF_POOLS = f"{OF_DATA}{{sampled}}"
CORNER = f"{OF_POOLS}{{asked}}"
LVLM = {"lvlm": lambda wildcards: grid_plan.at(EXPERIMENT, wildcards).lvlm.model}


def shipped(path):
    """Return the path of what lies with this workflow."""
    return path if OWN == Path.cwd() else str(OWN / path)


def in_documents(pattern):
    """Return a path of the corner that holds the documents' study."""
    for name, value in grid_plan.DOCUMENTS.items():
        pattern = pattern.replace(f"{{{name}}}", value)
    return pattern


LVLM_ENVIRONMENT = f"../../envs/{'vllm' if plan.asks_vllm(EXPERIMENT) else 'gpu'}.yaml"


def asking(wildcards):
    """Return what a job that asks an LVLM is told, which changes no number."""
    told = grid_plan.at(EXPERIMENT, wildcards).lvlm.execution()
    words = ["--ledger", plan.ledger_folder(EXPERIMENT)]
    return words + (["--lvlm", told] if told != "{}" else [])


TABLES = f"{LEVER}/tables"
REFERENCE = shipped("resources/reference/lever-plus-published.csv")
REPORT = f"{RESULTS}/report.md"
PAGE = f"{RESULTS}/report.html"
APPENDIX = f"{RESULTS}/report"

INIT = f"{CORNER}/preset~{{preset}}/init/seed~{{seed}}"
SFT = f"{CORNER}/preset~{{preset}}/sft/seed~{{seed}}/epoch~{{epoch}}"
RCE = f"{CORNER}/preset~{{preset}}/rce/seed~{{seed}}/epoch~{{epoch}}"
# The RCE epoch that other runs start from and are anchored to.
BASE = RCE.replace("{epoch}", "{base}")
GRPO = f"{CORNER}/preset~{{preset}}/grpo/base~{{base}}/beta~{{beta}}/seed~{{seed}}/epoch~{{epoch}}"
ON_POLICY = f"{CORNER}/preset~{{preset}}/{{objective}}/base~{{base}}/beta~{{beta}}/seed~{{seed}}/epoch~{{epoch}}"
DISTIL = (
    f"{CORNER}/preset~{{preset}}/distil/base~{{base}}/seed~{{seed}}/epoch~{{epoch}}"
)
CONTINUED = DISTIL.replace("distil", "continued")
TRAINED = "preset~[^/]+/(sft|rce|(grpo|on_policy|reinforce)/base~[^/]+/beta~[^/]+|(distil|continued)/base~[^/]+)/seed~[0-9]+/epoch~[0-9]+"
EMULATE = EXPERIMENT.emulate if "lever" in EXPERIMENT.studies else None
EMULATION = f"{LEVER}/emulation"


wildcard_constraints:
    data="lever|grid/data~[A-Za-z0-9_]+",
    sampled="(/sampler~[A-Za-z0-9_]+)?",
    asked="(/lvlm~[A-Za-z0-9_]+)?",
    preset="[A-Za-z0-9_]+",
    seed="0|[1-9][0-9]*",
    epoch="[1-9][0-9]*",
    base="[1-9][0-9]*",
    beta="[0-9]+([.][0-9]+)?(e-[0-9]+)?",
    shard="0|[1-9][0-9]*",
    baseline="[a-z_]+(-[0-9]+)?",
    objective="on_policy|reinforce",
    rewarded="groups|grpo_groups",
    trained=TRAINED,
    selected=f"(from~[A-Za-z0-9_]+/)?{TRAINED}",
    offered="[1-9][0-9]*",
    policy=f"(baseline|own)/[^/]+|(from~[A-Za-z0-9_]+/|items~[0-9]+/)?{TRAINED}",
    arm="[a-z][a-z0-9_]*",
    own="[A-Za-z0-9_]+",
    raw="world|grid/data~[A-Za-z0-9_]+/world",
    embedded="(pool_)?embeddings",
    split="train|eval|val",
    batch="baseline|own|transfer|first_items|emulation|preset~[^/]+/seed~[0-9]+",


# What the longest chain of jobs waits for starts first, then runs that are one long job each; the rest fills the gaps.
CHAIN, SHORT_CHAIN, LONG_JOB = 100, 60, 50


def grpo_priority(wildcards):
    """Return the priority of an epoch: long runs are the longest chain of the whole workflow."""
    run = int(wildcards.seed), float(wildcards.beta)
    is_long = any(
        arm.preset == wildcards.preset
        and run in itertools.product(arm.long_seeds, arm.long_kl_betas)
        for arm in EXPERIMENT.arms
    )
    return CHAIN if is_long else SHORT_CHAIN


def call(stage, external=None, *options):
    """Return the params of a stage's rule: the job's whole identity as canonical JSON, and the words of its call.

    The words are derived from files and resources, so that they never trigger a rerun.

    Args:
        stage: the rule's name.
        external: further files by name, or functions of the wildcards that return them, which Snakemake must not stat.
            Model folders: their digest is part of `spec`. Image folders: each image's digest is part of the examples,
            and every stage that opens an image compares.
        options: what changes no number, in words, or a function of the wildcards that returns them.
    """

    def spec(wildcards):
        return plan.spec_of(EXPERIMENT, stage, dict(wildcards.items()))

    def words(wildcards, input, output):
        found = [stage]
        beside = {
            name: path(wildcards) if callable(path) else path.format(**wildcards)
            for name, path in (external or {}).items()
        }
        for name, value in [*input.items(), *output.items(), *beside.items()]:
            paths = [value] if isinstance(value, str) else value
            found += [f"{name}={path}" for path in paths]
        for option in options:
            found += option(wildcards) if callable(option) else [option]
        return found

    return {"spec": spec, "call": words}


def of_split(pattern, split):
    """Return the path of one split."""
    return pattern.replace("{split}", split)


def raw_file(kind, split=None):
    """Return the function that names a raw file, or a folder of images, of a job's data set: of its split or this."""

    def of(wildcards):
        data, own = (
            grid_plan.at(EXPERIMENT, wildcards).data,
            split or wildcards["split"],
        )
        if data.source == "files":
            return getattr(data.files, f"{own}_{kind}")
        return GENERATED[kind].format(
            raw=grid_plan.raw_of(wildcards), split=SPLITS[own]
        )

    return of


def listing_of_images(wildcards):
    """Return the digests of generated images: a trigger that image folders themselves cannot be."""
    if grid_plan.at(EXPERIMENT, wildcards).data.source != "world":
        return []
    return [
        LISTING.format(raw=grid_plan.raw_of(wildcards), split=SPLITS[wildcards.split])
    ]


def train_examples_beside(wildcards):
    """Return the examples that evaluation questions are held against; none for the train split."""
    train = EXAMPLES["train_examples"].format(data=wildcards.data)
    return [] if wildcards.split == "train" else [train]


def encoder_of(wildcards):
    """Return the model folder that makes a file of embeddings: the selector's, or that of the pools."""
    return plan.encoder_of(EXPERIMENT, wildcards).model


def before(run, first, name):
    """Return the input function for a file of what an epoch of `run` starts from: the epoch before, or `first`."""

    def of(wildcards):
        epoch = int(wildcards.epoch)
        folder = first if epoch == 1 else run
        values = {**dict(wildcards.items()), "epoch": epoch - 1}
        return f"{folder}/{name}".format(**values)

    return of


def start_of_selector(wildcards):
    """Return the checkpoint that a preset's selector starts from, if it names one."""
    return plan.started_from(EXPERIMENT, wildcards.preset)


def before_rce(name):
    """Return the input function for a file of what an RCE epoch starts from: the one before, INIT or an SFT epoch."""

    def of(wildcards):
        start = EXPERIMENT.presets[wildcards.preset].rce_from_sft_epoch
        first = SFT.replace("{epoch}", str(start)) if start else INIT
        return before(RCE, first, name)(wildcards)

    return of


def groups_of_grpo(wildcards):
    """Return the rewarded groups that offline GRPO reads, and what is held against it on the same data."""
    name = plan.grpo_groups(EXPERIMENT, wildcards.preset)
    return f"{corner_of(wildcards)}/preset~{wildcards.preset}/{name}.safetensors"


def selectors_of_arm(wildcards):
    """Return the selectors that an arm of the emulation evaluates, in the order of its policies."""
    return [
        f"{LEVER}/{run}/selector.safetensors"
        for run in plan.emulated_checkpoints(EXPERIMENT, wildcards.arm)
    ]


def selections_of_batch(wildcards):
    """Return the selections whose prompts one answer batch holds."""
    policies = plan.policies_of_batch(EXPERIMENT, wildcards)
    return [f"{corner_of(wildcards)}/{policy}/selections.jsonl" for policy in policies]


def corner_of(wildcards):
    """Return the folder of the corner that a job names."""
    return CORNER.format(**{name: wildcards[name] for name in grid_plan.DOCUMENTS})


def of_batches(name, policies, corner=LEVER):
    """Return a file of each policy's batch of answers, as often as it has policies among these."""
    return [f"{corner}/answers/{plan.batch_of(policy)}/{name}" for policy in policies]


def own_selections(wildcards):
    """Return a user's file of selections, if it is not a module that selects."""
    named = EXPERIMENT.grid.policies[wildcards.own].selections
    corner = grid_plan.corner_of(wildcards)
    return [named[corner.data]] if named else []


def selector_to_evaluate(wildcards):
    """Return the selector that a job evaluates; one that is transferred lies with the data set that it was trained on."""
    place, policy = grid_plan.trained_at(wildcards)
    return f"{CORNER.format(**place)}/{policy}/selector.safetensors"


def of_each_run(name):
    """Return one file of every run, in the order of the runs."""
    return [f"{run}/{name}" for run in AGENT_RUNS]


def of_each_served(name):
    """Return one file of every served agent, in the order of the configuration."""
    folders = [SERVED.format(arm=agent.name) for agent in INTENTION.served]
    return [f"{folder}/{name}" for folder in folders]


def of_study(study, path):
    """Return the file as a list, or an empty list in a configuration without the study."""
    return [path] if study in EXPERIMENT.studies else []


def told(kind, name):
    """Return what the report's index tells of a table or figure."""
    index = Path(f"{APPENDIX}/index.json").read_text(encoding="utf-8")
    return json.loads(index)[kind][name]


def shown_tables(folder):
    """Return an output folder, its tables marked for `snakemake --report`, each with its title and section."""

    def labels(wildcards):
        table = told("tables", wildcards.table)
        return {"table": table["title"], "section": table["section"]}

    return report(
        directory(folder),
        patterns=["tables/{table}.csv"],
        category="Tables",
        labels=labels,
        caption="../report/table.rst",
    )


def shown_figures(folder):
    """Return an output folder of figures, marked likewise, each with its title and what it shows."""

    def labels(wildcards):
        figure = told("figures", wildcards.figure)
        return {"figure": figure["title"], "shows": figure["caption"]}

    return report(
        directory(folder),
        patterns=[f"{EXPERIMENT.report.language}/{{figure}}.svg"],
        category="Figures",
        labels=labels,
        caption="../report/figure.rst",
    )


def begin_invocation():
    """Freeze and check what this invocation is about to run."""
    try:
        invocation.begin(workflow, EXPERIMENT, SPARING, OWN)
    except LeverPipeError as fault:
        raise WorkflowError(str(fault)) from None
    except OSError as fault:
        raise WorkflowError(str(MachineError.of(fault))) from None


def hold_folder():
    """Let no other run begin in this folder, and go on where one was killed."""
    try:
        invocation.hold_folder()
    except LeverPipeError as fault:
        raise WorkflowError(str(fault)) from None


def regard_what_is_made():
    """Let Snakemake plan by what the run cards say; in a job's own, end it if another job has made its artefact."""
    snakemake_adapter.bound_logs(workflow)
    snakemake_adapter.ask_once()
    if workflow.is_main_process:
        snakemake_adapter.plan_by_contents(
            decision.has_card,
            decision.why_again,
            SPARING.foresee,
            hold_folder,
            whole="all",
        )
    decision.regard_versions(EXPERIMENT.rerun_on_library_versions)
    decision.before_plan(workflow, Path(RESULTS))
    duplicates.leave_if_made(workflow, EXPERIMENT)


def closing_summary():
    """Return the lines that end a successful run: the answers, and where the rest is."""
    minutes = (time.monotonic() - STARTED) / 60
    invocation.end(EXPERIMENT)
    told_of = (SPARING.summary(), JOBS.summary_of_retries(), JOBS.summary_of_unkept())
    notes = "".join(f"\n{line}" for line in told_of if line)
    said = Path(f"{APPENDIX}/answers.txt")
    answers = f"\n{said.read_text(encoding='utf-8')}" if said.is_file() else ""
    places = "".join(f"Grid:    {page}\n" for page in GRID_PAGE)
    if {"lever", "intention"} & set(EXPERIMENT.studies):
        places += f"Report:  {PAGE}\nTables:  {APPENDIX}/tables/\nFigures: {RESULTS}/figures/\n"
    return (
        f"\n{JOBS.finished} jobs in {minutes:.1f} minutes.{notes}\n{answers}\n{places}"
    )


def failure_summary():
    """Return the lines that end a failed run: what failed, with its last lines, and how to go on."""
    invocation.end(EXPERIMENT)
    return f"\n{JOBS.summary_of_failures()}{SPARING.summary()}\n"


def of_lever(*names):
    """Return these tables of study `lever`, none in a configuration without it."""
    return [path for name in names for path in of_study("lever", f"{TABLES}/{name}")]


def of_agents(*names):
    """Return these tables of study `intention`, likewise."""
    return [
        path
        for name in names
        for path in of_study("intention", f"{AGENT_TABLES}/{name}")
    ]
