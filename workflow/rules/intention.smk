INTENTION = EXPERIMENT.intention
AGENTS = f"{RESULTS}/intention"
RUN = f"{AGENTS}/arm~{{arm}}/seed~{{seed}}"
AGENT_TABLES = f"{AGENTS}/tables"
AGENT_FIGURES = f"{AGENTS}/figures"
AGENT_RUNS = [
    f"{AGENTS}/{agent_plan.folder_of(run)}" for run in agent_plan.runs(INTENTION)
]
TASKS = {split: f"{AGENTS}/tasks/{split}.jsonl" for split in ("train", "val", "test")}
WARM_START = {
    "weights": f"{AGENTS}/warm_start/policy/model.safetensors",
    "settings": f"{AGENTS}/warm_start/policy/config.json",
    "words": f"{AGENTS}/warm_start/policy/words.json",
}
START = [] if INTENTION.model.folder else list(WARM_START.values())
CASSETTE = (
    [INTENTION.execution.cassette] if INTENTION.simulator.kind == "replay" else []
)
IS_NATIVE = INTENTION.engine == "native"
INTENTION_REFERENCE = "resources/reference/userrl-published.csv"
AGENT_EXECUTION = agent_plan.execution_of(INTENTION)


rule prepare_tasks:
    input:
        **agent_plan.raw_files(INTENTION),
    output:
        train_tasks=TASKS["train"],
        val_tasks=TASKS["val"],
        test_tasks=TASKS["test"],
        summary=f"{AGENTS}/tasks/summary.json",
        card=f"{AGENTS}/tasks/run.json",
    log:
        f"{AGENTS}/tasks/log.txt",
    benchmark:
        f"{AGENTS}/tasks/benchmark.jsonl"
    priority: LONG_JOB
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("prepare_tasks").resources,
    params:
        spec=spec("prepare_tasks"),
        files=named_files,
    message:
        "Prepare the agent's tasks"
    shell:
        "python -m lever_pipe prepare_tasks --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule warm_start_agent:
    input:
        train_tasks=TASKS["train"],
    output:
        **WARM_START,
        metrics=f"{AGENTS}/warm_start/metrics.jsonl",
        card=f"{AGENTS}/warm_start/run.json",
    log:
        f"{AGENTS}/warm_start/log.txt",
    benchmark:
        f"{AGENTS}/warm_start/benchmark.jsonl"
    priority: LONG_JOB
    conda:
        "../../envs/gpu.yaml"
    threads: room("warm_start_agent").threads
    resources:
        **room("warm_start_agent").resources,
        agent=AGENT_EXECUTION,
    params:
        spec=spec("warm_start_agent"),
        files=named_files,
    message:
        "Teach the agent to call its tool"
    shell:
        "python -m lever_pipe warm_start_agent --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} --agent {resources.agent:q}"
        " > {log:q} 2>&1"


if IS_NATIVE:

    rule train_agent:
        input:
            train_tasks=TASKS["train"],
            val_tasks=TASKS["val"],
            start=START,
            cassette=CASSETTE,
        output:
            metrics=f"{RUN}/metrics.jsonl",
            evaluations=f"{RUN}/evaluations.jsonl",
            episodes=f"{RUN}/episodes.jsonl",
            last=directory(f"{RUN}/last"),
            best=directory(f"{RUN}/best"),
            done=f"{RUN}/done.json",
            card=f"{RUN}/run.json",
        log:
            f"{RUN}/log.txt",
        benchmark:
            f"{RUN}/benchmark.jsonl"
        priority: LONG_JOB
        conda:
            "../../envs/gpu.yaml"
        threads: room("train_agent").threads
        resources:
            **room("train_agent").resources,
            agent=AGENT_EXECUTION,
        params:
            spec=spec("train_agent"),
            files=with_start,
        message:
            "GRPO of the agent: arm {wildcards.arm}, seed {wildcards.seed}"
        shell:
            "python -m lever_pipe train_agent --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} --agent {resources.agent:q}"
            " --processes {resources.processes} --launcher={resources.launcher:q} > {log:q} 2>&1"

    rule evaluate_agent:
        input:
            test_tasks=TASKS["test"],
            last=f"{RUN}/last",
            best=f"{RUN}/best",
            done=f"{RUN}/done.json",
            cassette=CASSETTE,
        output:
            evaluations=f"{RUN}/test/evaluations.jsonl",
            episodes=f"{RUN}/test/episodes.jsonl",
            card=f"{RUN}/test/run.json",
        log:
            f"{RUN}/test/log.txt",
        benchmark:
            f"{RUN}/test/benchmark.jsonl"
        priority: LONG_JOB
        conda:
            "../../envs/gpu.yaml"
        threads: room("evaluate_agent").threads
        resources:
            **room("evaluate_agent").resources,
            agent=AGENT_EXECUTION,
        params:
            spec=spec("evaluate_agent"),
            files=named_files,
        message:
            "Evaluate the agent on held-out tasks: arm {wildcards.arm}, seed {wildcards.seed}"
        shell:
            "python -m lever_pipe evaluate_agent --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} --agent {resources.agent:q}"
            " > {log:q} 2>&1"

