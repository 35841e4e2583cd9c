INTENTION = EXPERIMENT.intention
AGENTS = f"{RESULTS}/intention"
RUN_OF_AGENT = join(AGENTS, "arm~{arm}/seed~{seed}")
AGENT_TABLES = f"{AGENTS}/tables"
IS_NATIVE = INTENTION.engine == "native"
AGENT_RUNS = [agents.folder_of(run) for run in agents.runs(INTENTION)]
PLAYED_RUNS = AGENT_RUNS if IS_NATIVE else []
SERVED_AGENTS = [agent.name for agent in INTENTION.served]
WARM_START = f"{AGENTS}/warm_start/policy"
CODEC = [f"{WARM_START}/{name}" for name in agents.codec_files(INTENTION)]
START = [f"{WARM_START}/model.safetensors", f"{WARM_START}/config.json", *CODEC] if INTENTION.is_taught else []
# No declared input, so that Snakemake ignores its times: the identity contains the digest of the model folder.
MODEL_FOLDER = {"start": INTENTION.model.folder} if INTENTION.model.folder else {}
START_FOLDER = {} if INTENTION.is_taught else MODEL_FOLDER


rule prepare_tasks:
    input:
        **{
            name: [path for path in paths if not snakemake_adapter.is_assumed(path)]
            for name, paths in agents.raw_files(INTENTION).items()
        },
    output:
        train_tasks=f"{AGENTS}/tasks/train.jsonl",
        val_tasks=f"{AGENTS}/tasks/val.jsonl",
        test_tasks=f"{AGENTS}/tasks/test.jsonl",
        summary=f"{AGENTS}/tasks/summary.json",
        manifest=f"{AGENTS}/tasks/run.json",
    log:
        f"{AGENTS}/tasks/log.txt",
    priority: LONG_JOB
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("prepare_tasks"),
        files=files(),
    message:
        "Prepare the agent's tasks"
    shell:
        "python -m lever_pipe prepare_tasks {params.files:q} --threads {threads} > {log:q} 2>&1"


rule warm_start_agent:
    input:
        train_tasks=f"{AGENTS}/tasks/train.jsonl",
        start=[],
    output:
        weights=f"{WARM_START}/model.safetensors",
        settings=f"{WARM_START}/config.json",
        codec=CODEC,
        metrics=f"{AGENTS}/warm_start/metrics.jsonl",
        manifest=f"{AGENTS}/warm_start/run.json",
    log:
        f"{AGENTS}/warm_start/log.txt",
    priority: LONG_JOB
    conda:
        "../../envs/gpu.yaml"
    threads: resources_of("warm_start_agent").threads
    resources:
        **resources_of("warm_start_agent").resources,
    params:
        spec=identity("warm_start_agent"),
        files=files(**MODEL_FOLDER),
        agent=as_agent,
    message:
        "Teach the agent to call its tool"
    shell:
        "python -m lever_pipe warm_start_agent {params.files:q} {params.agent:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


