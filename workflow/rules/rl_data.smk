RL_DATA = f"{CORNER}/rl_data/rl_data_k64_v3.jsonl"
RL_SUMMARY = f"{CORNER}/rl_data/summary.json"
SHARDS = [
    f"{CORNER}/rl_data/shard~{shard}" for shard in range(EXPERIMENT.rl_data.n_shards)
]
IMPORTED = EXPERIMENT.rl_data.import_from
BEAMS = f"{CORNER}/beams"
# Selections of an imported file, and what the LVLM answers with anew where they are rescored.
PROPOSALS = f"{CORNER}/rl_data/{'imported.' if IMPORTED else ''}proposals.jsonl"
RL_POOLS = (
    f"{CORNER}/rl_data/imported.pools.jsonl" if IMPORTED else POOLS["train_pools"]
)
AS_IMPORTED = f"{CORNER}/rl_data/{'imported.' if EXPERIMENT.rl_data.rescore else ''}"


use rule stage as propose_trajectories with:
    input:
        train_pools=POOLS["train_pools"],
        embeddings=TRAIN_EMBEDDINGS,
    output:
        proposals=f"{CORNER}/rl_data/proposals.jsonl",
        card=f"{CORNER}/rl_data/proposals.run.json",
    pathvars:
        beside=f"{CORNER}/rl_data/proposals.",
    priority: CHAIN
    params:
        **call("propose_trajectories"),
    message:
        "Propose trajectories for each RL query"


use rule stage as generate_rl_data with:
    input:
        proposals=PROPOSALS,
        train_pools=RL_POOLS,
        train_examples=EXAMPLES["train_examples"],
    output:
        trajectories=f"{CORNER}/rl_data/shard~{{shard}}/trajectories.jsonl",
        counters=f"{CORNER}/rl_data/shard~{{shard}}/counters.json",
        card=f"{CORNER}/rl_data/shard~{{shard}}/run.json",
    pathvars:
        beside=f"{CORNER}/rl_data/shard~{{shard}}/",
    priority: CHAIN
    conda:
        LVLM_ENVIRONMENT
    resources:
        **room("generate_rl_data").resources,
    params:
        **call("generate_rl_data", {**TRAIN_IMAGES, **LVLM}, asking),
    message:
        "Generate RL data, shard {wildcards.shard}: the LVLM answers with each proposed pair"


if IMPORTED:

    use rule stage as import_rl_data with:
        input:
            original=IMPORTED,
            train_examples=EXAMPLES["train_examples"],
        output:
            rl_data=f"{AS_IMPORTED}jsonl" if EXPERIMENT.rl_data.rescore else RL_DATA,
            summary=f"{AS_IMPORTED}summary.json",
            proposals=PROPOSALS,
            train_pools=RL_POOLS,
            card=f"{AS_IMPORTED}run.json",
        pathvars:
            beside=AS_IMPORTED,
        priority: CHAIN
        params:
            **call("import_rl_data"),
        message:
            "Import existing RL data"


if EXPERIMENT.rl_data.is_answered:

    use rule stage as merge_rl_data with:
        input:
            trajectories=[f"{shard}/trajectories.jsonl" for shard in SHARDS],
            train_pools=RL_POOLS,
            train_examples=EXAMPLES["train_examples"],
        output:
            rl_data=RL_DATA,
            summary=RL_SUMMARY,
            card=f"{CORNER}/rl_data/run.json",
        pathvars:
            beside=f"{CORNER}/rl_data/",
        priority: CHAIN
        params:
            **call("merge_rl_data"),
        message:
            "Merge the shards of RL data"


use rule stage as search_beams with:
    input:
        train_pools=POOLS["train_pools"],
        train_examples=EXAMPLES["train_examples"],
    output:
        beams=f"{BEAMS}/beams.jsonl",
        groups=f"{BEAMS}/groups.safetensors",
        counters=f"{BEAMS}/counters.json",
        card=f"{BEAMS}/run.json",
    pathvars:
        beside=f"{BEAMS}/",
    priority: CHAIN
    conda:
        LVLM_ENVIRONMENT
    resources:
        **room("search_beams").resources,
    params:
        **call("search_beams", {**TRAIN_IMAGES, **LVLM}, asking),
    message:
        "Search beams: the LVLM tells how probable each demonstration makes the true answer"


use rule stage as measure_rewards with:
    input:
        rl_data=in_documents(RL_DATA),
    output:
        ties=f"{LEVER}/rl_data/ties.jsonl",
        histogram=f"{TABLES}/rewards.csv",
        card=f"{LEVER}/rl_data/ties.run.json",
    pathvars:
        beside=f"{LEVER}/rl_data/ties.",
    params:
        **call("measure_rewards"),
    message:
        "Measure how each reward spreads and how many groups it leaves without a gradient"