else:

    rule render_verl:
        output:
            launch=directory(f"{RUN}/launch"),
            card=f"{RUN}/launch.run.json",
        log:
            f"{RUN}/launch.log.txt",
        benchmark:
            f"{RUN}/launch.benchmark.jsonl"
        conda:
            "../../envs/cpu.yaml"
        resources:
            **room("render_verl").resources,
        params:
            spec=spec("render_verl"),
            files=named_files,
        message:
            "Render the original trainer's launch files: arm {wildcards.arm}, seed {wildcards.seed}"
        shell:
            "python -m lever_pipe render_verl --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"

    rule convert_verl:
        input:
            log=verl_log,
        output:
            metrics=f"{RUN}/metrics.jsonl",
            evaluations=f"{RUN}/evaluations.jsonl",
            episodes=f"{RUN}/episodes.jsonl",
            done=f"{RUN}/done.json",
            card=f"{RUN}/run.json",
        log:
            f"{RUN}/log.txt",
        benchmark:
            f"{RUN}/benchmark.jsonl"
        conda:
            "../../envs/cpu.yaml"
        resources:
            **room("convert_verl").resources,
        params:
            spec=spec("convert_verl"),
            files=named_files,
        message:
            "Convert the original trainer's log: arm {wildcards.arm}, seed {wildcards.seed}"
        shell:
            "python -m lever_pipe convert_verl --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"

    rule launch:
        input:
            of_each_run("launch"),


rule collect_agents:
    input:
        metrics=of_each_run("metrics.jsonl"),
        evaluations=of_each_run("evaluations.jsonl"),
        episodes=of_each_run("episodes.jsonl"),
        done=of_each_run("done.json"),
        cards=of_each_run("run.json"),
        test_evaluations=of_each_run("test/evaluations.jsonl") if IS_NATIVE else [],
        test_episodes=of_each_run("test/episodes.jsonl") if IS_NATIVE else [],
    output:
        curves=f"{AGENT_TABLES}/curves.csv",
        episodes_table=f"{AGENT_TABLES}/episodes.csv",
        runs=f"{AGENT_TABLES}/runs.csv",
        card=f"{AGENT_TABLES}/run.json",
    log:
        f"{AGENT_TABLES}/log.txt",
    benchmark:
        f"{AGENT_TABLES}/benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("collect_agents").resources,
    params:
        spec=spec("collect_agents"),
        files=named_files,
    message:
        "Collect the agents' curves"
    shell:
        "python -m lever_pipe collect_agents --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule compare_arms:
    input:
        curves=f"{AGENT_TABLES}/curves.csv",
        episodes_table=f"{AGENT_TABLES}/episodes.csv",
        runs=f"{AGENT_TABLES}/runs.csv",
    output:
        endpoints=f"{AGENT_TABLES}/endpoints.csv",
        comparisons=f"{AGENT_TABLES}/comparisons.csv",
        statistics=f"{AGENT_TABLES}/statistics.csv",
        card=f"{AGENT_TABLES}/comparisons.run.json",
    log:
        f"{AGENT_TABLES}/comparisons.log.txt",
    benchmark:
        f"{AGENT_TABLES}/comparisons.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("compare_arms").resources,
    params:
        spec=spec("compare_arms"),
        files=named_files,
    message:
        "Compare the agents' arms"
    shell:
        "python -m lever_pipe compare_arms --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule tabulate_agents:
    input:
        curves=f"{AGENT_TABLES}/curves.csv",
        runs=f"{AGENT_TABLES}/runs.csv",
        endpoints=f"{AGENT_TABLES}/endpoints.csv",
        comparisons=f"{AGENT_TABLES}/comparisons.csv",
        statistics=f"{AGENT_TABLES}/statistics.csv",
        reference_intention=INTENTION_REFERENCE,
        claims="resources/claims.yaml",
        tasks_summary=[f"{AGENTS}/tasks/summary.json"],
    output:
        tables=f"{AGENT_TABLES}/documents.json",
        csv=shown_tables(f"{AGENT_TABLES}/documents"),
        card=f"{AGENT_TABLES}/documents.run.json",
    log:
        f"{AGENT_TABLES}/documents.log.txt",
    benchmark:
        f"{AGENT_TABLES}/documents.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("tabulate_agents").resources,
    params:
        spec=spec("tabulate_agents"),
        files=named_files,
    message:
        "Build every table of study intention"
    shell:
        "python -m lever_pipe tabulate_agents --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule plot_agents:
    input:
        curves=f"{AGENT_TABLES}/curves.csv",
        episodes_table=f"{AGENT_TABLES}/episodes.csv",
        endpoints=f"{AGENT_TABLES}/endpoints.csv",
        comparisons=f"{AGENT_TABLES}/comparisons.csv",
        reference_intention=INTENTION_REFERENCE,
    output:
        figures=report(
            directory(AGENT_FIGURES),
            patterns=["{figure}.svg"],
            category="Figures",
            labels=figure_labels,
            caption="../report/figure.rst",
        ),
        card=f"{AGENTS}/figures.run.json",
    log:
        f"{AGENTS}/figures.log.txt",
    benchmark:
        f"{AGENTS}/figures.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("plot_agents").resources,
    params:
        spec=spec("plot_agents"),
        files=named_files,
    message:
        "Draw every figure of study intention"
    shell:
        "python -m lever_pipe plot_agents --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
