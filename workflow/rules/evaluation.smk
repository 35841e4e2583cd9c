rule select_demonstrations:
    input:
        train_embeddings=TRAIN_EMBEDDINGS,
        eval_embeddings=EVAL_EMBEDDINGS,
        selector=selector_to_evaluate,
        eval_pools=EVAL_POOLS,
    output:
        selections=join(SETTING, "{selected}/selections.jsonl"),
        manifest=join(SETTING, "{selected}/selections.run.json"),
    log:
        join(SETTING, "{selected}/selections.log.txt"),
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("select_demonstrations"),
        files=files(),
    message:
        "Select demonstrations: {wildcards.selected}"
    shell:
        "python -m lever_pipe stage select_demonstrations {params.files:q} --threads {threads} > {log:q} 2>&1"


rule select_baseline:
    input:
        train_examples=TRAIN_EXAMPLES,
        eval_examples=EVAL_EXAMPLES,
        train_embeddings=TRAIN_EMBEDDINGS,
        eval_embeddings=EVAL_EMBEDDINGS,
        eval_pools=EVAL_POOLS,
    output:
        selections=join(SETTING, "baseline/{baseline}/selections.jsonl"),
        manifest=join(SETTING, "baseline/{baseline}/selections.run.json"),
    log:
        join(SETTING, "baseline/{baseline}/selections.log.txt"),
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("select_baseline"),
        files=files(),
    message:
        "Select demonstrations: baseline {wildcards.baseline}"
    shell:
        "python -m lever_pipe stage select_baseline {params.files:q} --threads {threads} > {log:q} 2>&1"


rule select_own:
    input:
        train_examples=TRAIN_EXAMPLES,
        eval_examples=EVAL_EXAMPLES,
        train_embeddings=TRAIN_EMBEDDINGS,
        eval_embeddings=EVAL_EMBEDDINGS,
        eval_pools=EVAL_POOLS,
        own_selections=own_selections,
    output:
        selections=join(SETTING, "own/{own}/selections.jsonl"),
        manifest=join(SETTING, "own/{own}/selections.run.json"),
    log:
        join(SETTING, "own/{own}/selections.log.txt"),
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("select_own"),
        files=files(),
    message:
        "Select demonstrations: own policy {wildcards.own}"
    shell:
        "python -m lever_pipe stage select_own {params.files:q} --threads {threads} > {log:q} 2>&1"


rule answer_prompts:
    input:
        train_examples=TRAIN_EXAMPLES,
        eval_examples=EVAL_EXAMPLES,
        selections=selections_of_batch,
    output:
        answers=f"{BATCH}/answers.jsonl",
        counters=f"{BATCH}/counters.json",
        manifest=f"{BATCH}/run.json",
    log:
        f"{BATCH}/log.txt",
    conda:
        LVLM_ENVIRONMENT
    threads: resources_of("answer_prompts").threads
    resources:
        **resources_of("answer_prompts").resources,
    params:
        spec=identity("answer_prompts"),
        files=files(train_images=raw_file("images", "train"), eval_images=raw_file("images", "eval"), lvlm=lvlm_folder),
        asking=asking,
    message:
        "Answer all prompts of {wildcards.batch}"
    shell:
        "python -m lever_pipe stage answer_prompts {params.files:q} {params.asking:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule score_answers:
    input:
        selections=selections_of_batch,
        answers=f"{BATCH}/answers.jsonl",
        train_examples=TRAIN_EXAMPLES,
        eval_examples=EVAL_EXAMPLES,
    output:
        per_question=f"{BATCH}/per_question.jsonl",
        cells=f"{BATCH}/cells.jsonl",
        manifest=f"{BATCH}/scores.run.json",
    log:
        f"{BATCH}/scores.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("score_answers"),
        files=files(),
    message:
        "Score the answers of {wildcards.batch}"
    shell:
        "python -m lever_pipe stage score_answers {params.files:q} --threads {threads} > {log:q} 2>&1"


rule measure_pools:
    input:
        train_examples=f"{LEVER}/examples/train.jsonl",
        eval_examples=f"{LEVER}/examples/eval.jsonl",
        eval_pools=f"{LEVER}/pools/eval.jsonl",
        per_question=f"{LEVER}/answers/baseline/per_question.jsonl",
    output:
        bound=f"{LEVER}/pools/bound.json",
        manifest=f"{LEVER}/pools/bound.run.json",
    log:
        f"{LEVER}/pools/bound.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("measure_pools"),
        files=files(),
    message:
        "Measure the upper bound of answers copied from the evaluation pools"
    shell:
        "python -m lever_pipe stage measure_pools {params.files:q} --threads {threads} > {log:q} 2>&1"
