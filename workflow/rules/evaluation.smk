SAMPLES = EXPERIMENT.evaluation.samples
SHOTS = EXPERIMENT.evaluation.shots
SCORES = f"{LEVER}/{{policy}}/scores"
ANSWERS = f"{LEVER}/answers/{{batch}}/policies"
"""A file of answers for each policy."""


rule select_demonstrations:
    input:
        selector=f"{LEVER}/{{trained}}/selector.safetensors",
        eval_pools=POOLS["eval_pools"],
        embeddings=EMBEDDINGS,
    output:
        selections=f"{LEVER}/{{trained}}/selections.jsonl",
        card=f"{LEVER}/{{trained}}/selections.run.json",
    log:
        f"{LEVER}/{{trained}}/selections.log.txt",
    benchmark:
        f"{LEVER}/{{trained}}/selections.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("select_demonstrations").resources,
    params:
        spec=spec("select_demonstrations"),
        files=named_files,
    message:
        "Select demonstrations: {wildcards.trained}"
    shell:
        "python -m lever_pipe select_demonstrations --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule select_baseline:
    input:
        **EXAMPLES,
        eval_pools=POOLS["eval_pools"],
        embeddings=EMBEDDINGS,
    output:
        selections=f"{LEVER}/baseline/{{baseline}}/selections.jsonl",
        card=f"{LEVER}/baseline/{{baseline}}/selections.run.json",
    log:
        f"{LEVER}/baseline/{{baseline}}/selections.log.txt",
    benchmark:
        f"{LEVER}/baseline/{{baseline}}/selections.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("select_baseline").resources,
    params:
        spec=spec("select_baseline"),
        files=named_files,
    message:
        "Select demonstrations: baseline {wildcards.baseline}"
    shell:
        "python -m lever_pipe select_baseline --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule answer_prompts:
    input:
        **EXAMPLES,
        selections=selections_of_batch,
    output:
        answers=directory(ANSWERS),
        counters=f"{LEVER}/answers/{{batch}}/counters.json",
        card=f"{LEVER}/answers/{{batch}}/run.json",
    log:
        f"{LEVER}/answers/{{batch}}/log.txt",
    benchmark:
        f"{LEVER}/answers/{{batch}}/benchmark.jsonl"
    conda:
        "../../envs/gpu.yaml"
    threads: room("answer_prompts").threads
    resources:
        **room("answer_prompts").resources,
    params:
        spec=spec("answer_prompts"),
        ledger=ledger_folder,
        files=with_external({**IMAGES, "lvlm": EXPERIMENT.lvlm.model}),
    message:
        "Answer all prompts of {wildcards.batch}"
    shell:
        "python -m lever_pipe answer_prompts --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --processes {resources.processes} --threads {threads}"
        " --ledger {params.ledger:q} > {log:q} 2>&1"


rule score_answers:
    input:
        selections=f"{LEVER}/{{policy}}/selections.jsonl",
        answers=answers_of_policy,
        eval_examples=EXAMPLES["eval_examples"],
    output:
        per_question=f"{SCORES}/per_question.jsonl",
        summary=f"{SCORES}/cells.jsonl",
        cells=[f"{SCORES}/samples~{n}/shots~{s}.json" for n in SAMPLES for s in SHOTS],
        card=f"{SCORES}/run.json",
    log:
        f"{SCORES}/log.txt",
    benchmark:
        f"{SCORES}/benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("score_answers").resources,
    params:
        spec=spec("score_answers"),
        files=named_files,
    message:
        "Score {wildcards.policy}"
    shell:
        "python -m lever_pipe score_answers --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule measure_pools:
    input:
        **EXAMPLES,
        eval_pools=POOLS["eval_pools"],
        zero_shot=f"{LEVER}/baseline/zero_shot/scores/per_question.jsonl",
    output:
        bound=f"{LEVER}/pools/bound.json",
        card=f"{LEVER}/pools/bound.run.json",
    log:
        f"{LEVER}/pools/bound.log.txt",
    benchmark:
        f"{LEVER}/pools/bound.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("measure_pools").resources,
    params:
        spec=spec("measure_pools"),
        files=named_files,
    message:
        "Measure what the evaluation pools hold"
    shell:
        "python -m lever_pipe measure_pools --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule check_world:
    input:
        **EXAMPLES,
    output:
        check=f"{LEVER}/world_check/check.json",
        counters=f"{LEVER}/world_check/counters.json",
        card=f"{LEVER}/world_check/run.json",
    log:
        f"{LEVER}/world_check/log.txt",
    benchmark:
        f"{LEVER}/world_check/benchmark.jsonl"
    conda:
        "../../envs/gpu.yaml"
    threads: room("check_world").threads
    resources:
        **room("check_world").resources,
    params:
        spec=spec("check_world"),
        files=with_external({**IMAGES, "lvlm": EXPERIMENT.lvlm.model}),
    message:
        "Check that the embedded LVLM reads its demonstrations"
    shell:
        "python -m lever_pipe check_world --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
