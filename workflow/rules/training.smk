use rule stage as reward_groups with:
    input:
        rl_data=RL_DATA,
    output:
        groups=f"{CORNER}/preset~{{preset}}/{{rewarded}}.safetensors",
        card=f"{CORNER}/preset~{{preset}}/{{rewarded}}.run.json",
    pathvars:
        beside=f"{CORNER}/preset~{{preset}}/{{rewarded}}.",
    priority: CHAIN
    params:
        **call("reward_groups"),
    message:
        "Reward each trajectory: {wildcards.preset}"


use rule stage as initialise_selector with:
    input:
        embeddings=TRAIN_EMBEDDINGS,
        start=start_of_selector,
    output:
        selector=f"{INIT}/selector.safetensors",
        optimiser=f"{INIT}/optimiser.safetensors",
        metrics=f"{INIT}/metrics.json",
        card=f"{INIT}/run.json",
    pathvars:
        beside=f"{INIT}/",
    priority: CHAIN
    params:
        **call("initialise_selector"),
    message:
        "Initialise the selector: {wildcards.preset}, seed {wildcards.seed}"


use rule stage as train_sft_epoch with:
    input:
        groups=f"{BEAMS}/groups.safetensors",
        embeddings=TRAIN_EMBEDDINGS,
        start=before(SFT, INIT, "selector.safetensors"),
        start_optimiser=before(SFT, INIT, "optimiser.safetensors"),
    output:
        selector=f"{SFT}/selector.safetensors",
        optimiser=f"{SFT}/optimiser.safetensors",
        metrics=f"{SFT}/metrics.json",
        card=f"{SFT}/run.json",
    pathvars:
        beside=f"{SFT}/",
    priority: CHAIN
    params:
        **call("train_sft_epoch"),
    message:
        "Train SFT epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"


use rule stage as train_rce_epoch with:
    input:
        groups=f"{CORNER}/preset~{{preset}}/groups.safetensors",
        embeddings=TRAIN_EMBEDDINGS,
        start=before_rce("selector.safetensors"),
        start_optimiser=before_rce("optimiser.safetensors"),
    output:
        selector=f"{RCE}/selector.safetensors",
        optimiser=f"{RCE}/optimiser.safetensors",
        metrics=f"{RCE}/metrics.json",
        card=f"{RCE}/run.json",
    pathvars:
        beside=f"{RCE}/",
    priority: CHAIN
    params:
        **call("train_rce_epoch"),
    message:
        "Train RCE epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"


use rule stage as train_grpo_epoch with:
    input:
        groups=groups_of_grpo,
        embeddings=TRAIN_EMBEDDINGS,
        start=before(GRPO, BASE, "selector.safetensors"),
        start_optimiser=before(GRPO, BASE, "optimiser.safetensors"),
        reference=f"{BASE}/selector.safetensors",
    output:
        selector=f"{GRPO}/selector.safetensors",
        optimiser=f"{GRPO}/optimiser.safetensors",
        metrics=f"{GRPO}/metrics.json",
        card=f"{GRPO}/run.json",
    pathvars:
        beside=f"{GRPO}/",
    priority: grpo_priority
    params:
        **call("train_grpo_epoch"),
    message:
        "Train GRPO epoch {wildcards.epoch}: {wildcards.preset}, beta {wildcards.beta}, seed {wildcards.seed}"


use rule stage as train_on_policy_epoch with:
    input:
        groups=f"{CORNER}/preset~{{preset}}/groups.safetensors",
        embeddings=TRAIN_EMBEDDINGS,
        train_examples=EXAMPLES["train_examples"],
        start=before(ON_POLICY, BASE, "selector.safetensors"),
        start_optimiser=before(ON_POLICY, BASE, "optimiser.safetensors"),
        reference=f"{BASE}/selector.safetensors",
    output:
        selector=f"{ON_POLICY}/selector.safetensors",
        optimiser=f"{ON_POLICY}/optimiser.safetensors",
        metrics=f"{ON_POLICY}/metrics.json",
        steps=f"{ON_POLICY}/steps.jsonl",
        counters=f"{ON_POLICY}/counters.json",
        card=f"{ON_POLICY}/run.json",
    pathvars:
        beside=f"{ON_POLICY}/",
    priority: SHORT_CHAIN
    conda:
        LVLM_ENVIRONMENT
    resources:
        **room("train_on_policy_epoch").resources,
    params:
        **call("train_on_policy_epoch", {**TRAIN_IMAGES, **LVLM}, asking),
    message:
        "Train {wildcards.objective} epoch {wildcards.epoch}: {wildcards.preset}, beta {wildcards.beta}, seed {wildcards.seed}"


use rule stage as train_distil_epoch with:
    input:
        groups=f"{CORNER}/preset~{{preset}}/groups.safetensors",
        embeddings=TRAIN_EMBEDDINGS,
        train_examples=EXAMPLES["train_examples"],
        start=before(DISTIL, BASE, "selector.safetensors"),
        start_optimiser=before(DISTIL, BASE, "optimiser.safetensors"),
    output:
        selector=f"{DISTIL}/selector.safetensors",
        optimiser=f"{DISTIL}/optimiser.safetensors",
        metrics=f"{DISTIL}/metrics.json",
        card=f"{DISTIL}/run.json",
    pathvars:
        beside=f"{DISTIL}/",
    priority: SHORT_CHAIN
    params:
        **call("train_distil_epoch"),
    message:
        "Train distillation epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"


use rule stage as train_continued_epoch with:
    input:
        groups=groups_of_grpo,
        embeddings=TRAIN_EMBEDDINGS,
        start=before(CONTINUED, BASE, "selector.safetensors"),
        start_optimiser=before(CONTINUED, BASE, "optimiser.safetensors"),
    output:
        selector=f"{CONTINUED}/selector.safetensors",
        optimiser=f"{CONTINUED}/optimiser.safetensors",
        metrics=f"{CONTINUED}/metrics.json",
        card=f"{CONTINUED}/run.json",
    pathvars:
        beside=f"{CONTINUED}/",
    priority: SHORT_CHAIN
    params:
        **call("train_continued_epoch"),
    message:
        "Train continued RCE epoch {wildcards.epoch}: {wildcards.preset}, seed {wildcards.seed}"
