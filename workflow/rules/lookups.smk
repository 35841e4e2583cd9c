# Which files a job reads: functions of its wildcards that rules name as inputs.


def raw_file(kind, split=None):
    """Return the function that names a raw file, or a folder of images, of a job's data set: of its split or this."""

    def path(wildcards):
        data, part = grid_plan.at(EXPERIMENT, wildcards).data, split or wildcards.split
        if data.source == "files":
            return getattr(data.files, f"{part}_{kind}")
        return GENERATED[kind].format(raw=grid_plan.raw_of(wildcards), split=SPLITS[part])

    return path


def raw_input(kind):
    """Return the input function of a raw file, which is no input while a plan assumes it."""

    def path(wildcards):
        name = raw_file(kind)(wildcards)
        is_given = grid_plan.at(EXPERIMENT, wildcards).data.source == "files"
        return [] if is_given and snakemake_adapter.is_assumed(name) else name

    return path


def listing_of_images(wildcards):
    """Return the file with the digest of each image: a trigger that image folders themselves cannot be."""
    data = grid_plan.at(EXPERIMENT, wildcards).data
    if data.source == "world":
        return raw_file("listing")(wildcards)
    return RUN.listing_of_images(OWN_LISTING.format(**wildcards), data, wildcards.split)


def train_examples_for_eval(wildcards):
    """Return the examples that evaluation questions are held against; none for the train split."""
    return [] if wildcards.split == "train" else [TRAIN_EXAMPLES.format(**wildcards)]


def encoder_folder(wildcards):
    """Return the model that makes a file of embeddings: the selector's, or that of the pools."""
    return plan.encoder_of(EXPERIMENT, wildcards).model


def of_epoch_before(run, first, name):
    """Return the input function for a file of what an epoch of `run` starts from: the epoch before, or `first`."""

    def path(wildcards):
        epoch = int(wildcards.epoch)
        folder = first if epoch == 1 else run
        return f"{folder}/{name}".format(**{**wildcards, "epoch": epoch - 1})

    return path


def of_epoch_before_rce(name):
    """Return the input function for a file of what an RCE epoch starts from: the one before, INIT or an SFT epoch."""

    def path(wildcards):
        start = EXPERIMENT.presets[wildcards.preset].rce_from_sft_epoch
        first = SFT.replace("{epoch}", str(start)) if start else INIT
        return of_epoch_before(RCE, first, name)(wildcards)

    return path


def start_of_selector(wildcards):
    """Return the checkpoint that a preset's selector starts from, if it names one."""
    return plan.started_from(EXPERIMENT, wildcards.preset)


def groups_of_grpo(wildcards):
    """Return the rewarded groups that offline GRPO reads, and what is held against it on the same data."""
    name = plan.grpo_groups(EXPERIMENT, wildcards.preset)
    return f"{setting_of(wildcards)}/preset~{wildcards.preset}/{name}.safetensors"


def draws_to_replay(wildcards):
    """Return what on-policy GRPO drew in the same epoch, where a preset's offline GRPO learns from it."""
    sampled = f"{ON_POLICY}/draws.safetensors".format(**{**wildcards, "objective": "on_policy", "beta": "0"})
    return [sampled] if EXPERIMENT.presets[wildcards.preset].grpo.replays else []


def grpo_priority(wildcards):
    """Return the priority of an epoch: long runs are the longest chain of the whole workflow."""
    arms = [arm for arm in EXPERIMENT.arms if arm.preset == wildcards.preset]
    beta, seed = float(wildcards.beta), int(wildcards.seed)
    is_long = any(beta in arm.long_kl_betas and seed in arm.long_seeds for arm in arms)
    return CHAIN if is_long else SHORT_CHAIN


def selector_to_evaluate(wildcards):
    """Return the selector that a job evaluates; one that is transferred lies in the setting that it was trained in."""
    location, policy = grid_plan.trained_at(EXPERIMENT, wildcards)
    return f"{SETTING.format(**location)}/{policy}/selector.safetensors"


def own_selections(wildcards):
    """Return a user's file of selections, if it is not a module that selects."""
    files_by_data = EXPERIMENT.grid.policies[wildcards.own].selections
    return [files_by_data[grid_plan.setting_of(wildcards).data]] if files_by_data else []


def selections_of_batch(wildcards):
    """Return the selections whose prompts one answer batch holds."""
    policies = plan.policies_of_batch(EXPERIMENT, wildcards)
    return [f"{setting_of(wildcards)}/{policy}/selections.jsonl" for policy in policies]


def selectors_of_arm(wildcards):
    """Return the selectors that an arm of the emulation evaluates, in the order of its policies."""
    runs = map(EMULATE.checkpoint_of, EMULATE.policies(wildcards.arm))
    return expand(join(LEVER, "{run}/selector.safetensors"), run=runs)


def of_batches(name, policies):
    """Return a file of each policy's batch of answers, as often as it has policies among these."""
    return expand(join(LEVER, "answers/{batch}/") + name, batch=map(plan.batch_of, policies))


def as_agent(wildcards, input):
    """Return how study `intention` is run: an option that changes no number."""
    return ["--agent", agent_plan.execution_of(INTENTION)]


def index_entry(kind, name):
    """Return what the report's index tells of a table or figure."""
    return json.loads(Path(APPENDIX, "index.json").read_text(encoding="utf-8"))[kind][name]


def labels_of_table(wildcards):
    """Return what `snakemake --report` says of a table: its title and section."""
    table = index_entry("tables", wildcards.table)
    return {"table": table["title"], "section": table["section"]}


def labels_of_figure(wildcards):
    """Return what `snakemake --report` says of a figure: its title and what it shows."""
    figure = index_entry("figures", wildcards.figure)
    return {"figure": figure["title"], "shows": figure["caption"]}