if IS_NATIVE:

    rule train_agent:
        input:
            train_tasks=f"{AGENTS}/tasks/train.jsonl",
            val_tasks=f"{AGENTS}/tasks/val.jsonl",
            start=START,
        output:
            metrics=f"{RUN_OF_AGENT}/metrics.jsonl",
            evaluations=f"{RUN_OF_AGENT}/evaluations.jsonl",
            episodes=f"{RUN_OF_AGENT}/episodes.jsonl",
            last=directory(f"{RUN_OF_AGENT}/last"),
            best=directory(f"{RUN_OF_AGENT}/best"),
            done=f"{RUN_OF_AGENT}/done.json",
            manifest=f"{RUN_OF_AGENT}/run.json",
        log:
            f"{RUN_OF_AGENT}/log.txt",
        priority: LONG_JOB
        conda:
            "../../envs/gpu.yaml"
        threads: resources_of("train_agent").threads
        resources:
            **resources_of("train_agent").resources,
        params:
            spec=identity("train_agent"),
            files=files(state=f"{RUN_OF_AGENT}/state", **START_FOLDER),
            agent=as_agent,
        message:
            "GRPO of the agent: arm {wildcards.arm}, seed {wildcards.seed}"
        shell:
            "python -m lever_pipe train_agent {params.files:q} {params.agent:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"

    rule evaluate_agent:
        input:
            test_tasks=f"{AGENTS}/tasks/test.jsonl",
            last=f"{RUN_OF_AGENT}/last",
            best=f"{RUN_OF_AGENT}/best",
            done=f"{RUN_OF_AGENT}/done.json",
        output:
            evaluations=f"{RUN_OF_AGENT}/test/evaluations.jsonl",
            episodes=f"{RUN_OF_AGENT}/test/episodes.jsonl",
            dialogues=f"{RUN_OF_AGENT}/test/dialogues.jsonl",
            manifest=f"{RUN_OF_AGENT}/test/run.json",
        log:
            f"{RUN_OF_AGENT}/test/log.txt",
        priority: LONG_JOB
        conda:
            "../../envs/gpu.yaml"
        threads: resources_of("evaluate_agent").threads
        resources:
            **resources_of("evaluate_agent").resources,
        params:
            spec=identity("evaluate_agent"),
            files=files(),
            agent=as_agent,
        message:
            "Evaluate the agent on held-out tasks: arm {wildcards.arm}, seed {wildcards.seed}"
        shell:
            "python -m lever_pipe evaluate_agent {params.files:q} {params.agent:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"

    rule evaluate_start:
        input:
            test_tasks=f"{AGENTS}/tasks/test.jsonl",
            start=START,
        output:
            evaluations=f"{AGENTS}/start/evaluations.jsonl",
            episodes=f"{AGENTS}/start/episodes.jsonl",
            manifest=f"{AGENTS}/start/run.json",
        log:
            f"{AGENTS}/start/log.txt",
        priority: LONG_JOB
        conda:
            "../../envs/gpu.yaml"
        threads: resources_of("evaluate_start").threads
        resources:
            **resources_of("evaluate_start").resources,
        params:
            spec=identity("evaluate_start"),
            files=files(**START_FOLDER),
            agent=as_agent,
        message:
            "Evaluate the start policy on held-out tasks"
        shell:
            "python -m lever_pipe evaluate_start {params.files:q} {params.agent:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"

    rule evaluate_served:
        input:
            test_tasks=f"{AGENTS}/tasks/test.jsonl",
        output:
            evaluations=join(AGENTS, "served~{arm}/evaluations.jsonl"),
            episodes=join(AGENTS, "served~{arm}/episodes.jsonl"),
            dialogues=join(AGENTS, "served~{arm}/dialogues.jsonl"),
            manifest=join(AGENTS, "served~{arm}/run.json"),
        log:
            join(AGENTS, "served~{arm}/log.txt"),
        conda:
            "../../envs/cpu.yaml"
        params:
            spec=identity("evaluate_served"),
            files=files(),
            agent=as_agent,
        message:
            "Evaluate the served agent {wildcards.arm} on held-out tasks"
        shell:
            "python -m lever_pipe evaluate_served {params.files:q} {params.agent:q} --threads {threads} > {log:q} 2>&1"

else:

    rule render_verl:
        output:
            launch=directory(f"{RUN_OF_AGENT}/launch"),
            manifest=f"{RUN_OF_AGENT}/launch.run.json",
        log:
            f"{RUN_OF_AGENT}/launch.log.txt",
        conda:
            "../../envs/cpu.yaml"
        params:
            spec=identity("render_verl"),
            files=files(),
        message:
            "Render the original trainer's launch files: arm {wildcards.arm}, seed {wildcards.seed}"
        shell:
            "python -m lever_pipe render_verl {params.files:q} --threads {threads} > {log:q} 2>&1"

    rule convert_verl:
        input:
            log=join(INTENTION.verl.logs, "{arm}/seed-{seed}/console.log"),
        output:
            metrics=f"{RUN_OF_AGENT}/metrics.jsonl",
            evaluations=f"{RUN_OF_AGENT}/evaluations.jsonl",
            episodes=f"{RUN_OF_AGENT}/episodes.jsonl",
            done=f"{RUN_OF_AGENT}/done.json",
            manifest=f"{RUN_OF_AGENT}/run.json",
        log:
            f"{RUN_OF_AGENT}/log.txt",
        conda:
            "../../envs/cpu.yaml"
        params:
            spec=identity("convert_verl"),
            files=files(),
        message:
            "Convert the original trainer's log: arm {wildcards.arm}, seed {wildcards.seed}"
        shell:
            "python -m lever_pipe convert_verl {params.files:q} --threads {threads} > {log:q} 2>&1"

    rule launch:
        input:
            expand(join(AGENTS, "{run}/launch"), run=AGENT_RUNS),


