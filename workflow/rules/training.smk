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
    priority: CHAIN
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
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


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
    priority: CHAIN
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
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


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
    priority: CHAIN
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
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule train_grpo_epoch:
    input:
        groups=f"{LEVER}/preset~{{preset}}/groups.safetensors",
        embeddings=EMBEDDINGS,
        start=start_of(after_base(GRPO), "selector.safetensors"),
        start_optimiser=start_of(after_base(GRPO), "optimiser.safetensors"),
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
    priority: grpo_priority
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
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule train_on_policy_epoch:
    input:
        groups=f"{LEVER}/preset~{{preset}}/groups.safetensors",
        embeddings=EMBEDDINGS,
        train_examples=EXAMPLES["train_examples"],
        start=start_of(after_base(ON_POLICY), "selector.safetensors"),
        start_optimiser=start_of(after_base(ON_POLICY), "optimiser.safetensors"),
        reference=start_of(base_rce, "selector.safetensors"),
    output:
        selector=f"{ON_POLICY}/selector.safetensors",
        optimiser=f"{ON_POLICY}/optimiser.safetensors",
        metrics=f"{ON_POLICY}/metrics.json",
        steps=f"{ON_POLICY}/steps.jsonl",
        counters=f"{ON_POLICY}/counters.json",
        card=f"{ON_POLICY}/run.json",
    log:
        f"{ON_POLICY}/log.txt",
    benchmark:
        f"{ON_POLICY}/benchmark.jsonl"
    priority: SHORT_CHAIN
    conda:
        "../../envs/gpu.yaml"
    threads: room("train_on_policy_epoch").threads
    resources:
        **room("train_on_policy_epoch").resources,
    params:
        spec=spec("train_on_policy_epoch"),
        ledger=ledger_folder,
        files=with_external(
            {"train_images": IMAGES["train_images"], "lvlm": EXPERIMENT.lvlm.model}
        ),
    message:
        "Train {wildcards.objective} epoch {wildcards.epoch}: {wildcards.preset}, beta {wildcards.beta}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe train_on_policy_epoch --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} --ledger {params.ledger:q} > {log:q} 2>&1"


rule train_distil_epoch:
    input:
        groups=f"{LEVER}/preset~{{preset}}/groups.safetensors",
        embeddings=EMBEDDINGS,
        train_examples=EXAMPLES["train_examples"],
        start=start_of(after_base(DISTIL), "selector.safetensors"),
        start_optimiser=start_of(after_base(DISTIL), "optimiser.safetensors"),
    output:
        selector=f"{DISTIL}/selector.safetensors",
        optimiser=f"{DISTIL}/optimiser.safetensors",
        metrics=f"{DISTIL}/metrics.json",
        card=f"{DISTIL}/run.json",
    log:
        f"{DISTIL}/log.txt",
    benchmark:
        f"{DISTIL}/benchmark.jsonl"
    priority: SHORT_CHAIN
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("train_distil_epoch").resources,
    params:
        spec=spec("train_distil_epoch"),
        files=named_files,
    message:
        "Train distillation epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"
    shell:
        "python -m lever_pipe train_distil_epoch --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
