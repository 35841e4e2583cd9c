"""What an LVLM is asked and what it answered: prompts, requests from examples, the ledger of answers."""
