"""Study `lever` in the report: its documents, comparisons, emulation, and the summaries of the first screen."""
