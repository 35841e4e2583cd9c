rule reward_groups:
    input:
        rl_data=RL_DATA,
    output:
        groups=join(SETTING, "preset~{preset}/{rewarded}.safetensors"),
        manifest=join(SETTING, "preset~{preset}/{rewarded}.run.json"),
    log:
        join(SETTING, "preset~{preset}/{rewarded}.log.txt"),
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("reward_groups"),
        files=files(),
    message:
        "Reward each trajectory: {wildcards.preset}"
    shell:
        "python -m lever_pipe stage reward_groups {params.files:q} --threads {threads} > {log:q} 2>&1"


rule initialise_selector:
    input:
        embeddings=TRAIN_EMBEDDINGS,
        start=start_of_selector,
    output:
        selector=f"{INIT}/selector.safetensors",
        optimiser=f"{INIT}/optimiser.safetensors",
        metrics=f"{INIT}/metrics.json",
        manifest=f"{INIT}/run.json",
    log:
        f"{INIT}/log.txt",
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("initialise_selector"),
        files=files(),
    message:
        "Initialise the selector: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe stage initialise_selector {params.files:q} --threads {threads} > {log:q} 2>&1"


rule train_sft_epoch:
    input:
        groups=f"{SETTING}/beams/groups.safetensors",
        embeddings=TRAIN_EMBEDDINGS,
        start=of_epoch_before(SFT, INIT, "selector.safetensors"),
        start_optimiser=of_epoch_before(SFT, INIT, "optimiser.safetensors"),
    output:
        selector=f"{SFT}/selector.safetensors",
        optimiser=f"{SFT}/optimiser.safetensors",
        metrics=f"{SFT}/metrics.json",
        manifest=f"{SFT}/run.json",
    log:
        f"{SFT}/log.txt",
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("train_sft_epoch"),
        files=files(),
    message:
        "Train SFT epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe stage train_sft_epoch {params.files:q} --threads {threads} > {log:q} 2>&1"


rule train_rce_epoch:
    input:
        groups=join(SETTING, "preset~{preset}/groups.safetensors"),
        embeddings=TRAIN_EMBEDDINGS,
        start=of_epoch_before_rce("selector.safetensors"),
        start_optimiser=of_epoch_before_rce("optimiser.safetensors"),
    output:
        selector=f"{RCE}/selector.safetensors",
        optimiser=f"{RCE}/optimiser.safetensors",
        metrics=f"{RCE}/metrics.json",
        manifest=f"{RCE}/run.json",
    log:
        f"{RCE}/log.txt",
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("train_rce_epoch"),
        files=files(),
    message:
        "Train RCE epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe stage train_rce_epoch {params.files:q} --threads {threads} > {log:q} 2>&1"


rule train_grpo_epoch:
    input:
        groups=groups_of_grpo,
        embeddings=TRAIN_EMBEDDINGS,
        start=of_epoch_before(GRPO, BASE, "selector.safetensors"),
        start_optimiser=of_epoch_before(GRPO, BASE, "optimiser.safetensors"),
        reference=f"{BASE}/selector.safetensors",
        draws=draws_to_replay,
    output:
        selector=f"{GRPO}/selector.safetensors",
        optimiser=f"{GRPO}/optimiser.safetensors",
        metrics=f"{GRPO}/metrics.json",
        manifest=f"{GRPO}/run.json",
    log:
        f"{GRPO}/log.txt",
    priority: grpo_priority
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("train_grpo_epoch"),
        files=files(),
    message:
        "Train GRPO epoch {wildcards.epoch}: {wildcards.preset}, beta {wildcards.beta}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe stage train_grpo_epoch {params.files:q} --threads {threads} > {log:q} 2>&1"


rule train_on_policy_epoch:
    input:
        groups=join(SETTING, "preset~{preset}/groups.safetensors"),
        embeddings=TRAIN_EMBEDDINGS,
        train_examples=TRAIN_EXAMPLES,
        start=of_epoch_before(ON_POLICY, BASE, "selector.safetensors"),
        start_optimiser=of_epoch_before(ON_POLICY, BASE, "optimiser.safetensors"),
        reference=f"{BASE}/selector.safetensors",
    output:
        selector=f"{ON_POLICY}/selector.safetensors",
        optimiser=f"{ON_POLICY}/optimiser.safetensors",
        metrics=f"{ON_POLICY}/metrics.json",
        steps=f"{ON_POLICY}/steps.jsonl",
        draws=f"{ON_POLICY}/draws.safetensors",
        counters=f"{ON_POLICY}/counters.json",
        manifest=f"{ON_POLICY}/run.json",
    log:
        f"{ON_POLICY}/log.txt",
    priority: SHORT_CHAIN
    conda:
        LVLM_ENVIRONMENT
    threads: resources_of("train_on_policy_epoch").threads
    resources:
        **resources_of("train_on_policy_epoch").resources,
    params:
        spec=identity("train_on_policy_epoch"),
        files=files(train_images=raw_file("images", "train"), lvlm=lvlm_folder),
        asking=asking,
    message:
        "Train {wildcards.objective} epoch {wildcards.epoch}: {wildcards.preset}, beta {wildcards.beta}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe stage train_on_policy_epoch {params.files:q} {params.asking:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule train_distil_epoch:
    input:
        groups=join(SETTING, "preset~{preset}/groups.safetensors"),
        embeddings=TRAIN_EMBEDDINGS,
        train_examples=TRAIN_EXAMPLES,
        start=of_epoch_before(DISTIL, BASE, "selector.safetensors"),
        start_optimiser=of_epoch_before(DISTIL, BASE, "optimiser.safetensors"),
    output:
        selector=f"{DISTIL}/selector.safetensors",
        optimiser=f"{DISTIL}/optimiser.safetensors",
        metrics=f"{DISTIL}/metrics.json",
        manifest=f"{DISTIL}/run.json",
    log:
        f"{DISTIL}/log.txt",
    priority: SHORT_CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("train_distil_epoch"),
        files=files(),
    message:
        "Train distillation epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe stage train_distil_epoch {params.files:q} --threads {threads} > {log:q} 2>&1"


rule train_continued_epoch:
    input:
        groups=groups_of_grpo,
        embeddings=TRAIN_EMBEDDINGS,
        start=of_epoch_before(CONTINUED, BASE, "selector.safetensors"),
        start_optimiser=of_epoch_before(CONTINUED, BASE, "optimiser.safetensors"),
    output:
        selector=f"{CONTINUED}/selector.safetensors",
        optimiser=f"{CONTINUED}/optimiser.safetensors",
        metrics=f"{CONTINUED}/metrics.json",
        manifest=f"{CONTINUED}/run.json",
    log:
        f"{CONTINUED}/log.txt",
    priority: SHORT_CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("train_continued_epoch"),
        files=files(),
    message:
        "Train continued RCE epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe stage train_continued_epoch {params.files:q} --threads {threads} > {log:q} 2>&1"