rule collect_agents:
    input:
        metrics=expand(join(AGENTS, "{run}/metrics.jsonl"), run=AGENT_RUNS),
        evaluations=expand(join(AGENTS, "{run}/evaluations.jsonl"), run=AGENT_RUNS),
        episodes=expand(join(AGENTS, "{run}/episodes.jsonl"), run=AGENT_RUNS),
        done=expand(join(AGENTS, "{run}/done.json"), run=AGENT_RUNS),
        manifests=expand(join(AGENTS, "{run}/run.json"), run=AGENT_RUNS),
        test_evaluations=expand(join(AGENTS, "{run}/test/evaluations.jsonl"), run=PLAYED_RUNS),
        test_episodes=expand(join(AGENTS, "{run}/test/episodes.jsonl"), run=PLAYED_RUNS),
        start_evaluations=[f"{AGENTS}/start/evaluations.jsonl"] if IS_NATIVE else [],
        start_episodes=[f"{AGENTS}/start/episodes.jsonl"] if IS_NATIVE else [],
        served_evaluations=expand(join(AGENTS, "served~{name}/evaluations.jsonl"), name=SERVED_AGENTS),
        served_episodes=expand(join(AGENTS, "served~{name}/episodes.jsonl"), name=SERVED_AGENTS),
    output:
        curves=f"{AGENT_TABLES}/curves.csv",
        episodes_table=f"{AGENT_TABLES}/episodes.csv",
        runs=f"{AGENT_TABLES}/runs.csv",
        manifest=f"{AGENT_TABLES}/run.json",
    log:
        f"{AGENT_TABLES}/log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("collect_agents"),
        files=files(),
    message:
        "Collect the agents' curves"
    shell:
        "python -m lever_pipe collect_agents {params.files:q} --threads {threads} > {log:q} 2>&1"


rule collect_dialogues:
    input:
        transcripts=expand(join(AGENTS, "{run}/test/dialogues.jsonl"), run=PLAYED_RUNS),
    output:
        samples=f"{AGENT_TABLES}/samples.jsonl",
        side_by_side=f"{AGENT_TABLES}/dialogues.json",
        manifest=f"{AGENT_TABLES}/dialogues.run.json",
    log:
        f"{AGENT_TABLES}/dialogues.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("collect_dialogues"),
        files=files(),
    message:
        "Collect the agents' dialogues"
    shell:
        "python -m lever_pipe collect_dialogues {params.files:q} --threads {threads} > {log:q} 2>&1"


rule compare_arms:
    input:
        curves=f"{AGENT_TABLES}/curves.csv",
        episodes_table=f"{AGENT_TABLES}/episodes.csv",
        runs=f"{AGENT_TABLES}/runs.csv",
    output:
        endpoints=f"{AGENT_TABLES}/endpoints.csv",
        comparisons=f"{AGENT_TABLES}/comparisons.csv",
        manifest=f"{AGENT_TABLES}/comparisons.run.json",
    log:
        f"{AGENT_TABLES}/comparisons.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("compare_arms"),
        files=files(),
    message:
        "Compare the agents' arms"
    shell:
        "python -m lever_pipe compare_arms {params.files:q} --threads {threads} > {log:q} 2>&1"
