"""Configuration models of both studies, and the identity of each stage.

A module per subject, because a stage's code consists of the modules that it imports: a changed default of `grpo.Grpo`
reruns GRPO, not RCE. The models are the only place that defines defaults. `make schema` generates
`workflow/schemas/config.schema.json` from them, and a test compares the two. Defaults are the published production
values, and values that the documents do not state are marked inferred or chosen; the embedded world overrides them in
`config.yaml`.

A model `...Config` is the identity of a stage: exactly the values that may change its output. The workflow writes it as
canonical JSON into its rule's param `spec`, the only param that can rerun a job, and the stage's call parses it back.
So a configuration key that a stage does not use cannot rerun the stage.
"""
