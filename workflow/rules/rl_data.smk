RL_DATA = f"{LEVER}/rl_data/rl_data_k64_v3.jsonl"
RL_SUMMARY = f"{LEVER}/rl_data/summary.json"
SHARDS = [
    f"{LEVER}/rl_data/shard~{shard}" for shard in range(EXPERIMENT.rl_data.n_shards)
]
IMPORTED = EXPERIMENT.rl_data.import_from


rule propose_trajectories:
    input:
        train_pools=POOLS["train_pools"],
        embeddings=EMBEDDINGS,
    output:
        proposals=f"{LEVER}/rl_data/proposals.jsonl",
        card=f"{LEVER}/rl_data/proposals.run.json",
    log:
        f"{LEVER}/rl_data/proposals.log.txt",
    benchmark:
        f"{LEVER}/rl_data/proposals.benchmark.jsonl"
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("propose_trajectories").resources,
    params:
        spec=spec("propose_trajectories"),
        files=named_files,
    message:
        "Propose trajectories for each RL query"
    shell:
        "python -m lever_pipe propose_trajectories --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule generate_rl_data:
    input:
        proposals=f"{LEVER}/rl_data/proposals.jsonl",
        train_pools=POOLS["train_pools"],
        train_examples=EXAMPLES["train_examples"],
    output:
        trajectories=f"{LEVER}/rl_data/shard~{{shard}}/trajectories.jsonl",
        counters=f"{LEVER}/rl_data/shard~{{shard}}/counters.json",
        card=f"{LEVER}/rl_data/shard~{{shard}}/run.json",
    log:
        f"{LEVER}/rl_data/shard~{{shard}}/log.txt",
    benchmark:
        f"{LEVER}/rl_data/shard~{{shard}}/benchmark.jsonl"
    priority: CHAIN
    conda:
        "../../envs/gpu.yaml"
    threads: room("generate_rl_data").threads
    resources:
        **room("generate_rl_data").resources,
    params:
        spec=spec("generate_rl_data"),
        ledger=ledger_folder,
        files=with_external(
            {"train_images": IMAGES["train_images"], "lvlm": EXPERIMENT.lvlm.model}
        ),
    message:
        "Generate RL data, shard {wildcards.shard}: the LVLM answers with each proposed pair"
    shell:
        "python -m lever_pipe generate_rl_data --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --processes {resources.processes} --threads {threads}"
        " --ledger {params.ledger:q} > {log:q} 2>&1"


if IMPORTED:

    rule import_rl_data:
        input:
            original=IMPORTED,
            train_examples=EXAMPLES["train_examples"],
        output:
            rl_data=RL_DATA,
            summary=RL_SUMMARY,
            card=f"{LEVER}/rl_data/run.json",
        log:
            f"{LEVER}/rl_data/log.txt",
        benchmark:
            f"{LEVER}/rl_data/benchmark.jsonl"
        priority: CHAIN
        conda:
            "../../envs/cpu.yaml"
        resources:
            **room("import_rl_data").resources,
        params:
            spec=spec("import_rl_data"),
            files=named_files,
        message:
            "Import existing RL data"
        shell:
            "python -m lever_pipe import_rl_data --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"

else:

    rule merge_rl_data:
        input:
            trajectories=[f"{shard}/trajectories.jsonl" for shard in SHARDS],
            train_pools=POOLS["train_pools"],
            train_examples=EXAMPLES["train_examples"],
        output:
            rl_data=RL_DATA,
            summary=RL_SUMMARY,
            card=f"{LEVER}/rl_data/run.json",
        log:
            f"{LEVER}/rl_data/log.txt",
        benchmark:
            f"{LEVER}/rl_data/benchmark.jsonl"
        priority: CHAIN
        conda:
            "../../envs/cpu.yaml"
        resources:
            **room("merge_rl_data").resources,
        params:
            spec=spec("merge_rl_data"),
            files=named_files,
        message:
            "Merge the shards of RL data"
        shell:
            "python -m lever_pipe merge_rl_data --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule measure_rewards:
    input:
        rl_data=RL_DATA,
    output:
        ties=f"{LEVER}/rl_data/ties.jsonl",
        card=f"{LEVER}/rl_data/ties.run.json",
    log:
        f"{LEVER}/rl_data/ties.log.txt",
    benchmark:
        f"{LEVER}/rl_data/ties.benchmark.jsonl"
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("measure_rewards").resources,
    params:
        spec=spec("measure_rewards"),
        files=named_files,
    message:
        "Measure how many groups each reward leaves without a gradient"
    shell:
        "python -m lever_pipe measure_rewards --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
