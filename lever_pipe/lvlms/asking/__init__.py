"""Prompts from examples, requests to an LVLM, and the ledger of its answers."""
