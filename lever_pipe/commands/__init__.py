"""The commands that are not stages: `why`, `trace`, `compare`, `store`, `ledger` and the others."""
