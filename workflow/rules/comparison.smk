EVALUATED, SAMPLED = policies.evaluated(EXPERIMENT), policies.sampled(EXPERIMENT)
CONTROLLED = policies.controlled(EXPERIMENT)
BATCHES = policies.batches(EXPERIMENT)
SELECTING = [policy for policy in EVALUATED if not policy.startswith("baseline/")]
PRESETS = [arm.preset for arm in EXPERIMENT.arms]


rule collect_lineage:
    input:
        training=expand(join(LEVER, "{policy}/run.json"), policy=policies.trained(EXPERIMENT)),
        started=[
            f"{LEVER}/preset~{arm.preset}/init/seed~{seed}/run.json"
            for arm in EXPERIMENT.arms
            for seed in arm.seeds
            if policies.started_from(EXPERIMENT, arm.preset)
        ],
        rewards=expand(join(LEVER, "preset~{preset}/groups.run.json"), preset=PRESETS),
        selections=expand(join(LEVER, "{policy}/selections.run.json"), policy=EVALUATED),
        answers=expand(join(LEVER, "answers/{batch}/run.json"), batch=BATCHES),
        scores=expand(join(LEVER, "answers/{batch}/scores.run.json"), batch=BATCHES),
    output:
        lineage=f"{TABLES}/lineage.csv",
        manifest=f"{TABLES}/lineage.run.json",
    log:
        f"{TABLES}/lineage.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("collect_lineage"),
        files=files(),
    message:
        "Collect the lineage of every policy"
    shell:
        "python -m lever_pipe collect_lineage {params.files:q} --threads {threads} > {log:q} 2>&1"


rule compare_policies:
    input:
        per_question=of_batches("per_question.jsonl", EVALUATED),
        eval_examples=f"{LEVER}/examples/eval.jsonl",
    output:
        intervals=f"{TABLES}/intervals.csv",
        comparisons=f"{TABLES}/comparisons.csv",
        manifest=f"{TABLES}/comparisons.run.json",
    log:
        f"{TABLES}/comparisons.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("compare_policies"),
        files=files(),
    message:
        "Compare all policies: intervals and tests"
    shell:
        "python -m lever_pipe compare_policies {params.files:q} --threads {threads} > {log:q} 2>&1"


rule measure_drift:
    input:
        train_embeddings=f"{LEVER}/embeddings/train.safetensors",
        eval_embeddings=f"{LEVER}/embeddings/eval.safetensors",
        selectors=expand(
            join(LEVER, "{policy}/selector.safetensors"), policy=[*SELECTING, *policies.starts(EXPERIMENT)]
        ),
        eval_pools=f"{LEVER}/pools/eval.jsonl",
    output:
        parameters=f"{TABLES}/parameters.csv",
        manifest=f"{TABLES}/parameters.run.json",
    log:
        f"{TABLES}/parameters.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("measure_drift"),
        files=files(),
    message:
        "Measure the drift of selectors from their starts"
    shell:
        "python -m lever_pipe measure_drift {params.files:q} --threads {threads} > {log:q} 2>&1"


rule collect_samples:
    input:
        train_examples=f"{LEVER}/examples/train.jsonl",
        eval_examples=f"{LEVER}/examples/eval.jsonl",
        selections=expand(join(LEVER, "{policy}/selections.jsonl"), policy=SAMPLED),
        answers=of_batches("answers.jsonl", SAMPLED),
        per_question=of_batches("per_question.jsonl", SAMPLED),
    output:
        samples=f"{TABLES}/samples.jsonl",
        gallery=f"{TABLES}/gallery.json",
        shares=f"{TABLES}/selections.csv",
        copying=f"{TABLES}/copying.csv",
        scoring=f"{TABLES}/scoring.json",
        manifest=f"{TABLES}/samples.run.json",
    log:
        f"{TABLES}/samples.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("collect_samples"),
        files=files(train_images=raw_file("images", "train"), eval_images=raw_file("images", "eval")),
    message:
        "Collect samples: answers, gallery, selections, copies"
    shell:
        "python -m lever_pipe collect_samples {params.files:q} --threads {threads} > {log:q} 2>&1"


rule answer_controls:
    input:
        train_examples=f"{LEVER}/examples/train.jsonl",
        eval_examples=f"{LEVER}/examples/eval.jsonl",
        selections=expand(join(LEVER, "{policy}/selections.jsonl"), policy=CONTROLLED),
    output:
        controls=f"{LEVER}/controls/controls.csv",
        blank=f"{LEVER}/controls/blank.png",
        counters=f"{LEVER}/controls/counters.json",
        manifest=f"{LEVER}/controls/run.json",
    log:
        f"{LEVER}/controls/log.txt",
    conda:
        LVLM_ENVIRONMENT
    threads: resources_of("answer_controls").threads
    resources:
        **resources_of("answer_controls").resources,
    params:
        spec=identity("answer_controls"),
        files=files(train_images=raw_file("images", "train"), eval_images=raw_file("images", "eval"), lvlm=lvlm_folder),
        asking=asking,
    message:
        "Answer with blank images, moved answers and in reversed order"
    shell:
        "python -m lever_pipe answer_controls {params.files:q} {params.asking:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
