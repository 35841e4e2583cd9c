RL_DATA = f"{SETTING}/rl_data/rl_data_k64_v3.jsonl"
SHARDS = range(EXPERIMENT.rl_data.n_shards)
IMPORTED = EXPERIMENT.rl_data.import_from
# With imported RL data, its selections replace the proposals. If these are rescored, the LVLM answers with them again,
# and the file's own answers go to AS_IMPORTED.
PROPOSALS = f"{SETTING}/rl_data/{'imported.' if IMPORTED else ''}proposals.jsonl"
RL_POOLS = f"{SETTING}/rl_data/imported.pools.jsonl" if IMPORTED else TRAIN_POOLS
AS_IMPORTED = f"{SETTING}/rl_data/{'imported.' if EXPERIMENT.rl_data.rescore else ''}"


rule propose_trajectories:
    input:
        train_pools=TRAIN_POOLS,
        embeddings=TRAIN_EMBEDDINGS,
    output:
        proposals=f"{SETTING}/rl_data/proposals.jsonl",
        manifest=f"{SETTING}/rl_data/proposals.run.json",
    log:
        f"{SETTING}/rl_data/proposals.log.txt",
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("propose_trajectories"),
        files=files(),
    message:
        "Propose trajectories for each RL query"
    shell:
        "python -m lever_pipe stage propose_trajectories {params.files:q} --threads {threads} > {log:q} 2>&1"


rule generate_rl_data:
    input:
        proposals=PROPOSALS,
        train_pools=RL_POOLS,
        train_examples=TRAIN_EXAMPLES,
    output:
        trajectories=join(SETTING, "rl_data/shard~{shard}/trajectories.jsonl"),
        counters=join(SETTING, "rl_data/shard~{shard}/counters.json"),
        manifest=join(SETTING, "rl_data/shard~{shard}/run.json"),
    log:
        join(SETTING, "rl_data/shard~{shard}/log.txt"),
    priority: CHAIN
    conda:
        LVLM_ENVIRONMENT
    threads: resources_of("generate_rl_data").threads
    resources:
        **resources_of("generate_rl_data").resources,
    params:
        spec=identity("generate_rl_data"),
        files=files(train_images=raw_file("images", "train"), lvlm=lvlm_folder),
        asking=asking,
    message:
        "Generate RL data, shard {wildcards.shard}: answer with each proposed pair of demonstrations"
    shell:
        "python -m lever_pipe stage generate_rl_data {params.files:q} {params.asking:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


if IMPORTED:

    rule import_rl_data:
        input:
            original=IMPORTED,
            train_examples=TRAIN_EXAMPLES,
        output:
            rl_data=f"{AS_IMPORTED}jsonl" if EXPERIMENT.rl_data.rescore else RL_DATA,
            summary=f"{AS_IMPORTED}summary.json",
            proposals=PROPOSALS,
            train_pools=RL_POOLS,
            manifest=f"{AS_IMPORTED}run.json",
        log:
            f"{AS_IMPORTED}log.txt",
        priority: CHAIN
        conda:
            "../../envs/cpu.yaml"
        params:
            spec=identity("import_rl_data"),
            files=files(),
        message:
            "Import existing RL data"
        shell:
            "python -m lever_pipe stage import_rl_data {params.files:q} --threads {threads} > {log:q} 2>&1"


if EXPERIMENT.rl_data.is_answered:

    rule merge_rl_data:
        input:
            trajectories=expand(
                join(SETTING, "rl_data/shard~{shard}/trajectories.jsonl"), shard=SHARDS, allow_missing=True
            ),
            train_pools=RL_POOLS,
            train_examples=TRAIN_EXAMPLES,
        output:
            rl_data=RL_DATA,
            summary=f"{SETTING}/rl_data/summary.json",
            manifest=f"{SETTING}/rl_data/run.json",
        log:
            f"{SETTING}/rl_data/log.txt",
        priority: CHAIN
        conda:
            "../../envs/cpu.yaml"
        params:
            spec=identity("merge_rl_data"),
            files=files(),
        message:
            "Merge the shards of RL data"
        shell:
            "python -m lever_pipe stage merge_rl_data {params.files:q} --threads {threads} > {log:q} 2>&1"


rule search_beams:
    input:
        train_pools=TRAIN_POOLS,
        train_examples=TRAIN_EXAMPLES,
    output:
        beams=f"{SETTING}/beams/beams.jsonl",
        groups=f"{SETTING}/beams/groups.safetensors",
        counters=f"{SETTING}/beams/counters.json",
        manifest=f"{SETTING}/beams/run.json",
    log:
        f"{SETTING}/beams/log.txt",
    priority: CHAIN
    conda:
        LVLM_ENVIRONMENT
    threads: resources_of("search_beams").threads
    resources:
        **resources_of("search_beams").resources,
    params:
        spec=identity("search_beams"),
        files=files(train_images=raw_file("images", "train"), lvlm=lvlm_folder),
        asking=asking,
    message:
        "Search beams, scored by the LVLM's probability of the correct answer"
    shell:
        "python -m lever_pipe stage search_beams {params.files:q} {params.asking:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule measure_rewards:
    input:
        rl_data=f"{LEVER}/rl_data/rl_data_k64_v3.jsonl",
    output:
        ties=f"{LEVER}/rl_data/ties.jsonl",
        histogram=f"{TABLES}/rewards.csv",
        manifest=f"{LEVER}/rl_data/ties.run.json",
    log:
        f"{LEVER}/rl_data/ties.log.txt",
    conda:
        "../../envs/cpu.yaml"
    params:
        spec=identity("measure_rewards"),
        files=files(),
    message:
        "Measure each reward's distribution and its groups without a gradient"
    shell:
        "python -m lever_pipe stage measure_rewards {params.files:q} --threads {threads} > {log:q} 2>&1"
