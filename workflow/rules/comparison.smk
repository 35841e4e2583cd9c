EVALUATED, SAMPLED = plan.evaluated(EXPERIMENT), plan.sampled(EXPERIMENT)
BATCHES = plan.batches(EXPERIMENT)
SELECTING = [policy for policy in EVALUATED if not policy.startswith("baseline/")]
PRESETS = [arm.preset for arm in EXPERIMENT.arms]


def of_batches(name, policies):
    """Return a file of each policy's batch of answers, as often as it has policies among these."""
    return expand(LEVER + "/answers/{batch}/" + name, batch=map(plan.batch_of, policies))


rule collect_lineage:
    input:
        training=expand(LEVER + "/{policy}/run.json", policy=plan.trained(EXPERIMENT)),
        started=[
            f"{LEVER}/preset~{arm.preset}/init/seed~{seed}/run.json"
            for arm in EXPERIMENT.arms
            for seed in arm.seeds
            if plan.started_from(EXPERIMENT, arm.preset)
        ],
        rewards=expand(LEVER + "/preset~{preset}/groups.run.json", preset=PRESETS),
        selections=expand(LEVER + "/{policy}/selections.run.json", policy=EVALUATED),
        answers=expand(LEVER + "/answers/{batch}/run.json", batch=BATCHES),
        scores=expand(LEVER + "/answers/{batch}/scores.run.json", batch=BATCHES),
    output:
        lineage=TABLES + "/lineage.csv",
        card=TABLES + "/lineage.run.json",
    log:
        TABLES + "/lineage.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("collect_lineage"),
        files=files(),
    message:
        "Collect how every policy came to be"
    shell:
        "python -m lever_pipe collect_lineage {params.files:q} --threads {threads} > {log:q} 2>&1"


rule compare_policies:
    input:
        per_question=of_batches("per_question.jsonl", EVALUATED),
        eval_examples=LEVER + "/examples/eval.jsonl",
    output:
        intervals=TABLES + "/intervals.csv",
        comparisons=TABLES + "/comparisons.csv",
        breakdown=TABLES + "/breakdown.csv",
        card=TABLES + "/comparisons.run.json",
    log:
        TABLES + "/comparisons.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("compare_policies"),
        files=files(),
    message:
        "Compare all policies: intervals and tests"
    shell:
        "python -m lever_pipe compare_policies {params.files:q} --threads {threads} > {log:q} 2>&1"


rule measure_agreement:
    input:
        train_embeddings=LEVER + "/embeddings/train.safetensors",
        eval_embeddings=LEVER + "/embeddings/eval.safetensors",
        selections=expand(LEVER + "/{policy}/selections.jsonl", policy=EVALUATED),
        selectors=expand(LEVER + "/{policy}/selector.safetensors", policy=[*SELECTING, *plan.starts(EXPERIMENT)]),
        eval_examples=LEVER + "/examples/eval.jsonl",
        eval_pools=LEVER + "/pools/eval.jsonl",
    output:
        agreement=TABLES + "/agreement.csv",
        parameters=TABLES + "/parameters.csv",
        tensors=TABLES + "/tensors.csv",
        prompts=TABLES + "/prompts.csv",
        card=TABLES + "/agreement.run.json",
    log:
        TABLES + "/agreement.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("measure_agreement"),
        files=files(),
    message:
        "Measure which policies choose the same demonstrations"
    shell:
        "python -m lever_pipe measure_agreement {params.files:q} --threads {threads} > {log:q} 2>&1"


rule collect_samples:
    input:
        train_examples=LEVER + "/examples/train.jsonl",
        eval_examples=LEVER + "/examples/eval.jsonl",
        selections=expand(LEVER + "/{policy}/selections.jsonl", policy=SAMPLED),
        answers=of_batches("answers.jsonl", SAMPLED),
        per_question=of_batches("per_question.jsonl", SAMPLED),
    output:
        samples=TABLES + "/samples.jsonl",
        gallery=TABLES + "/gallery.json",
        shares=TABLES + "/selections.csv",
        card=TABLES + "/samples.run.json",
    log:
        TABLES + "/samples.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("collect_samples"),
        files=files(),
    message:
        "Collect what can be looked at: answers, gallery, selections"
    shell:
        "python -m lever_pipe collect_samples {params.files:q} --threads {threads} > {log:q} 2>&1"
