BATCHES = plan.batches(EXPERIMENT)
COUNTERS = [f"{LEVER}/answers/{batch}/counters.json" for batch in BATCHES]
COUNTERS += [f"{LEVER}/{policy}/counters.json" for policy in plan.stepped(EXPERIMENT)]
if EXPERIMENT.rl_data.is_answered:
    COUNTERS += [in_documents(f"{shard}/counters.json") for shard in SHARDS]
if any(arm.sft_epochs for arm in EXPERIMENT.arms):
    COUNTERS += [in_documents(f"{BEAMS}/counters.json")]
# A server's model is no folder that the model library could answer from.
WORLD_CHECK = (
    [f"{LEVER}/world_check/check.json"]
    if WORLD and not EXPERIMENT.lvlm.is_served
    else []
)


use rule stage as collect_results with:
    input:
        cells=[f"{LEVER}/answers/{batch}/cells.jsonl" for batch in BATCHES],
        metrics=[
            f"{LEVER}/{policy}/metrics.json" for policy in plan.trained(EXPERIMENT)
        ],
        steps=[f"{LEVER}/{policy}/steps.jsonl" for policy in plan.stepped(EXPERIMENT)],
        rl_summary=in_documents(RL_SUMMARY),
        ties=f"{LEVER}/rl_data/ties.jsonl",
        groups=[
            f"{LEVER}/preset~{arm.preset}/groups.safetensors"
            for arm in EXPERIMENT.arms
        ],
    output:
        scores=f"{TABLES}/scores.csv",
        training=f"{TABLES}/training.csv",
        rl_data=f"{TABLES}/rl_data.csv",
        arms=f"{TABLES}/arms.csv",
        arms_training=f"{TABLES}/arms_training.csv",
        steps_csv=f"{TABLES}/steps.csv",
        ties_csv=f"{TABLES}/ties.csv",
        costs=f"{TABLES}/costs.csv",
        card=f"{TABLES}/run.json",
    pathvars:
        beside=f"{TABLES}/",
    params:
        **call("collect_results"),
    message:
        "Collect all scores and training metrics"
