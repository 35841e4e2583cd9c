use rule stage as emulate_first_items with:
    input:
        **EMBEDDINGS,
        selector=f"{CORNER}/{{trained}}/selector.safetensors",
        eval_pools=POOLS["eval_pools"],
    output:
        selections=f"{CORNER}/items~{{offered}}/{{trained}}/selections.jsonl",
        card=f"{CORNER}/items~{{offered}}/{{trained}}/selections.run.json",
    pathvars:
        beside=f"{CORNER}/items~{{offered}}/{{trained}}/selections.",
    params:
        **call("emulate_first_items"),
    message:
        "Select out of the first {wildcards.offered} train items: {wildcards.trained}"


if EMULATE:
    OF_ARM = [
        policy.removeprefix("emulation/none/")
        for policy in plan.emulated(EXPERIMENT, "none")
    ]

    use rule stage as emulate_untouched with:
        input:
            groups=f"{LEVER}/preset~{EMULATE.preset}/{plan.grpo_groups(EXPERIMENT, EMULATE.preset)}.safetensors",
            embeddings=in_documents(TRAIN_EMBEDDINGS),
            reference=in_documents(f"{RCE}/selector.safetensors").format(
                preset=EMULATE.preset,
                seed=EMULATE.seed,
                epoch=EMULATE.base_rce_epoch,
            ),
        output:
            untouched=f"{EMULATION}/untouched/metrics.jsonl",
            card=f"{EMULATION}/untouched/run.json",
        pathvars:
            beside=f"{EMULATION}/untouched/",
        params:
            **call("emulate_untouched"),
        message:
            "Emulate GRPO without a single update"

    use rule stage as emulate_selections with:
        input:
            **{name: in_documents(path) for name, path in EMBEDDINGS.items()},
            selectors=selectors_of_arm,
            eval_pools=in_documents(POOLS["eval_pools"]),
        output:
            selections=[
                f"{EMULATION}/{{arm}}/{policy}/selections.jsonl" for policy in OF_ARM
            ],
            card=f"{EMULATION}/{{arm}}/run.json",
        pathvars:
            beside=f"{EMULATION}/{{arm}}/",
        wildcard_constraints:
            arm="|".join(EMULATED_ARMS),
        params:
            **call("emulate_selections"),
        message:
            "Emulate the published evaluation: {wildcards.arm}"

    use rule stage as score_emulation with:
        input:
            selections=[
                f"{LEVER}/{policy}/selections.jsonl"
                for policy in plan.emulated(EXPERIMENT)
            ],
            answers=f"{LEVER}/answers/emulation/answers.jsonl",
            eval_examples=MAIN_EXAMPLES["eval_examples"],
            untouched=f"{EMULATION}/untouched/metrics.jsonl",
        output:
            scores=f"{EMULATION}/scores.csv",
            prompts=f"{EMULATION}/prompts.csv",
            agreement=f"{EMULATION}/agreement.csv",
            training=f"{EMULATION}/training.csv",
            card=f"{EMULATION}/scores.run.json",
        pathvars:
            beside=f"{EMULATION}/scores.",
        params:
            **call("score_emulation"),
        message:
            "Score the emulated policies"
