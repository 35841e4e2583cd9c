"""Study `lever` in the report: its documents, comparisons, emulation, and the answers of the first screen."""
