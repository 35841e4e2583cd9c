BATCH = f"{CORNER}/answers/{{batch}}"


use rule stage as select_demonstrations with:
    input:
        **EMBEDDINGS,
        selector=selector_to_evaluate,
        eval_pools=POOLS["eval_pools"],
    output:
        selections=f"{CORNER}/{{selected}}/selections.jsonl",
        card=f"{CORNER}/{{selected}}/selections.run.json",
    pathvars:
        beside=f"{CORNER}/{{selected}}/selections.",
    params:
        **call("select_demonstrations"),
    message:
        "Select demonstrations: {wildcards.selected}"


use rule stage as select_baseline with:
    input:
        **EXAMPLES,
        **EMBEDDINGS,
        eval_pools=POOLS["eval_pools"],
    output:
        selections=f"{CORNER}/baseline/{{baseline}}/selections.jsonl",
        card=f"{CORNER}/baseline/{{baseline}}/selections.run.json",
    pathvars:
        beside=f"{CORNER}/baseline/{{baseline}}/selections.",
    params:
        **call("select_baseline"),
    message:
        "Select demonstrations: baseline {wildcards.baseline}"


use rule stage as select_own with:
    input:
        **EXAMPLES,
        **EMBEDDINGS,
        eval_pools=POOLS["eval_pools"],
        own_selections=own_selections,
    output:
        selections=f"{CORNER}/own/{{own}}/selections.jsonl",
        card=f"{CORNER}/own/{{own}}/selections.run.json",
    pathvars:
        beside=f"{CORNER}/own/{{own}}/selections.",
    params:
        **call("select_own"),
    message:
        "Select demonstrations: own policy {wildcards.own}"


use rule stage as answer_prompts with:
    input:
        **EXAMPLES,
        selections=selections_of_batch,
    output:
        answers=f"{BATCH}/answers.jsonl",
        counters=f"{BATCH}/counters.json",
        card=f"{BATCH}/run.json",
    pathvars:
        beside=f"{BATCH}/",
    conda:
        LVLM_ENVIRONMENT
    resources:
        **room("answer_prompts").resources,
    params:
        **call("answer_prompts", {**IMAGES, **LVLM}, asking),
    message:
        "Answer all prompts of {wildcards.batch}"


use rule stage as score_answers with:
    input:
        selections=selections_of_batch,
        answers=f"{BATCH}/answers.jsonl",
        eval_examples=EXAMPLES["eval_examples"],
    output:
        per_question=f"{BATCH}/per_question.jsonl",
        cells=f"{BATCH}/cells.jsonl",
        card=f"{BATCH}/scores.run.json",
    pathvars:
        beside=f"{BATCH}/scores.",
    params:
        **call("score_answers"),
    message:
        "Score the answers of {wildcards.batch}"


use rule stage as measure_pools with:
    input:
        **MAIN_EXAMPLES,
        eval_pools=in_documents(POOLS["eval_pools"]),
        per_question=f"{LEVER}/answers/baseline/per_question.jsonl",
    output:
        bound=f"{LEVER}/pools/bound.json",
        card=f"{LEVER}/pools/bound.run.json",
    pathvars:
        beside=f"{LEVER}/pools/bound.",
    params:
        **call("measure_pools"),
    message:
        "Measure what the evaluation pools hold"


use rule stage as check_world with:
    input:
        **MAIN_EXAMPLES,
    output:
        check=f"{LEVER}/world_check/check.json",
        counters=f"{LEVER}/world_check/counters.json",
        card=f"{LEVER}/world_check/run.json",
    pathvars:
        beside=f"{LEVER}/world_check/",
    conda:
        LVLM_ENVIRONMENT
    resources:
        **room("check_world").resources,
    params:
        **call("check_world", MAIN_IMAGES | LVLM),
    message:
        "Check that the embedded LVLM reads its demonstrations"
