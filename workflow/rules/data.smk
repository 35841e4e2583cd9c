RAW = f"{RESULTS}/world"
FILES = EXPERIMENT.data.files
WORLD = EXPERIMENT.data.source == "world"

if WORLD:
    IMAGES = {"train_images": f"{RAW}/train2014", "eval_images": f"{RAW}/val2014"}
    QUESTIONS = {
        "train_questions": f"{RAW}/OpenEnded_mscoco_train2014_questions.json",
        "train_annotations": f"{RAW}/mscoco_train2014_annotations.json",
        "eval_questions": f"{RAW}/OpenEnded_mscoco_val2014_questions.json",
        "eval_annotations": f"{RAW}/mscoco_val2014_annotations.json",
    }
else:
    IMAGES = {"train_images": FILES.train_images, "eval_images": FILES.eval_images}
    QUESTIONS = {
        "train_questions": FILES.train_questions,
        "train_annotations": FILES.train_annotations,
        "eval_questions": FILES.eval_questions,
        "eval_annotations": FILES.eval_annotations,
    }

# Digests of the images: a trigger that image folders themselves cannot be.
IMAGE_LISTING = [f"{RAW}/images.sha256"] if WORLD else []
EXAMPLES_SUMMARY = f"{LEVER}/examples/summary.json"
EXAMPLES = {
    "train_examples": f"{LEVER}/examples/train.jsonl",
    "eval_examples": f"{LEVER}/examples/eval.jsonl",
}
EMBEDDINGS = f"{LEVER}/embeddings/embeddings.safetensors"
POOLS = {
    "train_pools": f"{LEVER}/pools/train.jsonl",
    "eval_pools": f"{LEVER}/pools/eval.jsonl",
}


if WORLD:

    rule generate_world:
        output:
            **QUESTIONS,
            train_images=directory(IMAGES["train_images"]),
            eval_images=directory(IMAGES["eval_images"]),
            image_listing=IMAGE_LISTING[0],
            card=f"{RAW}/run.json",
        log:
            f"{RAW}/log.txt",
        benchmark:
            f"{RAW}/benchmark.jsonl"
        priority: CHAIN
        conda:
            "../../envs/cpu.yaml"
        resources:
            **room("generate_world").resources,
        params:
            spec=spec("generate_world"),
            files=named_files,
        message:
            "Generate the world: questions, annotations, images"
        shell:
            "python -m lever_pipe generate_world --spec {params.spec:q} {params.files:q}"
            " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule prepare_examples:
    input:
        **QUESTIONS,
        image_listing=IMAGE_LISTING,
    output:
        **EXAMPLES,
        summary=EXAMPLES_SUMMARY,
        card=f"{LEVER}/examples/run.json",
    log:
        f"{LEVER}/examples/log.txt",
    benchmark:
        f"{LEVER}/examples/benchmark.jsonl"
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("prepare_examples").resources,
    params:
        spec=spec("prepare_examples"),
        files=with_external(IMAGES),
    message:
        "Read the questions and check every annotation and image"
    shell:
        "python -m lever_pipe prepare_examples --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule embed_examples:
    input:
        **EXAMPLES,
    output:
        embeddings=EMBEDDINGS,
        card=f"{LEVER}/embeddings/run.json",
    log:
        f"{LEVER}/embeddings/log.txt",
    benchmark:
        f"{LEVER}/embeddings/benchmark.jsonl"
    priority: CHAIN
    conda:
        "../../envs/gpu.yaml"
    threads: room("embed_examples").threads
    resources:
        **room("embed_examples").resources,
    params:
        spec=spec("embed_examples"),
        files=with_external({**IMAGES, "encoder": EXPERIMENT.encoder.model}),
    message:
        "Embed images and questions"
    shell:
        "python -m lever_pipe embed_examples --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"


rule sample_pools:
    input:
        **EXAMPLES,
        embeddings=EMBEDDINGS,
    output:
        **POOLS,
        card=f"{LEVER}/pools/run.json",
    log:
        f"{LEVER}/pools/log.txt",
    benchmark:
        f"{LEVER}/pools/benchmark.jsonl"
    priority: CHAIN
    conda:
        "../../envs/cpu.yaml"
    resources:
        **room("sample_pools").resources,
    params:
        spec=spec("sample_pools"),
        files=named_files,
    message:
        "Sample a pool of candidates for each query"
    shell:
        "python -m lever_pipe sample_pools --spec {params.spec:q} {params.files:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
