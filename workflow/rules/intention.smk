INTENTION = EXPERIMENT.intention
AGENTS = f"{RESULTS}/intention"
RUN = f"{AGENTS}/arm~{{arm}}/seed~{{seed}}"
AGENT_TABLES = f"{AGENTS}/tables"
AGENT_RUNS = [
    f"{AGENTS}/{agent_plan.folder_of(run)}" for run in agent_plan.runs(INTENTION)
]
TASKS = {split: f"{AGENTS}/tasks/{split}.jsonl" for split in ("train", "val", "test")}
WARM_START = {
    "weights": f"{AGENTS}/warm_start/policy/model.safetensors",
    "settings": f"{AGENTS}/warm_start/policy/config.json",
    "codec": [
        f"{AGENTS}/warm_start/policy/{name}"
        for name in agent_plan.codec_files(INTENTION)
    ],
}
START = (
    [WARM_START["weights"], WARM_START["settings"], *WARM_START["codec"]]
    if INTENTION.is_taught
    else []
)
IS_NATIVE = INTENTION.engine == "native"
INTENTION_REFERENCE = shipped("resources/reference/userrl-published.csv")
AS_AGENT = ["--agent", agent_plan.execution_of(INTENTION)]
# The content of a model folder is part of `spec`, and an unfinished checkpoint is nobody's input.
STATE = {"state": f"{RUN}/state"}
MODEL_FOLDER = {"start": INTENTION.model.folder} if INTENTION.model.folder else {}
START_FOLDER = {} if INTENTION.is_taught else MODEL_FOLDER
START_TEST = f"{AGENTS}/start"
# An agent behind a server has its name in the place of an arm's.
SERVED = f"{AGENTS}/served~{{arm}}"


use rule stage as prepare_tasks with:
    input:
        **agent_plan.raw_files(INTENTION),
    output:
        train_tasks=TASKS["train"],
        val_tasks=TASKS["val"],
        test_tasks=TASKS["test"],
        summary=f"{AGENTS}/tasks/summary.json",
        card=f"{AGENTS}/tasks/run.json",
    pathvars:
        beside=f"{AGENTS}/tasks/",
    priority: LONG_JOB
    params:
        **call("prepare_tasks"),
    message:
        "Prepare the agent's tasks"


use rule stage as warm_start_agent with:
    input:
        train_tasks=TASKS["train"],
        start=[],
    output:
        **WARM_START,
        metrics=f"{AGENTS}/warm_start/metrics.jsonl",
        card=f"{AGENTS}/warm_start/run.json",
    pathvars:
        beside=f"{AGENTS}/warm_start/",
    priority: LONG_JOB
    conda:
        "../../envs/gpu.yaml"
    resources:
        **room("warm_start_agent").resources,
    params:
        **call("warm_start_agent", MODEL_FOLDER, *AS_AGENT),
    message:
        "Teach the agent to call its tool"


if IS_NATIVE:

    use rule stage as train_agent with:
        input:
            train_tasks=TASKS["train"],
            val_tasks=TASKS["val"],
            start=START,
        output:
            metrics=f"{RUN}/metrics.jsonl",
            evaluations=f"{RUN}/evaluations.jsonl",
            episodes=f"{RUN}/episodes.jsonl",
            last=directory(f"{RUN}/last"),
            best=directory(f"{RUN}/best"),
            done=f"{RUN}/done.json",
            card=f"{RUN}/run.json",
        pathvars:
            beside=f"{RUN}/",
        priority: LONG_JOB
        conda:
            "../../envs/gpu.yaml"
        resources:
            **room("train_agent").resources,
        params:
            **call("train_agent", STATE | START_FOLDER, *AS_AGENT),
        message:
            "GRPO of the agent: arm {wildcards.arm}, seed {wildcards.seed}"

    use rule stage as evaluate_agent with:
        input:
            test_tasks=TASKS["test"],
            last=f"{RUN}/last",
            best=f"{RUN}/best",
            done=f"{RUN}/done.json",
        output:
            evaluations=f"{RUN}/test/evaluations.jsonl",
            episodes=f"{RUN}/test/episodes.jsonl",
            dialogues=f"{RUN}/test/dialogues.jsonl",
            card=f"{RUN}/test/run.json",
        pathvars:
            beside=f"{RUN}/test/",
        priority: LONG_JOB
        conda:
            "../../envs/gpu.yaml"
        resources:
            **room("evaluate_agent").resources,
        params:
            **call("evaluate_agent", None, *AS_AGENT),
        message:
            "Evaluate the agent on held-out tasks: arm {wildcards.arm}, seed {wildcards.seed}"

    use rule stage as evaluate_start with:
        input:
            test_tasks=TASKS["test"],
            start=START,
        output:
            evaluations=f"{START_TEST}/evaluations.jsonl",
            episodes=f"{START_TEST}/episodes.jsonl",
            card=f"{START_TEST}/run.json",
        pathvars:
            beside=f"{START_TEST}/",
        priority: LONG_JOB
        conda:
            "../../envs/gpu.yaml"
        resources:
            **room("evaluate_start").resources,
        params:
            **call("evaluate_start", START_FOLDER, *AS_AGENT),
        message:
            "Evaluate the start policy on held-out tasks"

    use rule stage as evaluate_served with:
        input:
            test_tasks=TASKS["test"],
        output:
            evaluations=f"{SERVED}/evaluations.jsonl",
            episodes=f"{SERVED}/episodes.jsonl",
            dialogues=f"{SERVED}/dialogues.jsonl",
            card=f"{SERVED}/run.json",
        pathvars:
            beside=f"{SERVED}/",
        params:
            **call("evaluate_served", None, *AS_AGENT),
        message:
            "Evaluate the served agent {wildcards.arm} on held-out tasks"

