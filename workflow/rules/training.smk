def of_epoch_before(run, first, name):
    """Return the input function for a file of what an epoch of `run` starts from: the epoch before, or `first`."""

    def of(wildcards):
        epoch = int(wildcards.epoch)
        folder = first if epoch == 1 else run
        return f"{folder}/{name}".format(**{**wildcards, "epoch": epoch - 1})

    return of


def of_epoch_before_rce(name):
    """Return the input function for a file of what an RCE epoch starts from: the one before, INIT or an SFT epoch."""

    def of(wildcards):
        start = EXPERIMENT.presets[wildcards.preset].rce_from_sft_epoch
        first = SFT.replace("{epoch}", str(start)) if start else INIT
        return of_epoch_before(RCE, first, name)(wildcards)

    return of


def start_of_selector(wildcards):
    """Return the checkpoint that a preset's selector starts from, if it names one."""
    return plan.started_from(EXPERIMENT, wildcards.preset)


def groups_of_grpo(wildcards):
    """Return the rewarded groups that offline GRPO reads, and what is held against it on the same data."""
    name = plan.grpo_groups(EXPERIMENT, wildcards.preset)
    return f"{corner_of(wildcards)}/preset~{wildcards.preset}/{name}.safetensors"


def grpo_priority(wildcards):
    """Return the priority of an epoch: long runs are the longest chain of the whole workflow."""
    arms = [arm for arm in EXPERIMENT.arms if arm.preset == wildcards.preset]
    beta, seed = float(wildcards.beta), int(wildcards.seed)
    is_long = any(beta in arm.long_kl_betas and seed in arm.long_seeds for arm in arms)
    return CHAIN if is_long else SHORT_CHAIN


rule reward_groups:
    input:
        rl_data=RL_DATA,
    output:
        groups=CORNER + "/preset~{preset}/{rewarded}.safetensors",
        card=CORNER + "/preset~{preset}/{rewarded}.run.json",
    log:
        CORNER + "/preset~{preset}/{rewarded}.log.txt",
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    resources:
        **needs("reward_groups").resources,
    params:
        spec=identity("reward_groups"),
        files=files(),
    message:
        "Reward each trajectory: {wildcards.preset}"
    shell:
        "python -m lever_pipe reward_groups {params.files:q} --threads {threads} > {log:q} 2>&1"


rule initialise_selector:
    input:
        embeddings=TRAIN_EMBEDDINGS,
        start=start_of_selector,
    output:
        selector=INIT + "/selector.safetensors",
        optimiser=INIT + "/optimiser.safetensors",
        metrics=INIT + "/metrics.json",
        card=INIT + "/run.json",
    log:
        INIT + "/log.txt",
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("initialise_selector"),
        files=files(),
    message:
        "Initialise the selector: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe initialise_selector {params.files:q} --threads {threads} > {log:q} 2>&1"


rule train_sft_epoch:
    input:
        groups=CORNER + "/beams/groups.safetensors",
        embeddings=TRAIN_EMBEDDINGS,
        start=of_epoch_before(SFT, INIT, "selector.safetensors"),
        start_optimiser=of_epoch_before(SFT, INIT, "optimiser.safetensors"),
    output:
        selector=SFT + "/selector.safetensors",
        optimiser=SFT + "/optimiser.safetensors",
        metrics=SFT + "/metrics.json",
        card=SFT + "/run.json",
    log:
        SFT + "/log.txt",
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    resources:
        **needs("train_sft_epoch").resources,
    params:
        spec=identity("train_sft_epoch"),
        files=files(),
    message:
        "Train SFT epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe train_sft_epoch {params.files:q} --threads {threads} > {log:q} 2>&1"


rule train_rce_epoch:
    input:
        groups=CORNER + "/preset~{preset}/groups.safetensors",
        embeddings=TRAIN_EMBEDDINGS,
        start=of_epoch_before_rce("selector.safetensors"),
        start_optimiser=of_epoch_before_rce("optimiser.safetensors"),
    output:
        selector=RCE + "/selector.safetensors",
        optimiser=RCE + "/optimiser.safetensors",
        metrics=RCE + "/metrics.json",
        card=RCE + "/run.json",
    log:
        RCE + "/log.txt",
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    resources:
        **needs("train_rce_epoch").resources,
    params:
        spec=identity("train_rce_epoch"),
        files=files(),
    message:
        "Train RCE epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe train_rce_epoch {params.files:q} --threads {threads} > {log:q} 2>&1"


