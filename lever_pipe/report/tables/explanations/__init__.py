"""Why the published tables look as they do: emulated runs held against the published patterns."""
