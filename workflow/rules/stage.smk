# What the rules of all stages share; itself none of them. Each says what it reads and makes, beside what its log lies
# (no output does: Snakemake does not bound the wildcards of a pathvar), and what is special about it.
pathvars:
    beside=f"{RESULTS}/",


rule stage:
    log:
        "<beside>log.txt",
    conda:
        "../../envs/cpu.yaml"
    threads: lambda wildcards, rulename: room(rulename).threads
    resources:
        **room("stage").resources,
    params:
        **call("stage"),
    shell:
        "python -m lever_pipe {params.call:q} --spec {params.spec:q}"
        " --device {resources.device} --threads {threads} > {log:q} 2>&1"
