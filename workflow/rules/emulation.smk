EMULATION_TABLES = [f"{EMULATION}/tables.json"] if EMULATE else []
EMULATION_CSV = [f"{EMULATION}/tables"] if EMULATE else []


if EMULATE:
    OF_ARM = [
        policy.removeprefix("emulation/none/")
        for policy in plan.emulated(EXPERIMENT, "none")
    ]
    GROUPS = f"{LEVER}/preset~{EMULATE.preset}/groups.safetensors"

    rule emulate_grpo_epoch:
        input:
            groups=GROUPS,
            embeddings=EMBEDDINGS,
            start=start_of(previous_noisy, "selector.safetensors"),
            start_optimiser=start_of(previous_noisy, "optimiser.safetensors"),
            reference=start_of(emulated_base, "selector.safetensors"),
        output:
            selector=f"{NOISY}/selector.safetensors",
            optimiser=f"{NOISY}/optimiser.safetensors",
            metrics=f"{NOISY}/metrics.json",
            card=f"{NOISY}/run.json",
        log:
            f"{NOISY}/log.txt",
        benchmark:
            f"{NOISY}/benchmark.jsonl"
        priority: SHORT_CHAIN
        conda:
            "../../envs/cpu.yaml"
        resources:
            **room("emulate_grpo_epoch").resources,
        params:
            spec=spec("emulate_grpo_epoch"),
            files=named_files,
        message:
            "Emulate GRPO with dropout, epoch {wildcards.epoch}: base {wildcards.base}, beta {wildcards.beta}"
        shell:
            "python -m lever_pipe emulate_grpo_epoch --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"

    rule emulate_untouched:
        input:
            groups=GROUPS,
            embeddings=EMBEDDINGS,
            reference=f"{RCE}/selector.safetensors".format(
                preset=EMULATE.preset,
                seed=EMULATE.seed,
                epoch=EMULATE.base_rce_epoch,
            ),
        output:
            untouched=f"{EMULATION}/untouched/metrics.jsonl",
            card=f"{EMULATION}/untouched/run.json",
        log:
            f"{EMULATION}/untouched/log.txt",
        benchmark:
            f"{EMULATION}/untouched/benchmark.jsonl"
        conda:
            "../../envs/cpu.yaml"
        resources:
            **room("emulate_untouched").resources,
        params:
            spec=spec("emulate_untouched"),
            files=named_files,
        message:
            "Emulate GRPO without a single update"
        shell:
            "python -m lever_pipe emulate_untouched --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"

    rule emulate_selections:
        input:
            selectors=selectors_of_arm,
            eval_pools=POOLS["eval_pools"],
            embeddings=EMBEDDINGS,
        output:
            selections=[
                f"{EMULATION}/{{arm}}/{policy}/selections.jsonl" for policy in OF_ARM
            ],
            card=f"{EMULATION}/{{arm}}/run.json",
        log:
            f"{EMULATION}/{{arm}}/log.txt",
        benchmark:
            f"{EMULATION}/{{arm}}/benchmark.jsonl"
        wildcard_constraints:
            arm="|".join(plan.faults.ARMS),
        conda:
            "../../envs/cpu.yaml"
        resources:
            **room("emulate_selections").resources,
        params:
            spec=spec("emulate_selections"),
            files=named_files,
        message:
            "Emulate the published evaluation: {wildcards.arm}"
        shell:
            "python -m lever_pipe emulate_selections --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"

    rule score_emulation:
        input:
            selections=[
                f"{LEVER}/{policy}/selections.jsonl"
                for policy in plan.emulated(EXPERIMENT)
            ],
            answers=[
                f"{ANSWERS}/{policy}.jsonl".format(batch=plan.faults.EMULATION)
                for policy in plan.emulated(EXPERIMENT)
            ],
            eval_examples=EXAMPLES["eval_examples"],
            metrics=[
                f"{LEVER}/{run}/metrics.json" for run in plan.emulated_runs(EXPERIMENT)
            ],
            untouched=f"{EMULATION}/untouched/metrics.jsonl",
        output:
            scores=f"{EMULATION}/scores.csv",
            prompts=f"{EMULATION}/prompts.csv",
            agreement=f"{EMULATION}/agreement.csv",
            training=f"{EMULATION}/training.csv",
            card=f"{EMULATION}/scores.run.json",
        log:
            f"{EMULATION}/scores.log.txt",
        benchmark:
            f"{EMULATION}/scores.benchmark.jsonl"
        conda:
            "../../envs/cpu.yaml"
        resources:
            **room("score_emulation").resources,
        params:
            spec=spec("score_emulation"),
            files=named_files,
        message:
            "Score the emulated policies"
        shell:
            "python -m lever_pipe score_emulation --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"

    rule explain_patterns:
        input:
            scores=f"{EMULATION}/scores.csv",
            prompts=f"{EMULATION}/prompts.csv",
            agreement=f"{EMULATION}/agreement.csv",
            training=f"{EMULATION}/training.csv",
            reference=REFERENCE,
            reference_lineage="resources/reference/lineage.yaml",
        output:
            patterns=f"{EMULATION}/patterns.csv",
            tables=f"{EMULATION}/tables.json",
            csv=shown_tables(f"{EMULATION}/tables"),
            card=f"{EMULATION}/tables.run.json",
        log:
            f"{EMULATION}/tables.log.txt",
        benchmark:
            f"{EMULATION}/tables.benchmark.jsonl"
        conda:
            "../../envs/cpu.yaml"
        resources:
            **room("explain_patterns").resources,
        params:
            spec=spec("explain_patterns"),
            files=named_files,
        message:
            "Explain the published patterns"
        shell:
            "python -m lever_pipe explain_patterns --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"