rule train_grpo_epoch:
    input:
        groups=groups_of_grpo,
        embeddings=TRAIN_EMBEDDINGS,
        start=of_epoch_before(GRPO, BASE, "selector.safetensors"),
        start_optimiser=of_epoch_before(GRPO, BASE, "optimiser.safetensors"),
        reference=BASE + "/selector.safetensors",
    output:
        selector=GRPO + "/selector.safetensors",
        optimiser=GRPO + "/optimiser.safetensors",
        metrics=GRPO + "/metrics.json",
        card=GRPO + "/run.json",
    log:
        GRPO + "/log.txt",
    priority: grpo_priority
    conda:
        "../../envs/cpu.yaml"
    resources:
        **needs("train_grpo_epoch").resources,
    params:
        spec=identity("train_grpo_epoch"),
        files=files(),
    message:
        "Train GRPO epoch {wildcards.epoch}: {wildcards.preset}, beta {wildcards.beta}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe train_grpo_epoch {params.files:q} --threads {threads} > {log:q} 2>&1"


rule train_on_policy_epoch:
    input:
        groups=CORNER + "/preset~{preset}/groups.safetensors",
        embeddings=TRAIN_EMBEDDINGS,
        train_examples=TRAIN_EXAMPLES,
        start=of_epoch_before(ON_POLICY, BASE, "selector.safetensors"),
        start_optimiser=of_epoch_before(ON_POLICY, BASE, "optimiser.safetensors"),
        reference=BASE + "/selector.safetensors",
    output:
        selector=ON_POLICY + "/selector.safetensors",
        optimiser=ON_POLICY + "/optimiser.safetensors",
        metrics=ON_POLICY + "/metrics.json",
        steps=ON_POLICY + "/steps.jsonl",
        counters=ON_POLICY + "/counters.json",
        card=ON_POLICY + "/run.json",
    log:
        ON_POLICY + "/log.txt",
    priority: SHORT_CHAIN
    conda:
        LVLM_ENVIRONMENT
    threads: needs("train_on_policy_epoch").threads
    resources:
        **needs("train_on_policy_epoch").resources,
    params:
        spec=identity("train_on_policy_epoch"),
        files=files(train_images=raw_file("images", "train"), lvlm=lvlm_folder),
        asking=asking,
    message:
        "Train {wildcards.objective} epoch {wildcards.epoch}: {wildcards.preset}, beta {wildcards.beta}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe train_on_policy_epoch {params.files:q} {params.asking:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule train_distil_epoch:
    input:
        groups=CORNER + "/preset~{preset}/groups.safetensors",
        embeddings=TRAIN_EMBEDDINGS,
        train_examples=TRAIN_EXAMPLES,
        start=of_epoch_before(DISTIL, BASE, "selector.safetensors"),
        start_optimiser=of_epoch_before(DISTIL, BASE, "optimiser.safetensors"),
    output:
        selector=DISTIL + "/selector.safetensors",
        optimiser=DISTIL + "/optimiser.safetensors",
        metrics=DISTIL + "/metrics.json",
        card=DISTIL + "/run.json",
    log:
        DISTIL + "/log.txt",
    priority: SHORT_CHAIN
    conda:
        "../../envs/cpu.yaml"
    resources:
        **needs("train_distil_epoch").resources,
    params:
        spec=identity("train_distil_epoch"),
        files=files(),
    message:
        "Train distillation epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe train_distil_epoch {params.files:q} --threads {threads} > {log:q} 2>&1"


rule train_continued_epoch:
    input:
        groups=groups_of_grpo,
        embeddings=TRAIN_EMBEDDINGS,
        start=of_epoch_before(CONTINUED, BASE, "selector.safetensors"),
        start_optimiser=of_epoch_before(CONTINUED, BASE, "optimiser.safetensors"),
    output:
        selector=CONTINUED + "/selector.safetensors",
        optimiser=CONTINUED + "/optimiser.safetensors",
        metrics=CONTINUED + "/metrics.json",
        card=CONTINUED + "/run.json",
    log:
        CONTINUED + "/log.txt",
    priority: SHORT_CHAIN
    conda:
        "../../envs/cpu.yaml"
    resources:
        **needs("train_continued_epoch").resources,
    params:
        spec=identity("train_continued_epoch"),
        files=files(),
    message:
        "Train continued RCE epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe train_continued_epoch {params.files:q} --threads {threads} > {log:q} 2>&1"
