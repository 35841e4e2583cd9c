"""The commands beside the stages: `why`, `trace`, `compare`, `store`, `ledger` and the others."""
