rule reward_groups:
    input:
        rl_data=RL_DATA,
    output:
        groups=f"{LEVER}/preset~{{preset}}/groups.safetensors",
        card=f"{LEVER}/preset~{{preset}}/groups.run.json",
    log:
        f"{LEVER}/preset~{{preset}}/groups.log.txt",
    benchmark:
        f"{LEVER}/preset~{{preset}}/groups.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("reward_groups").resources,
    params:
        spec=spec("reward_groups"),
        files=named_files,
    message:
        "Reward each trajectory: {wildcards.preset}"
    shell:
        "python -m lever_pipe reward_groups --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log} 2>&1"


rule initialise_selector:
    input:
        embeddings=EMBEDDINGS,
    output:
        selector=f"{INIT}/selector.safetensors",
        optimiser=f"{INIT}/optimiser.safetensors",
        metrics=f"{INIT}/metrics.json",
        card=f"{INIT}/run.json",
    log:
        f"{INIT}/log.txt",
    benchmark:
        f"{INIT}/benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("initialise_selector").resources,
    params:
        spec=spec("initialise_selector"),
        files=named_files,
    message:
        "Initialise the selector: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe initialise_selector --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log} 2>&1"


rule train_rce_epoch:
    input:
        groups=f"{LEVER}/preset~{{preset}}/groups.safetensors",
        embeddings=EMBEDDINGS,
        start=start_of(previous_rce, "selector.safetensors"),
        start_optimiser=start_of(previous_rce, "optimiser.safetensors"),
    output:
        selector=f"{RCE}/selector.safetensors",
        optimiser=f"{RCE}/optimiser.safetensors",
        metrics=f"{RCE}/metrics.json",
        card=f"{RCE}/run.json",
    log:
        f"{RCE}/log.txt",
    benchmark:
        f"{RCE}/benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("train_rce_epoch").resources,
    params:
        spec=spec("train_rce_epoch"),
        files=named_files,
    message:
        "Train RCE epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe train_rce_epoch --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log} 2>&1"


rule train_grpo_epoch:
    input:
        groups=f"{LEVER}/preset~{{preset}}/groups.safetensors",
        embeddings=EMBEDDINGS,
        start=start_of(previous_grpo, "selector.safetensors"),
        start_optimiser=start_of(previous_grpo, "optimiser.safetensors"),
        reference=start_of(base_rce, "selector.safetensors"),
    output:
        selector=f"{GRPO}/selector.safetensors",
        optimiser=f"{GRPO}/optimiser.safetensors",
        metrics=f"{GRPO}/metrics.json",
        card=f"{GRPO}/run.json",
    log:
        f"{GRPO}/log.txt",
    benchmark:
        f"{GRPO}/benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("train_grpo_epoch").resources,
    params:
        spec=spec("train_grpo_epoch"),
        files=named_files,
    message:
        "Train GRPO epoch {wildcards.epoch}: {wildcards.preset}, beta {wildcards.beta}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe train_grpo_epoch --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log} 2>&1"
