# Input functions: the files that a job reads, by its wildcards.


def raw_file(kind, split=None):
    """Return a function for the path of a raw file or image folder of a job's data set; `split` overrides the job's."""

    def path(wildcards):
        data, part = grid.at(EXPERIMENT, wildcards).data, split or wildcards.split
        if data.source == "files":
            return getattr(data.files, f"{part}_{kind}")
        return GENERATED[kind].format(raw=grid.raw_of(wildcards), split=SPLITS[part])

    return path


def raw_input(kind):
    """Return the input function of a raw file; it returns no input while a plan assumes the file."""

    def path(wildcards):
        name = raw_file(kind)(wildcards)
        is_given = grid.at(EXPERIMENT, wildcards).data.source == "files"
        return [] if is_given and snakemake_adapter.is_assumed(name) else name

    return path


def listing_of_images(wildcards):
    """Return the file with the digest of each image: an input that changes with any image, unlike a folder's time."""
    data = grid.at(EXPERIMENT, wildcards).data
    if data.source == "world":
        return raw_file("listing")(wildcards)
    return RUN.listing_of_images(OWN_LISTING.format(**wildcards), data, wildcards.split)


def train_examples_for_eval(wildcards):
    """Return the train examples for the overlap check of the evaluation split; none for the train split."""
    return [] if wildcards.split == "train" else [TRAIN_EXAMPLES.format(**wildcards)]


def encoder_folder(wildcards):
    """Return the encoder of a file of embeddings: the selector's, or that of the pools."""
    return data.encoder_of(EXPERIMENT, wildcards).model


def of_epoch_before(run, first, name):
    """Return the input function for a file of an epoch's start: the previous epoch of `run`, or `first`."""

    def path(wildcards):
        epoch = int(wildcards.epoch)
        folder = first if epoch == 1 else run
        return f"{folder}/{name}".format(**{**wildcards, "epoch": epoch - 1})

    return path


def of_epoch_before_rce(name):
    """Return the input function for a file of an RCE epoch's start: the previous epoch, INIT or an SFT epoch."""

    def path(wildcards):
        start = EXPERIMENT.presets[wildcards.preset].rce_from_sft_epoch
        first = SFT.replace("{epoch}", str(start)) if start else INIT
        return of_epoch_before(RCE, first, name)(wildcards)

    return path


def start_of_selector(wildcards):
    """Return the configured initial checkpoint of a preset's selector, if any."""
    return policies.started_from(EXPERIMENT, wildcards.preset)


def groups_of_grpo(wildcards):
    """Return the rewarded groups for offline GRPO, and for continued RCE, which must use the same data."""
    name = training.grpo_groups(EXPERIMENT, wildcards.preset)
    return f"{setting_of(wildcards)}/preset~{wildcards.preset}/{name}.safetensors"


def draws_to_replay(wildcards):
    """Return the samples of on-policy GRPO in the same epoch, if a preset's offline GRPO replays them."""
    path = f"{ON_POLICY}/draws.safetensors".format(**{**wildcards, "objective": "on_policy", "beta": "0"})
    return [path] if EXPERIMENT.presets[wildcards.preset].grpo.replays else []


def grpo_priority(wildcards):
    """Return the priority of an epoch: highest for long runs, the workflow's longest chain of jobs."""
    arms = [arm for arm in EXPERIMENT.arms if arm.preset == wildcards.preset]
    beta, seed = float(wildcards.beta), int(wildcards.seed)
    is_long = any(beta in arm.long_kl_betas and seed in arm.long_seeds for arm in arms)
    return CHAIN if is_long else SHORT_CHAIN


def selector_to_evaluate(wildcards):
    """Return the selector that a job evaluates; a transferred one is in the folder of its training setting."""
    home, policy = grid.trained_at(EXPERIMENT, wildcards)
    return f"{SETTING.format(**home)}/{policy}/selector.safetensors"


def own_selections(wildcards):
    """Return a user's file of selections; none if the user's policy is a module."""
    files_by_data = EXPERIMENT.grid.policies[wildcards.own].selections
    return [files_by_data[grid.setting_of(wildcards).data]] if files_by_data else []


def selections_of_batch(wildcards):
    """Return the selections of all policies of one answer batch."""
    names = grid.policies_of_batch(EXPERIMENT, wildcards)
    return [f"{setting_of(wildcards)}/{policy}/selections.jsonl" for policy in names]


def selectors_of_arm(wildcards):
    """Return the selectors of an arm of the emulation, in the order of its policies."""
    runs = map(EMULATE.checkpoint_of, EMULATE.policies(wildcards.arm))
    return expand(join(LEVER, "{run}/selector.safetensors"), run=runs)


def of_batches(name, names):
    """Return the file of each policy's answer batch, in the order of the policies and with repetitions."""
    return expand(join(LEVER, "answers/{batch}/") + name, batch=[PolicyName.parse(policy).batch for policy in names])


def as_agent(wildcards, input):
    """Return the option for execution settings of study `intention`, which change no result."""
    return ["--agent", agents.execution_of(INTENTION)]


def index_entry(kind, name):
    """Return the entry of a table or figure in the report's index."""
    return json.loads(Path(APPENDIX, "index.json").read_text(encoding="utf-8"))[kind][name]


def labels_of_table(wildcards):
    """Return a table's labels for `snakemake --report`: title and section."""
    table = index_entry("tables", wildcards.table)
    return {"table": table["title"], "section": table["section"]}


def labels_of_figure(wildcards):
    """Return a figure's labels for `snakemake --report`: title and caption."""
    figure = index_entry("figures", wildcards.figure)
    return {"figure": figure["title"], "shows": figure["caption"]}
