from lever_pipe.experiment.evaluation_config import EMULATED_ARMS


rule emulate_first_items:
    input:
        train_embeddings=TRAIN_EMBEDDINGS,
        eval_embeddings=EVAL_EMBEDDINGS,
        selector=CORNER + "/{trained}/selector.safetensors",
        eval_pools=EVAL_POOLS,
    output:
        selections=CORNER + "/items~{offered}/{trained}/selections.jsonl",
        card=CORNER + "/items~{offered}/{trained}/selections.run.json",
    log:
        CORNER + "/items~{offered}/{trained}/selections.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("emulate_first_items"),
        files=files(),
    message:
        "Select out of the first {wildcards.offered} train items: {wildcards.trained}"
    shell:
        "python -m lever_pipe emulate_first_items {params.files:q} --threads {threads} > {log:q} 2>&1"


if EMULATE:
    OF_ARM = [policy.removeprefix("emulation/none/") for policy in plan.emulated(EXPERIMENT, "none")]
    UNTOUCHED = f"{LEVER}/preset~{EMULATE.preset}"

    def selectors_of_arm(wildcards):
        """Return the selectors that an arm of the emulation evaluates, in the order of its policies."""
        runs = plan.emulated_checkpoints(EXPERIMENT, wildcards.arm)
        return expand(LEVER + "/{run}/selector.safetensors", run=runs)

    rule emulate_untouched:
        input:
            groups=f"{UNTOUCHED}/{plan.grpo_groups(EXPERIMENT, EMULATE.preset)}.safetensors",
            embeddings=LEVER + "/embeddings/train.safetensors",
            reference=f"{UNTOUCHED}/rce/seed~{EMULATE.seed}/epoch~{EMULATE.base_rce_epoch}/selector.safetensors",
        output:
            untouched=EMULATION + "/untouched/metrics.jsonl",
            card=EMULATION + "/untouched/run.json",
        log:
            EMULATION + "/untouched/log.txt",
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
            train_embeddings=LEVER + "/embeddings/train.safetensors",
            eval_embeddings=LEVER + "/embeddings/eval.safetensors",
            selectors=selectors_of_arm,
            eval_pools=LEVER + "/pools/eval.jsonl",
        output:
            selections=expand(EMULATION + "/{arm}/{policy}/selections.jsonl", policy=OF_ARM, allow_missing=True),
            card=EMULATION + "/{arm}/run.json",
        log:
            EMULATION + "/{arm}/log.txt",
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
            selections=expand(LEVER + "/{policy}/selections.jsonl", policy=plan.emulated(EXPERIMENT)),
            answers=LEVER + "/answers/emulation/answers.jsonl",
            eval_examples=LEVER + "/examples/eval.jsonl",
            untouched=EMULATION + "/untouched/metrics.jsonl",
        output:
            scores=EMULATION + "/scores.csv",
            prompts=EMULATION + "/prompts.csv",
            agreement=EMULATION + "/agreement.csv",
            training=EMULATION + "/training.csv",
            card=EMULATION + "/scores.run.json",
        log:
            EMULATION + "/scores.log.txt",
        conda:
            "../../envs/cpu.yaml"
        params:
            spec=identity("score_emulation"),
            files=files(),
        message:
            "Score the emulated policies"
        shell:
            "python -m lever_pipe score_emulation {params.files:q} --threads {threads} > {log:q} 2>&1"
