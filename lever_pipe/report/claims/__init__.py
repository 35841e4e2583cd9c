"""The testable sentences of the documents: what each claims, how it is computed, and what the numbers say."""
