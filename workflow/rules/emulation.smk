from lever_pipe.experiment.emulation import EMULATED_ARMS


rule emulate_first_items:
    input:
        train_embeddings=TRAIN_EMBEDDINGS,
        eval_embeddings=EVAL_EMBEDDINGS,
        selector=join(SETTING, "{trained}/selector.safetensors"),
        eval_pools=EVAL_POOLS,
    output:
        selections=join(SETTING, "items~{offered}/{trained}/selections.jsonl"),
        manifest=join(SETTING, "items~{offered}/{trained}/selections.run.json"),
    log:
        join(SETTING, "items~{offered}/{trained}/selections.log.txt"),
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("emulate_first_items"),
        files=files(),
    message:
        "Select from the first {wildcards.offered} train items: {wildcards.trained}"
    shell:
        "python -m lever_pipe emulate_first_items {params.files:q} --threads {threads} > {log:q} 2>&1"


if EMULATE:
    OF_ARM = [policy.removeprefix("emulation/none/") for policy in policies.emulated(EXPERIMENT, "none")]
    UNTOUCHED = f"{LEVER}/preset~{EMULATE.preset}"

    rule emulate_untouched:
        input:
            groups=f"{UNTOUCHED}/{training.grpo_groups(EXPERIMENT, EMULATE.preset)}.safetensors",
            embeddings=f"{LEVER}/embeddings/train.safetensors",
            reference=f"{UNTOUCHED}/rce/seed~{EMULATE.seed}/epoch~{EMULATE.base_rce_epoch}/selector.safetensors",
        output:
            untouched=f"{EMULATION}/untouched/metrics.jsonl",
            manifest=f"{EMULATION}/untouched/run.json",
        log:
            f"{EMULATION}/untouched/log.txt",
        conda:
            "../../envs/cpu.yaml"
        params:
            spec=identity("emulate_untouched"),
            files=files(),
        message:
            "Emulate GRPO without a single update"
        shell:
            "python -m lever_pipe emulate_untouched {params.files:q} --threads {threads} > {log:q} 2>&1"

    rule emulate_selections:
        input:
            train_embeddings=f"{LEVER}/embeddings/train.safetensors",
            eval_embeddings=f"{LEVER}/embeddings/eval.safetensors",
            selectors=selectors_of_arm,
            eval_pools=f"{LEVER}/pools/eval.jsonl",
        output:
            selections=expand(join(EMULATION, "{arm}/{policy}/selections.jsonl"), policy=OF_ARM, allow_missing=True),
            manifest=join(EMULATION, "{arm}/run.json"),
        log:
            join(EMULATION, "{arm}/log.txt"),
        wildcard_constraints:
            arm="|".join(EMULATED_ARMS),
        conda:
            "../../envs/cpu.yaml"
        params:
            spec=identity("emulate_selections"),
            files=files(),
        message:
            "Emulate the published evaluation: {wildcards.arm}"
        shell:
            "python -m lever_pipe emulate_selections {params.files:q} --threads {threads} > {log:q} 2>&1"

    rule score_emulation:
        input:
            selections=expand(join(LEVER, "{policy}/selections.jsonl"), policy=policies.emulated(EXPERIMENT)),
            answers=f"{LEVER}/answers/emulation/answers.jsonl",
            eval_examples=f"{LEVER}/examples/eval.jsonl",
            untouched=f"{EMULATION}/untouched/metrics.jsonl",
        output:
            scores=f"{EMULATION}/scores.csv",
            prompts=f"{EMULATION}/prompts.csv",
            training=f"{EMULATION}/training.csv",
            manifest=f"{EMULATION}/scores.run.json",
        log:
            f"{EMULATION}/scores.log.txt",
        conda:
            "../../envs/cpu.yaml"
        params:
            spec=identity("score_emulation"),
            files=files(),
        message:
            "Score the emulated policies"
        shell:
            "python -m lever_pipe score_emulation {params.files:q} --threads {threads} > {log:q} 2>&1"