else:

    use rule stage as render_verl with:
        output:
            launch=directory(f"{RUN}/launch"),
            card=f"{RUN}/launch.run.json",
        pathvars:
            beside=f"{RUN}/launch.",
        params:
            **call("render_verl"),
        message:
            "Render the original trainer's launch files: arm {wildcards.arm}, seed {wildcards.seed}"

    use rule stage as convert_verl with:
        input:
            log=f"{INTENTION.verl.logs}/{{arm}}/seed-{{seed}}/console.log",
        output:
            metrics=f"{RUN}/metrics.jsonl",
            evaluations=f"{RUN}/evaluations.jsonl",
            episodes=f"{RUN}/episodes.jsonl",
            done=f"{RUN}/done.json",
            card=f"{RUN}/run.json",
        pathvars:
            beside=f"{RUN}/",
        params:
            **call("convert_verl"),
        message:
            "Convert the original trainer's log: arm {wildcards.arm}, seed {wildcards.seed}"

    rule launch:
        input:
            of_each_run("launch"),


use rule stage as collect_agents with:
    input:
        metrics=of_each_run("metrics.jsonl"),
        evaluations=of_each_run("evaluations.jsonl"),
        episodes=of_each_run("episodes.jsonl"),
        done=of_each_run("done.json"),
        cards=of_each_run("run.json"),
        test_evaluations=of_each_run("test/evaluations.jsonl") if IS_NATIVE else [],
        test_episodes=of_each_run("test/episodes.jsonl") if IS_NATIVE else [],
        start_evaluations=[f"{START_TEST}/evaluations.jsonl"] if IS_NATIVE else [],
        start_episodes=[f"{START_TEST}/episodes.jsonl"] if IS_NATIVE else [],
        served_evaluations=of_each_served("evaluations.jsonl"),
        served_episodes=of_each_served("episodes.jsonl"),
    output:
        curves=f"{AGENT_TABLES}/curves.csv",
        episodes_table=f"{AGENT_TABLES}/episodes.csv",
        runs=f"{AGENT_TABLES}/runs.csv",
        card=f"{AGENT_TABLES}/run.json",
    pathvars:
        beside=f"{AGENT_TABLES}/",
    params:
        **call("collect_agents"),
    message:
        "Collect the agents' curves"


use rule stage as collect_dialogues with:
    input:
        transcripts=of_each_run("test/dialogues.jsonl") if IS_NATIVE else [],
    output:
        samples=f"{AGENT_TABLES}/samples.jsonl",
        side_by_side=f"{AGENT_TABLES}/dialogues.json",
        card=f"{AGENT_TABLES}/dialogues.run.json",
    pathvars:
        beside=f"{AGENT_TABLES}/dialogues.",
    params:
        **call("collect_dialogues"),
    message:
        "Collect what the agents said"


use rule stage as compare_arms with:
    input:
        curves=f"{AGENT_TABLES}/curves.csv",
        episodes_table=f"{AGENT_TABLES}/episodes.csv",
        runs=f"{AGENT_TABLES}/runs.csv",
    output:
        endpoints=f"{AGENT_TABLES}/endpoints.csv",
        comparisons=f"{AGENT_TABLES}/comparisons.csv",
        statistics=f"{AGENT_TABLES}/statistics.csv",
        card=f"{AGENT_TABLES}/comparisons.run.json",
    pathvars:
        beside=f"{AGENT_TABLES}/comparisons.",
    params:
        **call("compare_arms"),
    message:
        "Compare the agents' arms"
