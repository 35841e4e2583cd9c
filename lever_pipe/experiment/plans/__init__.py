"""One function for each stage, with the stage's name: it returns the configuration of a job from its wildcards."""
